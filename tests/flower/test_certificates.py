"""Keys, certificates and bundles: made right, private, and nothing of one site in another's."""

from __future__ import annotations

import datetime
import io
import os
import stat
import zipfile
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.errors import ConfigError, FedbnError
from fedbn.flower import credentials, internals_server, preflight, server_app
from fedbn.flower.credentials import read_bundle
from fedbn.flower.federation_folder import FederationFolder, write_private


@pytest.fixture
def fed(tmp_path) -> FederationFolder:
    folder = FederationFolder(tmp_path / "fed")
    folder.create("test", ["nyu", "usm"], "server.example", 9099)
    return folder


def test_private_files_are_private(fed: FederationFolder) -> None:
    assert len(fed.private_files) == 5
    for file in fed.private_files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_the_database_with_the_server_apps_token_is_private(
    fed: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(fed.path.stat().st_mode) == 0o700

    async def run(folder: FederationFolder, host: str) -> None:
        folder.database.write_bytes(b"as SQLite would")

    monkeypatch.setattr(internals_server, "_serve", run)
    monkeypatch.setattr(internals_server, "follow", lambda parent: None)
    before = os.umask(0o022)
    try:
        internals_server.main(str(fed.path), "127.0.0.1", "1")
    finally:
        os.umask(before)
    assert fed.database in fed.private_files
    assert preflight.private(fed.database)[0]
    fed.database.chmod(0o644)
    assert (False, f"superlink.db can be read by others: `chmod 600 {fed.database}`") in [
        *preflight.check_folder(fed)
    ]


def test_the_servers_certificate_is_signed_and_names_its_hosts(fed: FederationFolder) -> None:
    authority = x509.load_pem_x509_certificate(fed.ca.read_bytes())
    certificate = x509.load_pem_x509_certificate(fed.certificate.read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert certificate.not_valid_after_utc > datetime.datetime.now(datetime.UTC)


def test_a_bundle_has_its_own_key_and_no_other(fed: FederationFolder) -> None:
    keys = {}
    for site in ("nyu", "usm"):
        bundle = read_bundle(fed.bundle(site))
        assert (bundle.site, bundle.address) == (site, "server.example:9099")
        assert bundle.ca == fed.ca.read_bytes()
        key = load_ssh_private_key(bundle.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        keys[credentials.public_bytes(key)] = site
    assert keys == fed.keys()
    content = fed.bundle("nyu").read_bytes()
    for secret in (fed.ca_key, fed.key, fed.secret):
        assert secret.read_bytes() not in content
    assert b"usm" not in content


def test_a_key_of_another_kind_is_called_so(fed: FederationFolder, monkeypatch) -> None:
    monkeypatch.setattr(preflight, "reach", lambda bundle, wait: 0.0)
    file = fed.bundle("nyu")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
    key = ed25519.Ed25519PrivateKey.generate().private_bytes(*form, serialization.NoEncryption())
    own = read_bundle(file)
    assert (True, "site nyu has its key") in preflight.check_bundle(file, own)
    found = [*preflight.check_bundle(file, replace(own, key=key))]
    assert (False, "site nyu has another kind of key") in found


def test_no_private_key_of_a_site_stays_in_the_folder(fed: FederationFolder) -> None:
    for site in ("nyu", "usm"):
        fed.bundle(site).unlink()
    kept = [file.read_bytes() for file in fed.path.rglob("*") if file.is_file()]
    assert not [content for content in kept if b"OPENSSH PRIVATE KEY" in content]


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.shows("W08")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an archive",
        archive(a=b"b"),
        archive(**{"../../evil": b"x", "site.json": b"{}", "ca.crt": b"", "site.key": b""}),
        archive(**{"site.json": b"[]", "ca.crt": b"", "site.key": b""}),
        archive(**{"site.json": b'{"format": 2}', "ca.crt": b"", "site.key": b""}),
        b"x" * 200_000,
    ],
)
def test_what_is_no_bundle_is_refused_in_one_line(tmp_path, content: bytes) -> None:
    file = tmp_path / "bad.fedbn"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="not a site's bundle") as caught:
        read_bundle(file)
    assert "\n" not in str(caught.value)
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.shows("F49")
def test_a_file_open_to_others_is_told(fed: FederationFolder) -> None:
    fed.key.chmod(0o644)
    wrong = [text for fine, text in preflight.check_folder(fed) if not fine]
    assert wrong == [f"server.key can be read by others: `chmod 600 {fed.key}`"]


@pytest.mark.shows("F46")
def test_an_expired_certificate_is_told_with_its_date(fed: FederationFolder) -> None:
    authority = credentials.make_authority("other", 10)
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    key, old = credentials.make_server_certificate(authority, ["server.example"], 30, begins)
    write_private(fed.key, credentials.private_bytes(key))
    fed.certificate.write_bytes(credentials.certificate_bytes(old))
    wrong = [text for fine, text in preflight.check_folder(fed) if not fine]
    assert wrong == ["the server's certificate ended on 2020-01-31"]


@pytest.mark.parametrize("sites", [["a", "a"], [".."], ["a/b"], ["a\nb"], ["é" * 80]])
def test_names_that_cannot_be_sites(tmp_path, sites) -> None:
    with pytest.raises(ConfigError, match="site"):
        FederationFolder(tmp_path / "fed").create("test", sites, "host")
    assert not (tmp_path / "fed").exists()


def test_add_site_leaves_the_others_as_they_are(fed: FederationFolder) -> None:
    before = fed.bundle("nyu").read_bytes()
    fed.add_site("ucla")
    assert fed.read().sites == ("nyu", "usm", "ucla")
    assert fed.bundle("nyu").read_bytes() == before
    with pytest.raises(ConfigError, match="'ucla' is there twice"):
        fed.add_site("ucla")


def test_the_commands_make_and_examine_a_federation(tmp_path) -> None:
    fed = tmp_path / "fed"
    made = CliRunner().invoke(
        app, ["federation", "init", str(fed), "--sites", "a,b", "--host", "127.0.0.1"]
    )
    assert made.exit_code == 0, made.output
    assert (fed / "README.md").is_file()
    assert CliRunner().invoke(app, ["federation", "check", str(fed)]).exit_code == 0
    missing = CliRunner().invoke(app, ["federation", "status", str(tmp_path)])
    assert isinstance(missing.exception, ConfigError)
    again = CliRunner().invoke(app, ["federation", "init", str(fed), "--sites", "a", "--host", "x"])
    assert isinstance(again.exception, ConfigError)


def test_a_bundle_without_a_server_says_so(fed: FederationFolder) -> None:
    found = CliRunner().invoke(app, ["federation", "check", str(fed.bundle("nyu"))])
    assert isinstance(found.exception, FedbnError)
    assert "WRONG  no server at server.example:9099" in found.output


@pytest.mark.shows("C14")
@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a" * 101, "new\nline"])
def test_a_runs_name_stays_in_the_folder(fed: FederationFolder, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--name .* legal are 1 to 100 letters"):
        server_app.run_folder(fed, name)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_a_run_that_is_refused_leaves_nothing_behind(fed: FederationFolder, tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["fedbn"]\n')
    for flags in (["--min-sites", "7"], ["--set", "methods=['centralized']"], []):
        refused = CliRunner().invoke(app, ["federation", "run", str(fed.path), str(file), *flags])
        assert isinstance(refused.exception, FedbnError), flags
        assert not fed.runs.exists(), flags
