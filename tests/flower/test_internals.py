"""What is relied on of Flower beyond what it promises, by name, and which Flower that is."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Context, RecordDict

import fedbn.flower
from fedbn.errors import ConfigError
from fedbn.flower import (
    TESTED,
    installed_flower,
    internals_node,
    internals_server,
    require_flower,
    site_app,
)
from fedbn.flower.internals_node import _PULLING

ROOT = Path(fedbn.flower.__file__).parent
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp")

RELIED_ON = {
    "internals_node.py": {
        "flwr.common.constant": {
            "SYSTEM_TIME_TOLERANCE", "TIMESTAMP_HEADER", "TIMESTAMP_TOLERANCE", "ErrorCode",
            "SubStatus",
        },
        "flwr.common.serde": {"context_to_proto"},
        "flwr.proto.runtime_pb2": {
            "AcquireTaskRequest", "PushTaskOutputRequest", "SendTaskHeartbeatRequest",
        },
        "flwr.supercore": {"heartbeat"},
        "flwr.supercore.constant": {
            "FLEET_HTTP_PUBLIC_KEY_HEADER", "FLEET_HTTP_SIGNATURE_HEADER", "TaskType",
        },
        "flwr.supercore.heartbeat": {"HeartbeatSender"},
        "flwr.supercore.inflatable": {"inflatable_utils"},
        "flwr.supercore.interceptors": {
            "RuntimeTokenHttpInterceptor",
            "RuntimeVersionHttpInterceptor",
            "SuperExecAuthHttpInterceptor",
        },
        "flwr.supercore.primitives.asymmetric": {"public_key_to_bytes", "sign_message"},
        "flwr.supercore.protobuf.client": {"ProtobufClient"},
        "flwr.supercore.runtime": {"RuntimeHttpClient"},
        "flwr.supernode": {"fleet_http_connection", "start_client_internal"},
        "flwr.supernode.cli.flower_supernode": {"flower_supernode"},
        "flwr.supernode.runtime.run_clientapp": {"pull_task_input", "push_message"},
    },
    "internals_server.py": {
        "flwr.cli.build": {"build_fab_from_disk"},
        "flwr.common.constant": {
            "ACCESS_TOKEN_KEY", "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", "SYSTEM_TIME_TOLERANCE",
            "TIMESTAMP_HEADER", "TIMESTAMP_TOLERANCE", "SubStatus",
        },
        "flwr.common.serde": {"fab_to_proto", "run_from_proto"},
        "flwr.proto.control_pb2": {
            "ListNodesRequest", "RegisterNodeRequest", "StartRunRequest", "StopRunRequest",
            "UnregisterNodeRequest",
        },
        "flwr.proto.fleet_pb2": {"PushMessagesRequest", "PushMessagesResponse"},
        "flwr.proto.node_pb2": {"NodeInfo"},
        "flwr.proto.runtime_pb2": {
            "AcquireTaskRequest", "PullTaskInputRequest", "PushTaskOutputRequest",
        },
        "flwr.supercore.auth.typing": {"AccountInfo"},
        "flwr.supercore.constant": {
            "FLEET_HTTP_PUBLIC_KEY_HEADER", "FLEET_HTTP_SIGNATURE_HEADER", "TASK_TOKEN_HEADER",
            "NodeStatus", "TaskType",
        },
        "flwr.supercore.control": {"ControlHttpClient"},
        "flwr.supercore.fab": {"Fab"},
        "flwr.supercore.heartbeat": {"HeartbeatSender", "make_task_heartbeat_fn_http"},
        "flwr.supercore.http_logging": {"get_uvicorn_log_config"},
        "flwr.supercore.interceptors": {"RuntimeVersionHttpInterceptor"},
        "flwr.supercore.primitives.asymmetric": {"bytes_to_public_key", "verify_signature"},
        "flwr.supercore.protobuf.client": {"ProtobufCall", "ProtobufRequestContext"},
        "flwr.supercore.task_identity": {"TaskIdentity"},
        "flwr.superlink.auth_plugin": {"NoOpControlAuthnPlugin"},
        "flwr.superlink.cli.flower_superlink": {"SuperLinkLifespan"},
        "flwr.superlink.config_loader": {"SuperLinkLifespanConfig"},
        "flwr.superlink.grid": {"HttpGrid"},
        "flwr.superlink.main": {"create_app"},
    },
}  # fmt: skip


def imported(file: Path) -> dict[str, set[str]]:
    """What a file imports of Flower beyond the public modules."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not [one.name for one in node.names if one.name.startswith("flwr")], file
        elif isinstance(node, ast.ImportFrom) and node.module not in PUBLIC:
            module = str(node.module)
            if module.partition(".")[0] == "flwr":
                found.setdefault(module, set()).update(alias.name for alias in node.names)
    return found


def test_two_files_import_what_flower_does_not_promise() -> None:
    found = {file.name: imported(file) for file in sorted(ROOT.glob("*.py"))}
    assert {name: names for name, names in found.items() if names} == RELIED_ON


