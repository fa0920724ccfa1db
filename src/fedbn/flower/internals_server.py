"""What Flower does not promise, at the server: its SuperLink as a process, and runs on it.

Flower serves nodes, run control and server apps on one port. Here one application is served on two
ports: sites reach the part for nodes, and the loopback alone reaches run control and server apps,
which ask for the operator's secret. A gate in front of both ports authenticates every request by
its headers and limits its size before Flower reads the body (`server_limits.py`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import hashlib
import hmac
import logging
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import (
    ACCESS_TOKEN_KEY,
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    SubStatus,
)
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
    NodeStatus,
    TaskType,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.grid import HttpGrid

from fedbn.errors import FedbnError
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.internals_node import (
    ADMITTED_PATH,
    environment,
    follow,
    free_port,
    listens,
    quicken,
    runtime_client,
    secure_clients,
)
from fedbn.text import one_line

if TYPE_CHECKING:
    from fedbn.flower.server_limits import ConnectionLimits, Door, LimitedServer

log = logging.getLogger("fedbn.server")
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
        secure_clients()
        folder.read()  # names the folder where there is no federation
        self.address = f"127.0.0.1:{folder.operator_port()}"
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
        control_address=f"127.0.0.1:{folder.operator_port()}",
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


_SITE_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
_OPERATOR_PATHS = frozenset(
    {
        *(
            f"/v1/control/{name}"
            for name in ("start-run", "stop-run", "list-nodes", "register-node", "unregister-node")
        ),
        *(
            f"/v1/runtime/{name}"
            for name in (
                "acquire-task",
                "send-task-heartbeat",
                "pull-task-input",
                "push-task-output",
                "push-messages",
                "pull-messages",
                "push-object",
                "pull-object",
                "confirm-message-received",
                "get-nodes",
            )
        ),
    }
)
_READ = ("/v1/fleet/push-messages",)
# Flower's node ends without a word on 401, and names the path on any other status.
_UNKNOWN = {"/v1/fleet/activate-node": 412}
_NOTED = (
    "/v1/fleet/pull-messages",
    "/v1/fleet/push-messages",
    "/v1/runtime/push-task-output",
)
_SMALL = 65_536  # bytes of a request that carries no content
_TREE = 1_000_000  # bytes of a request that lists the pieces of a message
_FRAME = 65_536  # bytes that Flower adds to a piece of content, at most
_PIECE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + _FRAME
_OPERATORS_PIECE = 64_000_000
# A site may send an answer twice, because a network that was cut makes it send pieces again.
_SENDINGS = 2
_MOST_SESSIONS = 8


class SiteDoor:
    """What sites may send: requests signed by an admitted key, and answers of bounded size.

    A message that a site was given allows it one answer. Pieces beyond the size of an answer are
    refused before they are read, and what the site sent of that answer is deleted.
    """

    paths = _SITE_PATHS | {ADMITTED_PATH}

    def __init__(self, state: Any, answer_bytes: Callable[[], int]):
        self._state, self._answer_bytes = state, answer_bytes
        self._lock = threading.Lock()
        self._nodes: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._sessions: dict[str, list[str]] = {}

    def caller(self, path: str, headers: Mapping[bytes, bytes]) -> str:
        """Return the hash of the key that signed the time, where that key is admitted."""
        try:
            key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = base64.b64decode(
                headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True
            )
            stamp = headers[TIMESTAMP_HEADER.encode()]
            signed = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
            latest = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            node = self._state.get_node_id_by_public_key(key)
            if node is None or not -SYSTEM_TIME_TOLERANCE < age < latest:
                return ""
            if not verify_signature(bytes_to_public_key(key), stamp, signature):
                return ""
        except (KeyError, ValueError, TypeError, binascii.Error):
            return ""
        caller = hashlib.sha256(key.strip()).hexdigest()
        self._nodes[caller] = node
        return caller

    def limit(self, caller: str, path: str, size: int) -> int:
        """Return the most bytes that this body may have; content counts towards the answer."""
        name = path.rpartition("/")[2]
        if name not in ("push-object", "push-messages"):
            return _SMALL
        with self._lock:
            left = self._left.setdefault(caller, self._allowance())
            most = min(_PIECE if name == "push-object" else _TREE, left)
            if size <= most:
                self._left[caller] = left - size
                return most
        if size > left:
            self._forget_answer(caller)
        return most

    def refuses(self, caller: str, path: str, body: bytes) -> str:
        """Refuse messages that are no answers of this site: sites do not write to each other."""
        request = PushMessagesRequest()
        try:
            request.ParseFromString(body)
        except Exception:
            return "not a message"
        for message in request.messages_list:
            found = message.metadata
            if found.src_node_id != self._nodes.get(caller) or not found.reply_to_message_id:
                return "not an answer of this site"
        return ""

    def served(self, caller: str, path: str, content: bytes) -> None:
        """Allow an answer to a message that the site was given."""
        if path.endswith("/pull-messages") and content:
            with self._lock:
                self._left[caller] = self._allowance()
        elif path.endswith("/push-messages"):
            response = PushMessagesResponse()
            with suppress(Exception):  # an error, which has no session
                response.ParseFromString(content)
                if response.session_id:
                    known = self._sessions.setdefault(caller, [])
                    known.append(response.session_id)
                    del known[:-_MOST_SESSIONS]

    def _allowance(self) -> int:
        return _SENDINGS * (self._answer_bytes() + _TREE)

    def _forget_answer(self, caller: str) -> None:
        """Delete what a site sent of an answer that is too large: nobody waits for the rest."""
        for session in self._sessions.pop(caller, []):
            self._state._cleanup_push_session(session, cleanup_messages=True)


class OperatorDoor:
    """What the operator's own processes may send, from this machine."""

    paths = _OPERATOR_PATHS

    def __init__(self, state: Any, secret: str, database: Path):
        self._state, self._secret, self._database = state, secret, database
        self._runs: dict[str, int] = {}

    def caller(self, path: str, headers: Mapping[bytes, bytes]) -> str:
        """Return who sends a request: the operator, or the server app of a run."""
        if path.startswith("/v1/control/"):
            given = headers.get(b"authorization", b"")
            wanted = f"Bearer {self._secret}".encode()
            return "operator" if hmac.compare_digest(given, wanted) else ""
        if path.endswith("/acquire-task"):
            return "operator"  # Flower verifies the signature of these few bytes
        token = headers.get(TASK_TOKEN_HEADER.encode(), b"").decode("latin-1")
        task = self._state.get_task_by_token(token) if token else None
        if task is None:
            return ""
        self._runs["server app"] = task.run_id
        return "server app"

    def limit(self, caller: str, path: str, size: int) -> int:
        """Return the most bytes that this body may have."""
        return _SMALL if path.endswith("/acquire-task") else _OPERATORS_PIECE

    def refuses(self, caller: str, path: str, body: bytes) -> str:
        """Refuse nothing that the operator sends."""
        return ""

    def served(self, caller: str, path: str, content: bytes) -> None:
        """Delete a run's messages once it is over, and give their space on disk back."""
        if path.endswith("/push-task-output") and caller in self._runs:
            self._state.cleanup_run(self._runs[caller])
            shrink(self._database)


