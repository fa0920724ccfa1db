"""Attacks on a real server process on the loopback; each is bounded and ends by itself."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_processes import Federation, finished
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedbn.flower import credentials, server_app
from fedbn.flower.credentials import read_bundle
from fedbn.flower.federation_folder import DOCUMENT_BYTES, FederationFolder
from fedbn.flower.internals_node import Child, quicken, secure_clients
from fedbn.flower.policy import Policy
from fedbn.flower.preflight import reach
from fedbn.flower.site import Site
from fedbn.flower.site_job import SiteOptions

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Flower and Alembic
]

MEGABYTE = 1_000_000


def memory(process: int, what: str = "VmRSS") -> int:
    """Bytes of memory that a process has now, or (VmHWM) had at most."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{process} has no {what}")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[FederationFolder, Child]]:
    folder = server_app.make(tmp_path / "fed", ["plain"])
    with server_app.server(folder, "127.0.0.1") as child:
        yield folder, child


def connected(folder: FederationFolder, source: str = "127.0.0.1") -> ssl.SSLSocket:
    place = ("127.0.0.1", folder.read().port)
    plain = socket.create_connection(place, timeout=10, source_address=(source, 0))
    trust = ssl.create_default_context(cafile=str(folder.ca))
    return trust.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_body_of_1_5_gigabytes_without_a_key_costs_no_memory(served) -> None:
    folder, child = served
    before, begun = memory(child.pid, "VmHWM"), time.monotonic()
    answer = b""
    with connected(folder) as stranger:
        stranger.sendall(
            b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: a\r\n"
            b"Content-Type: application/protobuf\r\nContent-Length: 1500000000\r\n\r\n"
        )
        answer = stranger.recv(4096)
        with contextlib.suppress(OSError):
            for _ in range(1500):
                stranger.sendall(bytes(MEGABYTE))
    assert answer.startswith(b"HTTP/1.1 401")
    assert time.monotonic() - begun < 30
    assert memory(child.pid, "VmHWM") - before < 50 * MEGABYTE


def test_threads_that_open_connections_leave_the_server_reachable_for_a_site(served) -> None:
    folder, child = served
    bundle, until = read_bundle(folder.bundle("plain")), time.monotonic() + 20
    place = ("127.0.0.1", folder.read().port)

    def attack(first: bytes) -> None:
        opened: list[socket.socket] = []
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                one = socket.create_connection(place, 1, source_address=("127.0.0.2", 0))
                opened.append(one)
                one.sendall(first)
            if len(opened) > 100:
                opened.pop(0).close()
            time.sleep(0.002)
        for one in opened:
            one.close()

    threads = [threading.Thread(target=attack, args=(b"\x16"[: n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(3)
        times = []
        while time.monotonic() < until - 2:
            begun = time.monotonic()
            reach(bundle, 0)
            times.append(time.monotonic() - begun)
            time.sleep(0.2)
    finally:
        for thread in threads:
            thread.join(60)
    open_files = len(list(Path(f"/proc/{child.pid}/fd").iterdir()))
    assert len(times) > 10
    assert max(times) < 5
    assert open_files < 300
    assert child.status() is None


def content(size: int) -> RecordDict:
    """An answer with a state of a size; no two of its pieces are the same."""
    piece = 5_000_000
    data = b"".join(bytes([n % 251 + 1]) * piece for n in range(size // piece))
    data = b"".join(n.to_bytes(8, "big") + data[n * piece + 8 : (n + 1) * piece]
                    for n in range(size // piece))  # fmt: skip
    return RecordDict(
        {"shared": ArrayRecord({"state": Array("uint8", (len(data),), "safetensors", data)})}
    )


class HostileSite(threading.Thread):
    """An admitted site that takes part, and then answers far more than was asked for."""

    def __init__(self, folder: FederationFolder, name: str, size: int):
        super().__init__()
        self.folder, self.site, self.size = folder, name, size
        self.pushed, self.refused, self.stopping = 0, "", False

    def run(self) -> None:
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
        from flwr.supernode.fleet_http_connection import http_request_response

        quicken()
        secure_clients()
        bundle = read_bundle(self.folder.bundle(self.site))
        key = credentials.read_key(bundle.key)
        alone = Policy(approval=False, min_sites=1)  # the other site may go on without this one
        options = SiteOptions(self.site, {"name": "digits_mini"}, policy=alone)
        honest = Site(options)
        with http_request_response(
            bundle.address, False, bundle.ca, (key, key.public_key()), max_retries=2
        ) as (_, receive, send, _, _, pull, push, confirm):
            while not self.stopping:
                if (given := receive()) is None:
                    time.sleep(0.1)
                    continue
                head, tree = given
                run = head.metadata.run_id
                asked = pull_and_inflate_object_from_tree(
                    tree, lambda id, run=run: pull(run, id), lambda id, run=run: confirm(run, id),
                    return_type=Message,
                )  # fmt: skip
                asked.metadata.__dict__["_message_id"] = head.metadata.message_id
                training = "shared" in asked.content
                answer = content(self.size) if training else honest.answer(
                    asked.content, RecordDict()
                )  # fmt: skip
                message = Message(answer, reply_to=asked)
                message.metadata.__dict__["_message_id"] = message.object_id
                objects = {id: one.deflate() for id, one in get_all_nested_objects(message).items()}
                wanted, session = send(message, get_object_tree(message), 0.0)
                try:
                    for id in wanted:
                        push(run, session, id, objects[id])
                        self.pushed += len(objects[id]) if training else 0
                except Exception as error:
                    self.refused = str(error)


def test_an_answer_of_300_megabytes_is_refused_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    with ExitStack() as stack:
        federation = Federation(tmp_path, stack, ("photo",))
        folder = federation.folder
        hostile = HostileSite(folder, "plain", 300 * MEGABYTE)
        hostile.start()
        try:
            federation.wait_until_connected("photo", "plain")
            file, _ = federation.experiment(3)
            process = federation.run(file, "attacked", "--json")
            peak = most = 0
            before = memory(federation.link.pid, "VmHWM")
            while process.poll() is None:
                with contextlib.suppress(OSError, AssertionError):
                    peak = max(peak, memory(process.pid, "VmHWM"))
                most = max(most, memory(federation.link.pid, "VmHWM"))
                time.sleep(0.1)
            text = process.communicate()[0]
        finally:
            hostile.stopping = True
            hostile.join(60)
        assert "plain is left out: its answer did not arrive completely" in text, text
        assert "413" in hostile.refused
        assert hostile.pushed < 3 * 2 * (DOCUMENT_BYTES + 4 * MEGABYTE)  # three rounds
        assert peak < 800 * MEGABYTE
        assert most - before < 300 * MEGABYTE, (before, most)
        wait_for_shrink(folder)


def wait_for_shrink(folder: FederationFolder) -> None:
    begun = time.monotonic()
    while folder.database.stat().st_size > 2 * MEGABYTE:
        assert time.monotonic() - begun < 30, folder.database.stat().st_size
        time.sleep(0.1)
    assert bodies(folder) == 0


def bodies(folder: FederationFolder) -> int:
    with contextlib.closing(sqlite3.connect(folder.database, timeout=10)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        (table,) = [name for name in names if name in ("objects", "stored_object")]
        return int(database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_the_database_keeps_no_messages_of_a_run_that_is_over(tmp_path: Path) -> None:
    with ExitStack() as stack:
        federation = Federation(tmp_path, stack)
        file, _ = federation.experiment(2)
        finished(federation.run(file, "short"))
        wait_for_shrink(federation.folder)
