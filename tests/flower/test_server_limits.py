"""Attacks on the server's ports, each of which ends by itself after a few seconds."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata

from fedbn.flower import credentials, preflight, server_app
from fedbn.flower.credentials import Bundle, read_bundle
from fedbn.flower.federation_folder import DOCUMENT_BYTES, FederationFolder
from fedbn.flower.internals_node import free_port, listens, secure_clients
from fedbn.flower.internals_server import (
    Control,
    OperatorDoor,
    SiteDoor,
    choose_operator_port,
    servers,
)
from fedbn.flower.server_limits import (
    ConnectionLimits,
    Connections,
    Gate,
    LimitedServer,
    serve,
    tls_context,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower and Alembic

LIMITS = ConnectionLimits(
    per_address=8, anonymous=32, per_caller=4, handshake=0.5, headers=0.5, body_pause=0.5
)
PULL = "/v1/fleet/pull-messages"


@contextlib.contextmanager
def serving(made: Any) -> Iterator[None]:
    """Serve in a thread of this process; `made` makes the servers."""
    stopping: list[Any] = []
    ready = threading.Event()

    async def main() -> None:
        stop = asyncio.Event()
        stopping.append((asyncio.get_running_loop(), stop))
        try:
            several = made()
            task = asyncio.create_task(serve(several, stop))
            while not all(server.started for server in several) and not task.done():
                await asyncio.sleep(0.01)
        finally:
            ready.set()
        await task

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loop, stop = stopping[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationFolder]:
    """A federation with Flower's own application behind the limits."""
    made = server_app.make(tmp_path_factory.mktemp("limits") / "fed", ["plain"])
    choose_operator_port(made)
    with serving(lambda: servers(made, "127.0.0.1", LIMITS)):
        yield made


def trust(folder: FederationFolder) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder.ca))


def post(folder: FederationFolder, path: str, port: int = 0, **given: Any) -> httpx.Response:
    address = f"https://127.0.0.1:{port or folder.read().port}{path}"
    return httpx.post(address, verify=trust(folder), timeout=30, trust_env=False, **given)


def signed(key: credentials.Key, at: datetime.datetime | None = None) -> dict[str, str]:
    stamp = (at or datetime.datetime.now(datetime.UTC)).isoformat()
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "content-type": "application/protobuf",
        "flwr-public-key": base64.b64encode(credentials.public_bytes(key)).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(signature).decode(),
    }


def secure(folder: FederationFolder, source: str = "127.0.0.1") -> ssl.SSLSocket:
    plain = socket.create_connection(
        ("127.0.0.1", folder.read().port), timeout=10, source_address=(source, 0)
    )
    return trust(folder).wrap_socket(plain, server_hostname="127.0.0.1")


def closed_after(connection: socket.socket, seconds: float) -> float:
    """Return how long the server kept a connection; fails where it keeps it for longer."""
    connection.settimeout(seconds)
    begun = time.monotonic()
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        raise AssertionError(f"still open after {seconds:g} s") from None
    except OSError:
        pass
    return time.monotonic() - begun


def test_the_servers_pages_and_api_lists_are_off_on_both_ports(folder: FederationFolder) -> None:
    for port in (folder.read().port, folder.operator_port()):
        for path in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect", "/health", "/"):
            address = f"https://127.0.0.1:{port}{path}"
            found = httpx.get(address, verify=trust(folder), trust_env=False)
            assert (found.status_code, found.text) == (404, "not found"), path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/runtime/push-object",
        "/v1/responses",
        "/v1/fleet/register-node",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "//v1/control/list-nodes",
    ],
)
def test_the_sites_port_serves_no_control(folder: FederationFolder, path: str) -> None:
    secret = {"authorization": f"Bearer {folder.secret.read_text()}"}
    assert post(folder, path, headers=secret).status_code == 404


def test_the_operators_port_asks_for_the_secret_and_is_on_the_loopback(
    folder: FederationFolder,
) -> None:
    port = folder.operator_port()
    path, kind = "/v1/control/list-nodes", {"content-type": "application/protobuf"}
    assert post(folder, path, port, headers=kind).status_code == 401
    guess = {**kind, "authorization": "Bearer guess"}
    assert post(folder, path, port, headers=guess).status_code == 401
    known = {**kind, "authorization": f"Bearer {folder.secret.read_text()}"}
    assert post(folder, path, port, headers=known).status_code == 200
    assert post(folder, "/v1/runtime/push-object", port, headers=kind).status_code == 401
    assert post(folder, PULL, port, headers=kind).status_code == 404
    assert not listens("127.0.0.2", port)


