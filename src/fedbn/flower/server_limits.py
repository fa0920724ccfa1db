"""Limits of the server's ports: connections, time and bytes, all checked before a body is read.

Flower reads the whole body of a request before it looks at who sent it, and limits neither bodies
nor connections. `LimitedServer` limits connections before the TLS handshake. `Gate` authenticates
a request by its headers, and limits its size, before Flower reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("fedbn.server")

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PEER = "fedbn.peer"
# Files that the server needs besides connections: database, log, libraries.
_OTHER_FILES = 128
_REPORT_SECONDS = 5.0
# A client that is still sending gets its refusal only if the server goes on reading for a moment.
_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 4_000_000


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a port holds, and how long a client may take."""

    per_address: int = 64  # connections of one address that did not authenticate yet
    anonymous: int = 512  # all connections that did not authenticate yet
    per_caller: int = 32  # connections of one site, or of the operator
    handshake: float = 10.0  # seconds for the TLS handshake
    headers: float = 10.0  # seconds until the headers of a request are complete
    body_pause: float = 60.0  # seconds between two parts of a body
    body_rate: float = 4096.0  # bytes per second that a body has to arrive with, on the whole
    bodies: int = 4  # bodies of one caller that are read at the same time


@dataclass(eq=False)
class Peer:
    """One connection: its address, and its caller once a request was authenticated."""

    address: str
    caller: str = ""
    close: Callable[[], object] = lambda: None


class Connections:
    """The open connections of a port, counted by address and by caller."""

    def __init__(self, limits: ConnectionLimits):
        self.limits = limits
        self.refused = 0
        self._anonymous: dict[Peer, None] = {}  # oldest first
        self._by_address: Counter[str] = Counter()
        self._by_caller: Counter[str] = Counter()
        self._most = _most_connections()

    def admit(self, address: str) -> Peer | None:
        """Return a place for a new connection, or None where there is none.

        Where all places are taken, the address that has most of them loses its oldest connection.
        """
        room = min(self.limits.anonymous, self._most // 2)
        if self._by_address[address] >= min(self.limits.per_address, room):
            self.refused += 1
            return None
        if len(self._anonymous) >= room:
            busiest, most = self._by_address.most_common(1)[0]
            if most <= self._by_address[address] + 1:
                self.refused += 1
                return None
            oldest = next(peer for peer in self._anonymous if peer.address == busiest)
            self.remove(oldest)
            oldest.close()
        peer = Peer(address)
        self._anonymous[peer] = None
        self._by_address[address] += 1
        return peer

    def authenticated(self, peer: Peer, caller: str) -> bool:
        """Count a connection as its caller's; False where the caller has too many."""
        if peer.caller == caller:
            return True
        known = self._by_caller[caller]
        if known >= self.limits.per_caller or self._by_caller.total() >= self._most // 2:
            return False
        self.remove(peer)
        peer.caller = caller
        self._by_caller[caller] += 1
        return True

    def remove(self, peer: Peer) -> None:
        """Forget a connection that is closed."""
        if peer.caller:
            self._by_caller[peer.caller] -= 1
            self._by_caller += Counter()  # drops callers that have none
            peer.caller = ""
        elif peer in self._anonymous:
            del self._anonymous[peer]
            self._by_address[peer.address] -= 1
            if not self._by_address[peer.address]:
                del self._by_address[peer.address]


def _most_connections() -> int:
    """Raise the limit of open files as far as allowed; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    found = 65536 if soft == resource.RLIM_INFINITY else soft
    return max(found - _OTHER_FILES, 2)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the server's TLS settings: TLS 1.3 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


class _Connection(H11Protocol):
    """An HTTP connection that is closed where no request arrives in time."""

    def __init__(self, server: LimitedServer, peer: Peer):
        state = {**server.lifespan.state, _PEER: peer}
        super().__init__(server.config, server.server_state, state)
        self._table, self._peer = server.table, peer
        self._idle_since = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer.close = transport.abort
        self._idle_since = self.loop.time()
        self._watch(self._table.limits.headers)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._table.remove(self._peer)
        super().connection_lost(exc)

    def _watch(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """Close a connection without a complete request; a request under way is the gate's."""
        at_work = self.cycle is not None and not self.cycle.response_complete
        left = self._idle_since + self._table.limits.headers - self.loop.time()
        if not at_work and left <= 0:
            self.transport.abort()
        else:
            self._watch(self._table.limits.headers if at_work else max(left, 0.01))


class LimitedServer(uvicorn.Server):
    """A uvicorn server that accepts connections itself, to limit them before the TLS handshake."""

    def __init__(
        self, app: App, listener: socket.socket, context: ssl.SSLContext, table: Connections,
        **options: Any,
    ):  # fmt: skip
        config = uvicorn.Config(
            app, http="h11", ws="none", access_log=False, timeout_graceful_shutdown=5, **options
        )
        super().__init__(config)
        self.table = table
        self._listener, self._context = listener, context
        self._tasks: set[asyncio.Task[None]] = set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to whoever runs the server."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup(sockets=[])
        if self.started:
            self._listener.setblocking(False)
            self._listener.listen(1024)
            self._keep(self._accept())
            self._keep(self._report())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and close those that are open."""
        for task in list(self._tasks):
            task.cancel()
        await super().shutdown([self._listener])

    def _keep(self, job: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as error:  # no free descriptor, or the client is gone already
                log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            peer = self.table.admit(str(address[0]))
            if peer is None:
                connection.close()
            else:
                peer.close = self._keep(self._connect(connection, peer)).cancel
            await asyncio.sleep(0)  # connections that are ready must not keep all others waiting

    async def _connect(self, connection: socket.socket, peer: Peer) -> None:
        """Shake hands; from then on the connection's own protocol serves it."""
        limits = self.table.limits
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self, peer),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=limits.handshake,
                ssl_shutdown_timeout=5.0,
            )
        except (OSError, asyncio.CancelledError):  # no TLS, too slow, gone, or closed by us
            self.table.remove(peer)
            connection.close()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if self.table.refused:
                log.warning("%d connections were refused: too many are open", self.table.refused)
                self.table.refused = 0


