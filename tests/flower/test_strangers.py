"""Nobody gets in: each stranger is refused by real processes on the loopback."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography import x509

from fedbn.engines.flower import certificates, demo, serving
from fedbn.engines.flower.bundle import read_bundle
from fedbn.engines.flower.control import Control, runtime_client
from fedbn.engines.flower.folder import write_private
from fedbn.engines.flower.processes import Child, environment, free_port, listens
from fedbn.errors import FedbnError

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = demo.make(tmp_path_factory.mktemp("strangers") / "fed", ["plain"])
    with serving.server(made, "127.0.0.1"):
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


def test_a_site_with_the_wrong_authority_is_refused(folder, tmp_path) -> None:
    other = certificates.make_authority("other", 10)
    file = altered(folder, tmp_path, ca=certificates.certificate_bytes(other.certificate))
    code, text = join(file, tmp_path)
    assert code == 3, text
    assert "signed by another authority" in text


def test_a_wrong_host_name_is_refused(folder, tmp_path) -> None:
    port = folder.read().port
    file = altered(folder, tmp_path, address=f"ip6-localhost:{port}")
    if not listens("ip6-localhost", port):
        file = altered(folder, tmp_path, address=f"127.0.0.2:{port}")
        if not listens("127.0.0.2", port):
            pytest.skip("no second name for the loopback here")
    code, text = join(file, tmp_path)
    assert code == 3, text
    assert "its certificate is for" in text


def test_an_unregistered_key_is_refused(folder, tmp_path) -> None:
    stranger = certificates.ssh_private_bytes(certificates.make_key())
    code, text = join(altered(folder, tmp_path, key=stranger), tmp_path)
    assert code == 1, text
    assert "does not know the key of site plain" in text


def test_an_expired_certificate_is_refused_with_its_date(folder, tmp_path) -> None:
    expired = demo.make(tmp_path / "expired", ["plain"])
    authority = certificates.Authority(
        certificates.serialization.load_pem_private_key(expired.ca_key.read_bytes(), None),
        x509.load_pem_x509_certificate(expired.ca.read_bytes()),
    )
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    key, certificate = certificates.make_server_certificate(authority, ["127.0.0.1"], 30, begins)
    write_private(expired.key, certificates.private_bytes(key))
    expired.certificate.write_bytes(certificates.certificate_bytes(certificate))
    arguments = [str(expired.path), "127.0.0.1"]
    child = Child("fedbn.engines.flower.link", arguments, expired.home, expired.path / "log")
    try:
        begun = time.monotonic()
        while not listens("127.0.0.1", expired.read().port):
            assert time.monotonic() - begun < 60, child.said()
            time.sleep(0.05)
        code, text = join(expired.bundle("plain"), tmp_path)
    finally:
        child.end()
    assert code == 3, text
    assert "valid from 2020-01-01 to 2020-01-31 only" in text


def test_a_server_that_is_not_there_is_given_up_after_the_deadline(folder, tmp_path) -> None:
    file = altered(folder, tmp_path, address=f"127.0.0.1:{free_port()}")
    code, text = join(file, tmp_path, "--wait", "1")
    assert code == 1, text
    assert "no server at 127.0.0.1" in text


def test_a_bundle_open_to_others_is_warned_of(folder, tmp_path) -> None:
    file = tmp_path / "open.fedbn"
    shutil.copy(folder.bundle("plain"), file)
    file.chmod(0o644)
    bad = altered(folder, tmp_path, address=f"127.0.0.1:{free_port()}")
    bad.chmod(0o644)
    _, text = join(bad, tmp_path, "--wait", "0")
    assert "can be read by others" in text


def test_a_plain_client_is_refused(folder) -> None:
    port = folder.read().port
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{port}/v1/fleet/pull-messages", timeout=5)


def test_a_plain_node_never_gets_in(folder, tmp_path) -> None:
    port = folder.read().port
    flags = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--max-retries", "1"]
    flags += ["--isolation", "process", "--port", str(free_port())]
    node = Child("fedbn.engines.flower.node", flags, tmp_path, tmp_path / "log")
    try:
        begun = time.monotonic()
        while node.status() is None and time.monotonic() - begun < 60:
            time.sleep(0.1)
        assert node.status() not in (None, 0), node.said()
    finally:
        node.end()


def test_only_the_operator_starts_runs_and_takes_tasks(folder, tmp_path) -> None:
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    thief = demo.FederationFolder(tmp_path / "copy")
    shutil.copytree(folder.path, thief.path, ignore=shutil.ignore_patterns("*.db*"))
    write_private(thief.secret, b"a guess")
    with Control(thief) as control, pytest.raises(FedbnError, match="refused"):
        control.start_run()
    address = f"127.0.0.1:{folder.read().port}"
    client = runtime_client(address, folder.ca.read_bytes(), b"a guess")
    with client, pytest.raises(httpx.HTTPStatusError):
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))


def test_a_port_in_use_is_said(folder) -> None:
    with pytest.raises(FedbnError, match="is in use"), serving.server(folder, "127.0.0.1"):
        pass
