"""Nobody gets in: each stranger is refused by real processes on the loopback."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography import x509

from fedbn.errors import FedbnError
from fedbn.flower import credentials, server_app, site_app
from fedbn.flower.credentials import read_bundle
from fedbn.flower.federation_folder import write_private
from fedbn.flower.internals_node import Child, environment, free_port, listens, runtime_client
from fedbn.flower.internals_server import Control

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = server_app.make(tmp_path_factory.mktemp("strangers") / "fed", ["plain"])
    with server_app.server(made, "127.0.0.1"):
        yield made


def join(file: Path, tmp_path: Path, *flags: str) -> tuple[int, str]:
    command = ["federation", "join", str(file), "--data", "digits_mini", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "fedbn", *command, "--folder", str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(tmp_path / "flower"),
        check=False,
    )
    return done.returncode, done.stderr


def altered(folder, tmp_path: Path, **changes: object) -> Path:
    file = tmp_path / "altered.fedbn"
    write_private(file, replace(read_bundle(folder.bundle("plain")), **changes).to_bytes())
    return file


@pytest.mark.shows("F45")
def test_a_site_with_the_wrong_authority_is_refused(folder, tmp_path) -> None:
    other = credentials.make_authority("other", 10)
    file = altered(folder, tmp_path, ca=credentials.certificate_bytes(other.certificate))
    code, text = join(file, tmp_path)
    assert code == 3, text
    assert "signed by another authority" in text


@pytest.mark.shows("F48")
def test_a_wrong_host_name_is_refused(folder, tmp_path) -> None:
    with at_another_address(folder, tmp_path) as file:
        code, text = join(file, tmp_path)
    assert code == 3, text
    assert "certificate is for 127.0.0.1, localhost, ::1, not for 127.0.0.2" in text


@contextmanager
def at_another_address(folder, tmp_path: Path) -> Iterator[Path]:
    """The same server, certificate and keys at an address that the certificate does not name."""
    port = free_port()
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", port))
    except OSError:
        pytest.skip("this machine has no second address on the loopback")
    moved = server_app.FederationFolder(tmp_path / "moved")
    shutil.copytree(folder.path, moved.path, ignore=shutil.ignore_patterns("*.db*", "*.log"))
    text = moved.info_file.read_text().replace(str(folder.read().port), str(port))
    moved.info_file.write_text(text)
    with link(moved, "127.0.0.2"):
        yield altered(folder, tmp_path, address=f"127.0.0.2:{port}")


@contextmanager
def link(folder, host: str = "127.0.0.1") -> Iterator[Child]:
    """Flower's server alone, where its certificate is not in order."""
    arguments = [str(folder.path), host]
    child = Child("fedbn.flower.internals_server", arguments, folder.home, folder.path / "log")
    try:
        begun = time.monotonic()
        while not listens(host, folder.read().port):
            assert child.status() is None, child.said()
            assert time.monotonic() - begun < 60, child.said()
            time.sleep(0.05)
        yield child
    finally:
        child.end()


def node_says(file: Path, tmp_path: Path, words: tuple[str, ...]) -> str:
    """Start Flower's own node, without looking at the server first; wait for one of the words."""
    node = site_app._start_node(read_bundle(file), tmp_path / "node", b"s" * 32, free_port())
    try:
        begun = time.monotonic()
        while not any(word in node.said() for word in words) and node.status() is None:
            assert time.monotonic() - begun < 60, node.said()
            time.sleep(0.05)
        return node.said()
    finally:
        node.end()


@pytest.mark.shows("F47")
def test_an_unregistered_key_is_refused(folder, tmp_path) -> None:
    stranger = credentials.ssh_private_bytes(credentials.make_key())
    code, text = join(altered(folder, tmp_path, key=stranger), tmp_path)
    assert code == 1, text
    assert "does not know the key of site plain" in text


@contextmanager
def expired(tmp_path: Path) -> Iterator[Path]:
    """A server whose certificate ended in 2020; gives a site's bundle."""
    folder = server_app.make(tmp_path / "expired", ["plain"])
    authority = credentials.Authority(
        credentials.serialization.load_pem_private_key(folder.ca_key.read_bytes(), None),
        x509.load_pem_x509_certificate(folder.ca.read_bytes()),
    )
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    key, certificate = credentials.make_server_certificate(authority, ["127.0.0.1"], 30, begins)
    write_private(folder.key, credentials.private_bytes(key))
    folder.certificate.write_bytes(credentials.certificate_bytes(certificate))
    with link(folder):
        yield folder.bundle("plain")