class Body:
    """A body that notes how much of it was taken."""

    def __init__(self, size: int):
        self.taken, self._size = 0, size

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < self._size:
            self.taken += 65536
            yield bytes(65536)


def test_a_body_without_a_key_is_refused_before_it_is_read(folder: FederationFolder) -> None:
    body, begun = Body(1_500_000_000), time.monotonic()
    headers = {"content-length": "1500000000", "content-type": "application/protobuf"}
    try:
        status = post(
            folder, "/v1/fleet/push-object", headers=headers, content=iter(body)
        ).status_code
    except httpx.TransportError:  # the server closed the connection while this was sending
        status = 401
    assert status == 401
    assert time.monotonic() - begun < 10
    assert body.taken < 100_000_000


def test_only_a_fresh_signature_of_an_admitted_key_is_let_in(folder: FederationFolder) -> None:
    own = credentials.read_key(read_bundle(folder.bundle("plain")).key)
    now = datetime.datetime.now(datetime.UTC)
    assert post(folder, PULL, headers=signed(own)).status_code == 401  # a key, but not yet in
    with Control(folder) as control:
        control.admit_only(folder.keys())
    # Let in, and answered by Flower: the body names no node.
    assert "Invalid SuperNode" in post(folder, PULL, headers=signed(own)).text
    old = signed(own, now - datetime.timedelta(seconds=400))
    early = signed(own, now + datetime.timedelta(seconds=60))
    other = signed(credentials.make_key())
    mixed = {**other, "flwr-public-key": signed(own)["flwr-public-key"]}
    junk = {**signed(own), "flwr-signature": "no base64!"}
    bare = {**signed(own), "flwr-timestamp": "yesterday"}
    for headers in (old, early, other, mixed, junk, bare):
        found = post(folder, PULL, headers=headers)
        assert (found.status_code, found.text) == (401, "unauthorized")
    # Flower's node says what it was refused only where this is not 401.
    assert post(folder, "/v1/fleet/activate-node", headers=other).status_code == 412


def test_a_site_can_ask_whether_a_key_is_admitted(folder: FederationFolder) -> None:
    with Control(folder) as control:
        control.admit_only(folder.keys())
    bundle = read_bundle(folder.bundle("plain"))
    assert preflight.is_admitted(bundle, credentials.read_key(bundle.key))
    assert not preflight.is_admitted(bundle, credentials.make_key())
    away = Bundle("f", "plain", f"127.0.0.1:{free_port()}", bundle.ca)
    assert not preflight.is_admitted(away, credentials.read_key(bundle.key))


def test_a_body_that_is_too_large_or_of_no_length_is_refused_with_a_key_too(
    folder: FederationFolder,
) -> None:
    with Control(folder) as control:
        control.admit_only(folder.keys())
    own = credentials.read_key(read_bundle(folder.bundle("plain")).key)
    assert post(folder, PULL, headers=signed(own), content=bytes(70_000)).status_code == 413
    piece = post(folder, "/v1/fleet/push-object", headers=signed(own), content=bytes(5_400_000))
    assert piece.status_code == 413
    chunked = post(folder, PULL, headers=signed(own), content=iter([b"a"]))
    assert chunked.status_code == 411


