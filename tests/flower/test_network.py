"""Networks that break, crawl and are listened to, and clocks that are wrong; real processes."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flower_processes import Federation, finished, in_embedded
from flower_proxy import Wire
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedbn.flower.credentials import public_bytes, read_bundle
from fedbn.flower.federation_folder import write_private
from fedbn.flower.internals_node import environment
from fedbn.flower.internals_server import Control

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


class Wired(Federation):
    """A federation whose site `photo` is behind a wire of ours."""

    def __init__(self, root: Path, stack: ExitStack):
        super().__init__(root, stack, ("plain",))
        self.wire = Wire(self.folder.read().port)
        stack.callback(self.wire.close)
        bundle = read_bundle(self.folder.bundle("photo"))
        self.behind = root / "photo.fedbn"
        address = f"127.0.0.1:{self.wire.port}"
        write_private(self.behind, replace(bundle, address=address).to_bytes())
        self.start_site("photo", bundle=self.behind)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with ExitStack() as stack:
        yield Wired(tmp_path_factory.mktemp("network"), stack)


@pytest.mark.shows("F42")
def test_a_slow_link_gives_the_same_numbers_and_its_time_is_shown(federation: Wired) -> None:
    file, raw = federation.experiment(2)
    federation.wire.bytes_a_second = 400_000
    try:
        finished(federation.run(file, "slow"))
    finally:
        federation.wire.bytes_a_second = None
    assert federation.numbers("slow") == in_embedded(raw)
    for row in federation.rounds("slow"):
        assert row["beyond_training"] > (row["bytes_down"] + row["bytes_up"]) / 2 / 400_000


@pytest.mark.shows("F41")
def test_a_network_cut_for_a_minute_has_no_double_effect(federation: Wired) -> None:
    file, raw = federation.experiment(8)
    process = federation.run(file, "cut")
    federation.wait_for_round("cut", 2, process)
    federation.wire.cut()
    begun = time.monotonic()
    federation.wait_for(lambda: time.monotonic() - begun > 60, process)
    federation.wire.mend()
    text = finished(process)
    rows = federation.rounds("cut")
    assert [row["round"] for row in rows] == list(range(1, 9))
    assert [row["sources"].get("photo") for row in rows] == ["fresh", *["disk"] * 7], text
    assert federation.numbers("cut") == in_embedded(raw)


@pytest.mark.shows("F50")
def test_what_was_overheard_is_worth_nothing_when_sent_again(federation: Wired) -> None:
    file, raw = federation.experiment(2)
    finished(federation.run(file, "overheard"))
    recorded = [bytes(one) for one in federation.wire.sent if len(one) > 1000]
    assert recorded
    before = nodes(federation)
    for one in recorded:
        assert b"flwr" not in one
        with socket.create_connection(("127.0.0.1", federation.folder.read().port)) as again:
            again.settimeout(10)
            again.sendall(one)
            answer = drained(again)
        # the server's half of a new handshake, or an alert; never an answer to what is inside
        assert answer[:1] in (b"", b"\x15", b"\x16"), answer[:20]
        assert b"HTTP" not in answer
    assert nodes(federation) == before
    finished(federation.run(file, "after"))
    assert federation.numbers("after") == federation.numbers("overheard") == in_embedded(raw)


def nodes(federation: Wired) -> list[tuple[int, str]]:
    with Control(federation.folder) as control:
        return sorted((node.node_id, node.last_activated_at) for node in control.nodes())


def drained(connection: socket.socket) -> bytes:
    found = b""
    try:
        while data := connection.recv(65_536):
            found += data
    except OSError:
        pass
    return found


@pytest.mark.shows("F50")
def test_a_signed_request_is_refused_when_it_is_old(federation: Wired, monkeypatch) -> None:
    bundle = read_bundle(federation.folder.bundle("plain"))
    key = load_ssh_private_key(bundle.key, None)
    sign = node_auth_http_interceptor.NodeAuthHttpInterceptor(key, key.public_key())
    client = FleetHttpClient.from_server_address(
        bundle.address,
        False,
        bundle.ca,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), sign],
    )
    request = ActivateNodeRequest(public_key=public_bytes(key), heartbeat_interval=30)
    with client:
        with pytest.raises(httpx.HTTPStatusError) as fresh:
            client.ActivateNode(request)
        assert fresh.value.response.text != "unauthorized"  # known, but connected already
        old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=400)
        monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: old)
        with pytest.raises(httpx.HTTPStatusError) as replayed:
            client.ActivateNode(request)
        assert replayed.value.response.text == "unauthorized"


@pytest.mark.shows("F51")
@pytest.mark.parametrize(("seconds", "side"), [(60, "ahead of"), (-3600, "behind")])
def test_a_clock_that_is_wrong_is_named(federation: Wired, tmp_path, seconds, side) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import time\n_time = time.time\ntime.time = lambda: _time() + {seconds}\n"
    )
    site = federation.start_site("photo", bundle=federation.behind, path=tmp_path)
    begun = time.monotonic()
    while site.status() is None:
        assert time.monotonic() - begun < 120
        time.sleep(0.05)
    assert site.status() == 3
    assert f"s {side} the server's: its messages would be refused" in site.said()


@pytest.mark.shows("F43")
def test_a_model_larger_than_a_message_may_be_passes_in_pieces(federation: Wired) -> None:
    """Flower cuts arrays into pieces of 5 MiB; this model needs several."""
    file, raw = federation.experiment(1, steps=3)
    wide = {**raw, "model": {"name": "small_cnn", "args": {"width": 160}}}
    finished(federation.run(file, "wide", "--set", "model.args={width=160}"))
    assert federation.numbers("wide") == in_embedded(wide)
    assert federation.rounds("wide")[0]["bytes_up"] > 2 * 5 * 2**20


ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket() as any:  # SIOCSIFFLAGS: the loopback of a new network is down
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 0x41))
os.execv(sys.executable, [sys.executable, "-m", "fedbn", "federation", "demo"])
"""


@pytest.mark.shows("F60")
def test_the_demo_needs_no_network_but_the_loopback(tmp_path) -> None:
    unshare = ["unshare", "--map-root-user", "--net"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system lets no process have a network of its own")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "round 3/3" in done.stderr