@pytest.mark.shows("F46")
def test_an_expired_certificate_is_refused_with_its_date(tmp_path) -> None:
    with expired(tmp_path) as file:
        code, text = join(file, tmp_path)
    assert code == 3, text
    assert "valid from 2020-01-01 to 2020-01-31 only" in text


REFUSED = ("certificate verify failed", "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.shows("F45")
def test_flowers_own_node_refuses_the_wrong_authority(folder, tmp_path) -> None:
    other = credentials.make_authority("other", 10)
    file = altered(folder, tmp_path, ca=credentials.certificate_bytes(other.certificate))
    said = node_says(file, tmp_path, REFUSED)
    assert any(word in said for word in REFUSED), said
    assert "SuperNode ID" not in said


@pytest.mark.shows("F48")
def test_flowers_own_node_refuses_the_wrong_host(folder, tmp_path) -> None:
    with at_another_address(folder, tmp_path) as file:
        said = node_says(file, tmp_path, REFUSED)
    assert any(word in said for word in REFUSED), said
    assert "SuperNode ID" not in said


@pytest.mark.shows("F46")
def test_flowers_own_node_refuses_an_expired_certificate(tmp_path) -> None:
    with expired(tmp_path) as file:
        said = node_says(file, tmp_path, REFUSED)
    assert any(word in said for word in REFUSED), said
    assert "SuperNode ID" not in said


@pytest.mark.shows("F59")
def test_a_server_that_is_not_there_is_given_up_after_the_deadline(folder, tmp_path) -> None:
    file = altered(folder, tmp_path, address=f"127.0.0.1:{free_port()}")
    code, text = join(file, tmp_path, "--wait", "1")
    assert code == 1, text
    assert "no server at 127.0.0.1" in text


@pytest.mark.shows("F49")
def test_a_bundle_open_to_others_is_warned_of(folder, tmp_path) -> None:
    file = tmp_path / "open.fedbn"
    shutil.copy(folder.bundle("plain"), file)
    file.chmod(0o644)
    bad = altered(folder, tmp_path, address=f"127.0.0.1:{free_port()}")
    bad.chmod(0o644)
    _, text = join(bad, tmp_path, "--wait", "0")
    assert "can be read by others" in text


@pytest.mark.shows("F44")
def test_a_plain_client_is_refused(folder) -> None:
    place = f"127.0.0.1:{folder.read().port}/v1/fleet/pull-messages"
    with pytest.raises(httpx.RemoteProtocolError, match="disconnected without sending a response"):
        httpx.post(f"http://{place}", timeout=30)
    trust = ssl.create_default_context(cadata=folder.ca.read_text())
    assert httpx.post(f"https://{place}", verify=trust, timeout=30).is_client_error  # it serves


@pytest.mark.shows("F44")
def test_a_plain_node_never_gets_in(folder, tmp_path) -> None:
    port = folder.read().port
    flags = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--max-retries", "1"]
    flags += ["--isolation", "process", "--port", str(free_port())]
    node = Child("fedbn.flower.internals_node", flags, tmp_path, tmp_path / "log")
    try:
        begun = time.monotonic()
        while node.status() is None and time.monotonic() - begun < 60:
            time.sleep(0.1)
        assert node.status() not in (None, 0), node.said()
        assert "Server disconnected without sending a response" in node.said()
        assert "SuperNode ID" not in node.said()
    finally:
        node.end()


def test_only_the_operator_starts_runs_and_takes_tasks(folder, tmp_path) -> None:
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    thief = server_app.FederationFolder(tmp_path / "copy")
    shutil.copytree(folder.path, thief.path, ignore=shutil.ignore_patterns("*.db*"))
    write_private(thief.secret, b"a guess")
    with Control(thief) as control, pytest.raises(FedbnError, match="refused"):
        control.start_run()
    address = f"127.0.0.1:{folder.operator_port()}"
    client = runtime_client(address, folder.ca.read_bytes(), b"a guess")
    with client, pytest.raises(httpx.HTTPStatusError):
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))


@pytest.mark.shows("F58")
def test_a_port_in_use_is_said(folder) -> None:
    with pytest.raises(FedbnError, match="is in use"), server_app.server(folder, "127.0.0.1"):
        pass
