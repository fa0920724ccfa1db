"""A wire that a test can cut, slow down and listen to: a TCP relay on the loopback."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_PIECE = 16_384


class Wire:
    """Relays to a port.

    Attributes:
        port: Where to connect.
        bytes_a_second: How fast data passes in each direction; None for as fast as it can.
        sent: What clients sent, connection by connection; as it is on the wire, that is in TLS.
    """

    def __init__(self, target: int):
        self._target = ("127.0.0.1", target)
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bytes_a_second: float | None = None
        self.sent: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing pass any more: connections hang, as when a cable is pulled."""
        self._open.clear()

    def mend(self) -> None:
        """Let data pass again; what hung is broken off, as a router does after a while."""
        held, self._sockets = self._sockets, []
        for each in held:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.set()

    def close(self) -> None:
        """End the relay."""
        self._listener.close()
        self.mend()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            self._sockets.append(client)
            self._open.wait()
            with suppress(OSError), socket.create_connection(self._target) as server:
                self._sockets.append(server)
                self.sent.append(bytearray())
                up = threading.Thread(target=self._relay, args=(client, server, self.sent[-1]))
                up.start()
                self._relay(server, client, None)
                up.join()

    def _relay(self, source: socket.socket, sink: socket.socket, record: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                self._open.wait()
                if self.bytes_a_second:
                    time.sleep(len(data) / self.bytes_a_second)
                if record is not None:
                    record += data
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