@pytest.mark.parametrize(
    ("module", "name"),
    sorted({(m, n) for one in RELIED_ON.values() for m, names in one.items() for n in names}),
)
def test_what_is_imported_is_there(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_what_is_reached_into_is_there() -> None:
    """Attributes that no import names: they would fail, or do nothing, in the middle of a run."""
    state = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate").SqlLinkState
    used = ("get_node_id_by_public_key", "get_task_by_token", "cleanup_run")
    assert all(callable(getattr(state, name)) for name in used)
    cleanup = inspect.signature(state._cleanup_push_session)
    assert [*cleanup.parameters] == ["self", "session_id", "cleanup_messages"]
    routes = importlib.import_module("flwr.supercore.protobuf.translation").PROTOBUF_REQUEST_TYPES
    served = {path for method, path in routes if method == "POST"}
    assert internals_server.SiteDoor.paths - {internals_node.ADMITTED_PATH} <= served
    assert internals_server.OperatorDoor.paths <= served
    client = inspect.getsource(importlib.import_module("flwr.supercore.protobuf.client"))
    assert client.count("httpx.Client(") == 1
    assert "self._client = httpx.Client(" in client
    grid = inspect.getsource(importlib.import_module("flwr.superlink.grid").HttpGrid)
    assert all(name in grid for name in ("self._retry_invoker", "self._runtime_client"))
    for module in ("supernode.fleet_http_connection", "supercore.heartbeat"):
        assert importlib.import_module(f"flwr.{module}").HEARTBEAT_DEFAULT_INTERVAL > 0
    assert callable(importlib.import_module("flwr.supernode.start_client_internal").time.sleep)
    pulling = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    known = {
        key
        for name in ("pull_objects", "pull_and_inflate_object_from_tree")
        for key in getattr(pulling, name).__kwdefaults__
    }
    assert _PULLING.keys() <= known


def test_the_flower_that_is_installed_is_the_one_that_is_known() -> None:
    assert installed_flower().startswith(f"{TESTED}.")
    require_flower()


def test_another_flower_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbn.flower.installed_flower", lambda: "1.42.0")
    with pytest.raises(ConfigError) as error:
        require_flower()
    assert str(error.value) == (
        f"this needs Flower {TESTED}, Flower 1.42.0 is installed: "
        "`pip install 'fedbn[flower]'` brings the right one"
    )


class Node:
    """A node that has one message after another, and hears of an end when it is told often."""

    def __init__(self, deaf: int):
        self.deaf, self.told = deaf, 0

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    close = start = stop = __exit__
    is_running = False

    def AcquireTask(self, request: object) -> object:  # noqa: N802
        return SimpleNamespace(token="t", HasField=lambda name: True)

    def PushTaskOutput(self, request: object) -> None:  # noqa: N802
        self.told += 1
        if self.told <= self.deaf:
            raise httpx.RemoteProtocolError("Server disconnected")


def connected(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    """Let the work on messages be that of this node."""
    known = SimpleNamespace(from_server_address=lambda *a, **k: node)
    monkeypatch.setattr(internals_node, "RuntimeHttpClient", known)
    monkeypatch.setattr(internals_node, "HeartbeatSender", lambda beats: node)
    pulled = ("message", Context(0, 0, {}, RecordDict(), {}), None, None)
    monkeypatch.setattr(internals_node, "pull_task_input", lambda client: pulled)
    monkeypatch.setattr(internals_node, "push_message", lambda client, reply, context: None)


@pytest.mark.parametrize(("deaf", "messages"), [(2, 2), (3, 1)])
def test_a_node_that_did_not_hear_of_a_messages_end_is_started_again(
    monkeypatch: pytest.MonkeyPatch, deaf: int, messages: int
) -> None:
    """It would wait for that end and take no other message: a site that is there and silent."""
    node, done = Node(deaf), []
    connected(monkeypatch, node)
    internals_node.work(
        lambda message, state: message,
        "127.0.0.1:1",
        b"secret",
        alive=lambda: len(done) < 2,
        answered=done.append,
    )
    assert len(done) == messages


def test_a_node_whose_message_was_not_answered_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower keeps no error in place of the answer: the node would wait, and take no other."""
    node, tried = Node(deaf=0), []

    def fails(message: object, state: RecordDict) -> None:
        tried.append(message)
        raise OSError(28, "No space left on device")

    connected(monkeypatch, node)
    internals_node.work(fails, "127.0.0.1:1", b"secret", alive=lambda: len(tried) < 2)
    assert len(tried) == node.told == 1


@pytest.mark.parametrize("bound", [True, False])
def test_a_site_takes_no_message_before_its_node_has_the_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bound: bool
) -> None:
    """Whoever listens there first is another user of the machine; the node then ends."""
    looked, worked = [], []

    def said() -> str:
        looked.append(1)
        return "SuperNode ID: 7" if bound and len(looked) > 2 else "starting"

    node = SimpleNamespace(
        status=lambda: None if bound or len(looked) < 2 else 1, said=said, end=lambda: None
    )
    monkeypatch.setattr(site_app, "_start_node", lambda *given: node)
    monkeypatch.setattr(
        site_app, "work", lambda *given, alive, answered: worked.append((alive(), len(looked)))
    )
    site_app._one_node(None, None, tmp_path, lambda: False, lambda text: None)
    assert worked == [(bound, 3 if bound else 2)]