def test_many_connections_of_one_address_leave_the_server_reachable_from_another(
    tmp_path: Path,
) -> None:
    made = server_app.make(tmp_path / "fed", ["plain"])
    limits = ConnectionLimits(per_address=8, anonymous=32, handshake=60, headers=60)
    door = SimpleNamespace(paths=set())
    table = Connections(limits)
    listening = socket.create_server(("127.0.0.1", made.read().port))
    context = tls_context(str(made.certificate), str(made.key))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"

    with (
        serving(lambda: [LimitedServer(Gate(app, door, table), listening, context, table)]),
        contextlib.ExitStack() as stack,
    ):
        opened = []
        for _ in range(100):
            one = socket.create_connection(("127.0.0.1", made.read().port), timeout=5)
            opened.append(stack.enter_context(one))
            with contextlib.suppress(OSError):  # closed by the server already
                one.sendall(b"\x16")  # the first byte of a handshake
        until = time.monotonic() + 30
        while len(closed := select.select(opened, [], [], 0)[0]) < 92:
            assert time.monotonic() < until, len(closed)
            time.sleep(0.05)
        with secure(made, "127.0.0.2") as honest:
            honest.sendall(b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert honest.recv(4096).startswith(b"HTTP/1.1 404")
        assert len(select.select(opened, [], [], 0)[0]) == 92  # the others are only slow


def test_a_handshake_that_is_not_finished_is_ended(folder: FederationFolder) -> None:
    with socket.create_connection(("127.0.0.1", folder.read().port)) as slow:
        slow.sendall(b"\x16")
        assert closed_after(slow, 10) < 5


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nX-A: "])
def test_headers_that_do_not_come_are_not_waited_for(folder: FederationFolder, sent: bytes) -> None:
    with secure(folder) as slow:
        if sent:
            slow.sendall(sent)
        assert closed_after(slow, 10) < 5


def test_headers_that_never_end_are_refused(folder: FederationFolder) -> None:
    with secure(folder) as greedy, contextlib.suppress(OSError):
        greedy.sendall(b"POST / HTTP/1.1\r\n")
        for _ in range(64):
            greedy.sendall(b"X-A: " + b"a" * 8192 + b"\r\n")
        assert b"400" in greedy.recv(64)


def test_a_second_request_that_trickles_is_not_waited_for(folder: FederationFolder) -> None:
    with secure(folder) as slow:
        slow.sendall(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"404" in slow.recv(4096)
        assert closed_after(slow, 10) < 5


def test_a_client_of_tls_1_2_is_refused(folder: FederationFolder) -> None:
    for port in (folder.read().port, folder.operator_port()):
        context = trust(folder)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    with secure(folder) as found:
        assert found.version() == "TLSv1.3"


@contextlib.contextmanager
def old_server(folder: FederationFolder) -> Iterator[int]:
    """A server with the right certificate that speaks TLS 1.2 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder.certificate, folder.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listening.accept()
                    with (
                        contextlib.suppress(OSError),
                        plain,
                        context.wrap_socket(plain, server_side=True) as one,
                    ):
                        one.recv(65536)
                        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_server_of_tls_1_2_is_refused_by_sites_and_by_flowers_clients(
    folder: FederationFolder,
) -> None:
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient

    secure_clients()
    with old_server(folder) as port:
        assert httpx.get(
            f"https://127.0.0.1:{port}", verify=trust(folder), trust_env=False
        ).is_success  # it serves those who accept it
        bundle = Bundle("f", "plain", f"127.0.0.1:{port}", folder.ca.read_bytes())
        with pytest.raises(Exception, match="TLS"):
            preflight.reach(bundle, 0)
        for root in (folder.ca.read_bytes(), str(folder.ca)):
            client = FleetHttpClient.from_server_address(f"127.0.0.1:{port}", False, root, [])
            with client, pytest.raises(httpx.ConnectError, match=r"(?i)version"):
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest())


def test_flowers_clients_use_no_proxy_of_the_environment(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supernode.fleet_http_client import FleetHttpClient

    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    secure_clients()
    root = folder.ca.read_bytes()
    with FleetHttpClient.from_server_address(
        f"127.0.0.1:{folder.read().port}", False, root, []
    ) as client:
        assert client._client._trust_env is False
        assert not client._client._mounts


def test_an_address_that_holds_most_connections_loses_its_oldest() -> None:
    table = Connections(ConnectionLimits(per_address=4, anonymous=6))
    closed: list[str] = []
    for number in range(4):
        peer = table.admit("10.0.0.1")
        assert peer
        peer.close = lambda number=number: closed.append(f"one {number}")
    assert table.admit("10.0.0.1") is None  # has all that an address may have
    assert table.admit("10.0.0.2")
    assert table.admit("10.0.0.2")
    assert table.admit("10.0.0.3")  # all places are taken: the busiest address makes room
    assert closed == ["one 0"]
    assert table.admit("10.0.0.4")
    assert closed == ["one 0", "one 1"]


def test_a_connection_that_authenticated_counts_as_its_callers() -> None:
    table = Connections(ConnectionLimits(per_address=2, anonymous=4, per_caller=3))
    mine = []
    for _ in range(3):  # one address, behind which several sites may be
        peer = table.admit("10.0.0.1")
        assert peer
        assert table.authenticated(peer, "plain")
        assert table.authenticated(peer, "plain")  # a second request counts once
        mine.append(peer)
    more = table.admit("10.0.0.1")
    assert more
    assert not table.authenticated(more, "plain")
    assert table.authenticated(more, "photo")
    table.remove(mine[0])
    table.remove(mine[0])  # gone already
    again = table.admit("10.0.0.1")
    assert again
    assert table.authenticated(again, "plain")


class State:
    """What a door asks of Flower's state."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def get_node_id_by_public_key(self, key: bytes) -> int:
        return 7

    def _cleanup_push_session(self, session: str, *, cleanup_messages: bool) -> None:
        assert cleanup_messages
        self.dropped.append(session)


def admitted(door: SiteDoor) -> str:
    headers = {k.encode(): v.encode() for k, v in signed(credentials.make_key()).items()}
    return door.caller(PULL, headers)


def message(source: int, reply: str) -> bytes:
    metadata = Metadata(src_node_id=source, reply_to_message_id=reply)
    return PushMessagesRequest(messages_list=[Message(metadata=metadata)]).SerializeToString()


def test_a_site_sends_answers_of_its_own_and_nothing_else() -> None:
    door = SiteDoor(State(), lambda: 1000)
    site = admitted(door)
    assert door.refuses(site, "/v1/fleet/push-messages", message(7, "asked")) == ""
    for body in (message(7, ""), message(1, "asked"), message(8, "asked"), b"\xff\xff"):
        assert door.refuses(site, "/v1/fleet/push-messages", body)


def test_an_answer_that_is_larger_than_the_state_is_refused_and_its_pieces_are_deleted() -> None:
    state = State()
    door = SiteDoor(state, lambda: 24_000 + DOCUMENT_BYTES)
    site, push = admitted(door), "/v1/fleet/push-object"
    answer = PushMessagesResponse(session_id="s").SerializeToString()
    door.served(site, PULL, b"a message")
    door.served(site, "/v1/fleet/push-messages", answer)
    sent = 0
    while door.limit(site, push, 5_000_000) >= 5_000_000:
        sent += 5_000_000
        assert sent < 15_000_000
    assert state.dropped == ["s"]
    assert door.limit(site, push, 5_000_000) < 5_000_000  # and it stays so
    door.served(site, PULL, b"")  # no message, no answer
    assert door.limit(site, push, 5_000_000) < 5_000_000
    door.served(site, PULL, b"the next message")
    assert door.limit(site, push, 5_000_000) >= 5_000_000


def test_the_caller_of_a_site_is_the_hash_of_its_key() -> None:
    key = credentials.make_key()
    headers = {k.encode(): v.encode() for k, v in signed(key).items()}
    found = SiteDoor(State(), lambda: 0).caller(PULL, headers)
    assert found == hashlib.sha256(credentials.public_bytes(key).strip()).hexdigest()


def test_a_body_that_stops_is_not_waited_for(tmp_path: Path) -> None:
    made = server_app.make(tmp_path / "fed", ["plain"])
    taken: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (event := await receive())["type"] == "http.request":
            taken.append(len(event["body"]))
        raise ConnectionError("the client is gone")

    door = SimpleNamespace(
        paths={"/a"}, caller=lambda path, headers: "me", limit=lambda *_: 100_000
    )
    table = Connections(LIMITS)
    listening = socket.create_server(("127.0.0.1", made.read().port))
    context = tls_context(str(made.certificate), str(made.key))
    with (
        serving(lambda: [LimitedServer(Gate(app, door, table), listening, context, table)]),
        secure(made) as slow,
    ):
        slow.sendall(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n0123456789")
        assert closed_after(slow, 20) < 10
    assert sum(taken) == 10


def test_the_operators_door_knows_runs_by_their_tokens(tmp_path: Path) -> None:
    state = SimpleNamespace(
        get_task_by_token=lambda token: SimpleNamespace(run_id=3) if token == "t" else None,
        cleanup_run=lambda run: cleaned.append(run),
    )
    cleaned: list[int] = []
    door = OperatorDoor(state, "secret", tmp_path / "superlink.db")
    end = "/v1/runtime/push-task-output"
    assert door.caller(end, {}) == ""
    assert door.caller(end, {b"flwr-task-token": b"guess"}) == ""
    door.served(door.caller(end, {b"flwr-task-token": b"t"}), end, b"")
    assert cleaned == [3]