def choose_operator_port(folder: FederationFolder) -> None:
    """Keep the port of this machine's own commands, or take a free one where that is in use."""
    port = folder.operator_port()
    if not port or listens("127.0.0.1", port):
        folder.use_operator_port(free_port())


def shrink(database: Path) -> None:
    """Give the space of deleted messages back to the disk."""
    if not database.is_file():
        return
    try:
        connection = sqlite3.connect(database, timeout=30.0, isolation_level=None)
        try:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
    except sqlite3.Error as error:  # in use all the time, or a full disk: the next run's end
        log.warning("%s was not shrunk: %s", database, error)


def listener(host: str, port: int) -> socket.socket:
    """Bind a port."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((host, port))
    return found


def servers(
    folder: FederationFolder, host: str, limits: ConnectionLimits | None = None
) -> list[LimitedServer]:
    """Make Flower's application, served to sites on one port and to the operator on another."""
    # Imported here: the commands that only talk to the server do not need all of this.
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.main import create_app

    from fedbn.flower.server_limits import (
        ConnectionLimits,
        Connections,
        Gate,
        LimitedServer,
        tls_context,
    )

    limits = limits or ConnectionLimits()
    settings = configuration(folder, host)
    app: Any = create_app(settings, SuperLinkLifespan)
    state = app.state.linkstate_factory.state()
    doors: dict[tuple[str, int], Door] = {
        (host, folder.read().port): SiteDoor(state, folder.answer_bytes),
        ("127.0.0.1", folder.operator_port()): OperatorDoor(
            state, folder.secret.read_text(), folder.database
        ),
    }
    context = tls_context(str(folder.certificate), str(folder.key))
    made: list[LimitedServer] = []
    for (address, port), door in doors.items():
        table = Connections(limits)
        made.append(
            LimitedServer(
                Gate(app, door, table, _READ, (ADMITTED_PATH,), _UNKNOWN, _NOTED),
                listener(address, port),
                context,
                table,
                lifespan="off" if made else "on",
                log_config=get_uvicorn_log_config(logging.INFO),
            )
        )
    return made


async def _serve(folder: FederationFolder, host: str) -> None:
    from fedbn.flower.server_limits import serve

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await serve(servers(folder, host), stop)


def main(path: str, host: str, parent: str) -> None:
    """Serve until ended, or until the parent is gone."""
    os.umask(0o077)  # the database, and what SQLite lays beside it, holds the server app's token
    follow(int(parent))
    folder = FederationFolder(Path(path))
    choose_operator_port(folder)
    shrink(folder.database)
    asyncio.run(_serve(folder, host))


if __name__ == "__main__":
    main(*sys.argv[1:4])