class Door(Protocol):
    """What a port serves, and to whom."""

    paths: frozenset[str]  # of POST requests; all else is not found

    def caller(self, path: str, headers: Mapping[bytes, bytes]) -> str:
        """Return who sends a request, by its headers alone; empty where nobody may send it."""
        ...

    def limit(self, caller: str, path: str, size: int) -> int:
        """Return how many bytes the body may have, and count the body's size."""
        ...

    def refuses(self, caller: str, path: str, body: bytes) -> str:
        """Return why a body that was read is refused; empty where it is not."""
        ...

    def served(self, caller: str, path: str, content: bytes) -> None:
        """Take note of what a request was answered with, where `Gate.notes` names its path."""
        ...


@dataclass
class Gate:
    """An ASGI application in front of Flower's.

    A request is authenticated by its headers and its size is checked before its body is read.
    """

    app: App
    door: Door
    table: Connections
    reads: tuple[str, ...] = ()  # paths whose bodies `Door.refuses` looks at
    own: tuple[str, ...] = ()  # paths that are answered here, to callers that are known
    # statuses for callers that are not known, where a path needs another one than 401
    unknown: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # paths whose answers `Door.served` looks at
    _bodies: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _reported: dict[str, float] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        peer: Peer = scope["state"].pop(_PEER)
        path, headers = scope["path"], dict(scope["headers"])
        if scope["method"] != "POST" or path not in self.door.paths:
            await self._answer(receive, send, 404, "not found")
            return
        if len(headers) != len(scope["headers"]):
            await self._answer(receive, send, 400, "a header is there twice")
            return
        caller = await asyncio.to_thread(self.door.caller, path, headers)
        if not caller:
            await self._answer(receive, send, self.unknown.get(path, 401), "unauthorized")
            return
        if not self.table.authenticated(peer, caller):
            self._report(caller, "too many connections")
            await self._answer(receive, send, 429, "too many connections")
            return
        if path in self.own:
            await self._answer(receive, send, 200, "admitted")
            return
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            await self._answer(receive, send, 411, "the length of the body is missing")
            return
        size = int(length)
        if size > (most := self.door.limit(caller, path, size)):
            self._report(caller, f"{path}: {size:,} bytes, at most {most:,} are expected")
            await self._answer(receive, send, 413, f"at most {most} bytes are expected")
            return
        await self._serve(scope, receive, send, caller, size)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, caller: str, size: int
    ) -> None:
        path, served = scope["path"], list[bytes]()
        limits = self.table.limits
        slot = self._bodies.setdefault(caller, asyncio.Semaphore(limits.bodies))
        async with slot:  # until then the body waits at the sender
            body = _limited(receive, limits, size)
            if path in self.reads:
                content = await _whole(body)
                if why := self.door.refuses(caller, path, content):
                    self._report(caller, f"{path}: {why}")
                    await self._answer(receive, send, 403, why)
                    return
                body = _again(content, receive)

            async def noted(event: Event) -> None:
                served.append(event.get("body", b""))
                await send(event)

            await self.app(scope, body, noted if path in self.notes else send)
        if path in self.notes:
            await asyncio.to_thread(self.door.served, caller, path, b"".join(served))

    async def _answer(self, receive: Receive, send: Send, status: int, text: str) -> None:
        """Answer without Flower, and close the connection; what still arrives is thrown away."""
        content = text.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                drained = 0
                while drained < _DRAIN_BYTES:
                    event = await receive()
                    drained += len(event.get("body", b""))
                    if event["type"] != "http.request" or not event.get("more_body"):
                        break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _report(self, caller: str, text: str) -> None:
        """Log a refusal, at most once in a while for each caller."""
        now = time.monotonic()
        if now - self._reported.get(caller, -_REPORT_SECONDS) >= _REPORT_SECONDS:
            self._reported[caller] = now
            log.warning("refused a request of %s: %s", caller[:16], text)


def _limited(receive: Receive, limits: ConnectionLimits, size: int) -> Receive:
    """Receive a body that has to arrive in time; a slow one counts as a client that is gone."""
    until = time.monotonic() + limits.body_pause + size / limits.body_rate
    complete = False

    async def arriving() -> Event:
        nonlocal complete
        if complete:  # from then on this waits for the client to go away
            return await receive()
        seconds = min(limits.body_pause, until - time.monotonic())
        try:
            event = await asyncio.wait_for(receive(), max(seconds, 0))
        except TimeoutError:
            return {"type": "http.disconnect"}
        complete = not event.get("more_body", False)
        return event

    return arriving


async def _whole(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(parts)


def _again(content: bytes, receive: Receive) -> Receive:
    """Receive a body that was read already."""
    events: Iterator[Event] = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def arriving() -> Event:
        event = next(events, None)
        return event if event is not None else await receive()

    return arriving


async def serve(servers: Iterable[LimitedServer], stop: asyncio.Event) -> None:
    """Serve until told to stop, or until one of the servers ends."""
    several = [*servers]
    running = [asyncio.create_task(server.serve()) for server in several]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([*running, stopping], return_when=asyncio.FIRST_COMPLETED)
    for server in several:
        server.should_exit = True
    stopping.cancel()
    await asyncio.gather(*running)
