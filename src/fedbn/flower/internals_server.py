"""What Flower does not promise, at the server: its SuperLink as a process, and runs on it.

Flower serves nodes, run control and server apps on one port. Its open edition lets anyone who
reaches that port start a run; here the operator's secret is asked for, by the interface that Flower
has for such checks.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ACCESS_TOKEN_KEY, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.grid import HttpGrid

from fedbn.errors import FedbnError
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.internals_node import environment, follow, quicken, runtime_client
from fedbn.text import one_line

APP = Path(__file__).parent / "app"
# How long the server may be away (a restart) before a run gives up; its rounds are saved.
PATIENCE = 60.0


class _Bearer:
    """Puts the operator's secret on every request."""

    def __init__(self, secret: str):
        self._header = f"Bearer {secret}"

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the header."""
        context.request.headers["Authorization"] = self._header
        return call_next(context)


class Control(AbstractContextManager["Control"]):
    """Talks to the server of a federation, from the server's own machine.

    Flower is quiet in this process from then on, as in its children.
    """

    def __init__(self, folder: FederationFolder):
        os.environ.update(environment(folder.home))
        self.address = f"127.0.0.1:{folder.read().port}"
        self._client = ControlHttpClient.from_server_address(
            self.address,
            insecure=False,
            root_certificates=folder.ca.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                _Bearer(folder.secret.read_text()),
            ],
        )

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def reachable(self) -> bool:
        """Tell whether the server answers."""
        try:
            self.nodes()
            return True
        except (httpx.HTTPError, FedbnError):
            return False

    def nodes(self) -> list[NodeInfo]:
        """List the nodes whose keys are let in; Flower remembers those of keys that are not."""
        with _explained(self.address):
            known = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in known if node.status != NodeStatus.UNREGISTERED]

    def admit_only(self, keys: Mapping[bytes, str]) -> None:
        """Let these sites' keys in and no others; those that are in stay as they are."""
        known = {node.public_key: node.node_id for node in self.nodes()}
        with _explained(self.address):
            for key in known.keys() - keys.keys():
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))
            for key in keys.keys() - known.keys():
                self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=keys[key]))

    def start_run(self) -> int:
        """Start a run; returns its number."""
        content = build_fab_from_disk(APP)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with _explained(self.address):
            answer = self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        return int(answer.run_id)

    def stop_run(self, run: int) -> None:
        """Stop a run that an earlier process left behind, if it is still there."""
        with suppress(httpx.HTTPError):
            self._client.StopRun(StopRunRequest(run_id=run))


@contextmanager
def grid_of(folder: FederationFolder, seconds: float = 30.0) -> Iterator[HttpGrid]:
    """Start a run and be its server app: gives the grid, and ends the run on the way out."""
    quicken()
    last = folder.path / "last-run"
    with Control(folder) as control:
        if last.exists():
            control.stop_run(int(last.read_text() or 0))
        number = control.start_run()
        last.write_text(str(number))
        token = _token(folder, control.address, number, seconds)
    ca = folder.ca.read_bytes()
    grid = HttpGrid(control.address, insecure=False, root_certificates=ca, token=token)
    grid._retry_invoker.max_time = PATIENCE
    client = grid._runtime_client
    beat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    status, details = SubStatus.FAILED, "stopped"
    try:
        with _explained(control.address):
            _take_up(grid)
            beat.start()
            yield grid
        status, details = SubStatus.COMPLETED, ""
    finally:
        grid._retry_invoker.max_tries = 1
        if beat.is_running:
            beat.stop()
        with suppress(httpx.HTTPError):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        grid.close()


def _token(folder: FederationFolder, address: str, run: int, seconds: float) -> str:
    """Take the run's server-app task; a leftover of another run is ended on the way."""
    client = runtime_client(address, folder.ca.read_bytes(), folder.secret.read_bytes())
    begun = time.monotonic()
    with client, _explained(address):
        while time.monotonic() - begun < seconds:
            request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            answer = client.AcquireTask(request)
            if answer.HasField("task") and answer.task.run_id == run:
                return str(answer.token)
            time.sleep(0.05)
    raise FedbnError(f"Flower's server at {address} gave no task for run {run} in {seconds:g} s")


def _take_up(grid: HttpGrid) -> None:
    """Tell Flower that the server app runs, and who sends messages from here on."""
    answer = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = answer.task_id
    TaskIdentity.run_id = answer.run.run_id
    TaskIdentity.node_id = answer.context.node_id
    grid.set_run(run_from_proto(answer.run))


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turn what the connection refuses into one line."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        text = one_line(error.response.text)[:200]
        raise FedbnError(f"Flower's server at {address} refused: {text}") from error
    except httpx.HTTPError as error:
        hint = "; start it with `fedbn federation server`; rounds that are done are saved"
        raise FedbnError(f"Flower's server at {address} does not answer ({error}){hint}") from error


class OperatorOnly(NoOpControlAuthnPlugin):
    """Admits requests that carry the operator's secret."""

    def __init__(self, secret: str):
        super().__init__()
        self._secret = secret

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        """Compare the token that came with a request."""
        given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
        if not hmac.compare_digest(given.encode(), self._secret.encode()):
            return False, None
        return super().validate_tokens_in_metadata(metadata)


def configuration(folder: FederationFolder, host: str) -> SuperLinkLifespanConfig:
    """Describe the SuperLink of a federation."""
    info = folder.read()
    files = (folder.ca, folder.certificate, folder.key)
    return SuperLinkLifespanConfig(
        control_address=f"127.0.0.1:{info.port}",
        health_server_address=None,
        host=host,
        port=info.port,
        insecure=False,
        certificates=(files[0].read_bytes(), files[1].read_bytes(), files[2].read_bytes()),
        superexec_auth_secret=folder.secret.read_bytes(),
        authn_plugin=OperatorOnly(folder.secret.read_text()),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(folder.ca),
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        database=str(folder.database),
        isolation="process",  # server apps are `fedbn federation run`, with the secret
        runtime_dependency_install=False,
    )


def main(path: str, host: str, parent: str) -> None:
    """Serve until ended, or until the parent is gone."""
    os.umask(0o077)  # the database, and what SQLite lays beside it, holds the server app's token
    follow(int(parent))
    # The package has a function of the module's name, which hides the module from `import`.
    command = importlib.import_module("flwr.superlink.cli.flower_superlink")
    command._run_superlink_http_api(configuration(FederationFolder(Path(path)), host))


if __name__ == "__main__":
    main(*sys.argv[1:4])
