"""Keys that their owners make: requests, fingerprints, rotation, revocation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography import x509
from flower_bench import RAW, Bench
from typer.testing import CliRunner

from fedbn.cli import federation_keys
from fedbn.cli.main import app
from fedbn.errors import ConfigError
from fedbn.flower import audit_log, credentials, internals_server, preflight, server_app, site_app
from fedbn.flower.credentials import read_bundle, read_request
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.membership import Expected
from fedbn.flower.site_job import SiteOptions

PRIVATE = b"PRIVATE KEY"


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    monkeypatch.chdir(tmp_path)
    folder = FederationFolder(tmp_path / "fed")
    folder.create("test", [], "server.example")
    return folder


def fedbn(*words: str, fine: bool = True) -> str:
    done = CliRunner().invoke(app, ["federation", *words])
    assert (done.exit_code == 0) == fine, (done.output, done.exception)
    return done.output + str(done.exception or "")


def admitted(fed: FederationFolder, site: str = "nyu", *flags: str) -> str:
    printed = fedbn("request", site, *flags)
    found = printed.strip().rpartition(" ")[2]
    return fedbn("admit", str(fed.path), f"{site}.request", "--fingerprint", found)


def test_no_private_key_of_a_site_is_ever_at_the_server(fed: FederationFolder) -> None:
    said = admitted(fed)
    key = Path("nyu/site.key").read_bytes()
    assert PRIVATE in key
    server = [file.read_bytes() for file in fed.path.rglob("*") if file.is_file()]
    assert not [content for content in server if key.splitlines()[1] in content]
    assert b"OPENSSH" not in fed.bundle("nyu").read_bytes()
    bundle = read_bundle(fed.bundle("nyu"))
    assert (bundle.key, bundle.site, bundle.address) == (b"", "nyu", "server.example:9092")
    assert credentials.authority_fingerprint(bundle.ca) in said
    own = credentials.public_bytes(credentials.read_key(Path("nyu/site.key").read_bytes()))
    assert fed.keys() == {own: "nyu"}


@pytest.mark.shows("H16")
def test_a_request_that_was_changed_or_is_another_keys_is_refused(fed: FederationFolder) -> None:
    fedbn("request", "nyu")
    about = json.loads(Path("nyu.request").read_text())
    other = credentials.public_bytes(credentials.make_key()).decode()
    for change in ({"site": "usm"}, {"key": other}, {"signatures": ["00"]}, {"site": "../up"}):
        Path("bad.request").write_text(json.dumps({**about, **change}))
        with pytest.raises(ConfigError, match="not a request of a site"):
            read_request(Path("bad.request"))


@pytest.mark.shows("H17")
def test_a_fingerprint_that_differs_or_that_nobody_confirms_is_refused(fed) -> None:
    fedbn("request", "nyu")
    wrong = fedbn("admit", str(fed.path), "nyu.request", "--fingerprint", "00:11", fine=False)
    assert "--fingerprint '00:11': the key of site nyu has " in wrong
    alone = fedbn("admit", str(fed.path), "nyu.request", fine=False)
    assert "nobody is here to confirm the key of site nyu: give --fingerprint" in alone
    assert fed.read().sites == ()


@pytest.mark.shows("H18")
def test_a_key_is_replaced_only_by_a_request_that_the_old_one_signed(fed) -> None:
    admitted(fed)
    before = fed.keys()
    assert "it has a key already" in fedbn("request", "nyu", fine=False)
    thief = credentials.make_request("nyu", credentials.make_key())
    Path("thief.request").write_bytes(thief)
    found = credentials.fingerprint(read_request(Path("thief.request")).key)
    line = ["admit", str(fed.path), "thief.request", "--fingerprint", found]
    assert "did not sign this request" in fedbn(*line, fine=False)
    assert fed.keys() == before
    admitted(fed, "nyu", "--rotate")
    assert fed.keys() != before
    both = [[*audit_log.read(home / "log.jsonl")] for home in (fed.path, Path("nyu"))]
    assert [(e["event"], e.get("confirmed")) for e in both[0]] == [
        ("admitted", "by --fingerprint")
    ] * 2
    assert [e["key"] for e in both[1]] == [e["key"] for e in both[0]]
    assert fed.read().sites == ("nyu",)


@pytest.mark.shows("H19")
def test_a_site_that_was_revoked_stays_out(fed: FederationFolder) -> None:
    admitted(fed)
    admitted(fed, "usm")
    assert "nyu is out" in fedbn("revoke", str(fed.path), "nyu")
    assert fed.read().sites == ("usm",)
    assert [*fed.keys().values()] == ["usm"]
    found = credentials.fingerprint(read_request(Path("nyu.request")).key)
    line = ["admit", str(fed.path), "nyu.request", "--fingerprint", found]
    assert "was revoked" in fedbn(*line, fine=False)
    assert "unknown site 'nyu'" in fedbn("revoke", str(fed.path), "nyu", fine=False)


@pytest.mark.shows("H19")
def test_a_site_that_is_revoked_during_a_run_is_out_from_the_next_message(bench: Bench) -> None:
    names = ["plain", "photo"]
    grid = bench.grid()
    bench.limits = type(bench.limits)(wait=0.5, round=5, grace=60, poll=0, look=0)

    def sites() -> Expected:
        return Expected(tuple(names), {name.encode(): name for name in names}, 1)

    raw = {**RAW, "training": {"rounds": 3, "local_steps": 1}}
    costs = []

    def cost(one):
        costs.append(one)
        names[:] = ["plain"]

    bench.run(grid, raw, expected=sites, costs=cost)
    assert [sorted(one.sources) for one in costs] == [["photo", "plain"], ["plain"], ["plain"]]
    asked = [site for site, _, _ in grid.log]
    assert asked[-3:].count("photo") == 0


def test_the_certificate_is_renewed_and_the_host_changes(fed: FederationFolder) -> None:
    admitted(fed)
    before, secret = fed.certificate.read_bytes(), fed.secret.read_bytes()
    fedbn("rotate", str(fed.path), "--host", "new.example")
    made = x509.load_pem_x509_certificate(fed.certificate.read_bytes())
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(fed.ca.read_bytes()))
    assert credentials.hosts_of(made)[:2] == ["new.example", "server.example"]
    assert fed.certificate.read_bytes() != before
    assert fed.secret.read_bytes() != secret
    assert [*fed.keys().values()] == ["nyu"]
    assert all(fine for fine, _ in preflight.check_folder(fed))


def test_the_authoritys_key_may_be_kept_elsewhere(fed: FederationFolder) -> None:
    admitted(fed)
    away = fed.ca_key.rename("offline.key")
    admitted(fed, "usm")
    fedbn("revoke", str(fed.path), "nyu")
    assert "ca.key" not in fedbn("check", str(fed.path))
    assert "ok " in fedbn("log", str(fed.path), "--verify")
    before = fed.certificate.read_bytes()
    said = fedbn("rotate", str(fed.path), fine=False)
    assert "ca.key: not here; a new certificate needs it" in said
    assert fed.certificate.read_bytes() == before
    away.rename(fed.ca_key)
    running = server_app.own_log(fed)
    fedbn("rotate", str(fed.path))
    running.write("run")  # by the key that was the server's when the run began
    fedbn("rotate", str(fed.path))
    assert "ok " in fedbn("log", str(fed.path), "--verify")


def test_lines_that_the_authority_signed_itself_stay_good(fed: FederationFolder) -> None:
    key = credentials.read_authority(fed.ca_key, fed.ca).key
    audit_log.AuditLog(fed.log, key).write("run", run="earlier")
    admitted(fed)
    assert "ok " in fedbn("log", str(fed.path), "--verify")


def test_what_cannot_be_logged_is_not_done(fed: FederationFolder) -> None:
    admitted(fed)
    fedbn("request", "usm")
    found = credentials.fingerprint(read_request(Path("usm.request")).key)
    fed.key.unlink()
    fedbn("admit", str(fed.path), "usm.request", "--fingerprint", found, fine=False)
    fedbn("revoke", str(fed.path), "nyu", fine=False)
    assert (fed.read().sites, len(fed.keys())) == (("nyu",), 1)


@pytest.mark.shows("H24")
def test_a_certificate_of_another_authority_signs_no_log(fed: FederationFolder) -> None:
    thief = credentials.make_authority("test", 10)
    fed.certify(thief, ["server.example"], 10)
    server_app.own_log(fed).write("admitted", site="nyu")
    said = fedbn("log", str(fed.path), "--verify", fine=False)
    assert "line 1: changed, or not signed by the log's owner" in said


@pytest.mark.shows("H20")
def test_a_certificate_that_ends_within_thirty_days_is_said(fed: FederationFolder) -> None:
    authority = credentials.read_authority(fed.ca_key, fed.ca)
    fed.certify(authority, ["server.example"], 20)
    said = [text for _, text in preflight.check_dates(fed)]
    assert said[0].endswith("(soon)")
    assert not said[1].endswith("(soon)")


@pytest.mark.shows("H17")
def test_a_site_joins_only_under_the_authority_that_was_confirmed(fed, tmp_path: Path) -> None:
    admitted(fed)
    bundle, home = read_bundle(fed.bundle("nyu")), Path("nyu")
    right = credentials.authority_fingerprint(bundle.ca)
    with pytest.raises(ConfigError, match="nobody is here to confirm the authority"):
        federation_keys.known_authority(bundle, home, None)
    with pytest.raises(ConfigError, match="the authority has"):
        federation_keys.known_authority(bundle, home, "00")
    assert PRIVATE in federation_keys.known_authority(bundle, home, right).key
    assert PRIVATE in federation_keys.known_authority(bundle, home, None).key  # confirmed before
    said = [*audit_log.read(home / "log.jsonl")][-1]
    assert (said["event"], said["authority"]) == ("authority confirmed", right)
    other = FederationFolder(tmp_path / "other")
    other.create("other", [], "server.example")
    false = credentials.Bundle(bundle.federation, "nyu", bundle.address, other.ca.read_bytes())
    with pytest.raises(ConfigError, match="the authority of this bundle has"):
        federation_keys.known_authority(false, home, None)
    with pytest.raises(ConfigError, match="no key here; `fedbn federation request nyu`"):
        federation_keys.known_authority(bundle, tmp_path / "empty", right)


@pytest.mark.shows("H17")
def test_a_bundles_key_never_takes_the_place_of_the_sites_own(fed, tmp_path: Path) -> None:
    admitted(fed)
    bundle, home = read_bundle(fed.bundle("nyu")), Path("nyu")
    federation_keys.known_authority(bundle, home, credentials.authority_fingerprint(bundle.ca))
    own = (home / "site.key").read_bytes()
    other = FederationFolder(tmp_path / "other")
    other.create("other", ["nyu"], "other.example")
    swapped = read_bundle(other.bundle("nyu"))
    with pytest.raises(ConfigError, match=r"nyu/site\.key: the bundle holds another key"):
        federation_keys.known_authority(swapped, home, None)
    with pytest.raises(ConfigError, match="the authority of this bundle has"):
        federation_keys.known_authority(replace(swapped, key=own), home, None)
    assert (home / "site.key").read_bytes() == own


def test_a_bundle_with_a_key_is_for_a_site_that_has_none(fed, tmp_path: Path) -> None:
    fed.add_site("nyu")
    bundle, home = read_bundle(fed.bundle("nyu")), tmp_path / "home"
    assert federation_keys.known_authority(bundle, home, None) == bundle
    with pytest.raises(ConfigError, match="the authority has"):
        federation_keys.known_authority(bundle, home, "00")
    home.mkdir()
    (home / "site.key").write_bytes(bundle.key)  # as `join` leaves it
    assert federation_keys.known_authority(bundle, home, None) == bundle
    right = credentials.authority_fingerprint(bundle.ca)
    assert federation_keys.known_authority(bundle, tmp_path / "new" / "home", right) == bundle


@pytest.mark.shows("H18")
def test_a_key_that_was_rotated_while_a_site_works_stays(fed, monkeypatch) -> None:
    admitted(fed)
    bundle, home = read_bundle(fed.bundle("nyu")), Path("nyu")
    right = credentials.authority_fingerprint(bundle.ca)
    joined = federation_keys.known_authority(bundle, home, right)
    admitted(fed, "nyu", "--rotate")
    monkeypatch.setattr(site_app, "is_admitted", lambda bundle, key: True)
    site_app._use_next_key(joined, SiteOptions("nyu", {}), home, lambda text: None)
    rotated = (home / "site.key").read_bytes()
    monkeypatch.setattr(site_app, "Child", lambda *words: None)
    site_app._start_node(joined, home, b"s" * 32, 1)  # as `join` does when its node ended
    assert rotated == (home / "site.key").read_bytes() != joined.key
    site_app._start_node(joined, home / "new", b"s" * 32, 1)
    assert (home / "new" / "site.key").read_bytes() == joined.key


def key_of(home: Path, name: str = "site.key") -> bytes:
    return credentials.public_bytes(credentials.read_key((home / name).read_bytes()))


def test_a_second_rotation_before_admission_keeps_the_admitted_key(fed: FederationFolder) -> None:
    admitted(fed)
    home, before = Path("nyu"), key_of(Path("nyu"))
    fedbn("request", "nyu", "--rotate")
    said = fedbn("request", "nyu", "--rotate")
    assert "this requests it again" in said
    assert key_of(home) == before == next(iter(fed.keys()))
    admitted(fed, "nyu", "--rotate")  # a third one, and this one is admitted
    assert [*fed.keys()] == [key_of(home, "next.key")]
    fedbn("request", "nyu", "--rotate")  # the site does not know yet that it is admitted
    found = credentials.fingerprint(read_request(Path("nyu.request")).key)
    fedbn("admit", str(fed.path), "nyu.request", "--fingerprint", found)
    assert [*fed.keys()] == [key_of(home, "next.key")]


def test_a_site_uses_its_new_key_once_the_server_has_admitted_it(
    fed: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted(fed)
    home, bundle, said = Path("nyu"), read_bundle(fed.bundle("nyu")), []
    options = SiteOptions("nyu", {}, log=audit_log.log_of(home))
    fedbn("request", "nyu", "--rotate")
    old, new = key_of(home), key_of(home, "next.key")
    monkeypatch.setattr(site_app, "is_admitted", lambda bundle, key: False)
    site_app._use_next_key(bundle, options, home, said.append)
    assert (key_of(home), key_of(home, "next.key")) == (old, new)
    monkeypatch.setattr(
        site_app, "is_admitted", lambda bundle, key: credentials.public_bytes(key) == new
    )
    site_app._use_next_key(bundle, options, home, said.append)
    site_app._use_next_key(bundle, options, home, said.append)  # nothing is left to do
    assert key_of(home) == new
    assert not credentials.next_key(home).exists()
    assert ["not admitted yet" in text for text in said] == [True, False]
    assert "ok " in fedbn("log", "nyu", "--verify")


@pytest.mark.shows("H21")
def test_a_second_run_while_one_is_on_is_refused_naming_the_first(fed: FederationFolder) -> None:
    first, other = (server_app.the_only_run(fed, name) for name in ("first", "other"))
    with first, pytest.raises(ConfigError, match="run first is on"), other:
        pass
    with server_app.the_only_run(fed, "second"):
        assert (fed.path / "running").read_text() == "second"
    assert not (fed.path / "running").exists()


@pytest.mark.shows("H21")
def test_no_question_to_the_sites_stops_the_run_that_is_on(fed, monkeypatch) -> None:
    fed.add_site("nyu")
    stopped = []
    monkeypatch.setattr(internals_server.Control, "stop_run", lambda _, run: stopped.append(run))
    (fed.path / "last-run").write_text("7")
    Path("mine.toml").write_text("""methods = ["fedbn"]""")
    for words in (["propose"], ["check", "--experiment", "mine.toml"]):
        with server_app.the_only_run(fed, "first"):
            assert "run first is on" in fedbn(words[0], str(fed.path), *words[1:], fine=False)
    assert not stopped


def test_a_site_that_is_revoked_may_leave_fewer_than_min_sites(fed: FederationFolder) -> None:
    for site in ("nyu", "usm"):
        fed.add_site(site)
    assert [server_app.expected_sites(fed, least).least for least in (None, 1, 2)] == [2, 1, 2]
    Path("mine.toml").write_text("""methods = ["fedbn"]""")
    for least in ("0", "3"):
        said = fedbn("run", str(fed.path), "mine.toml", "--min-sites", least, fine=False)
        assert f"--min-sites {least}: legal are 1 to 2" in said
    fed.revoke("usm")
    assert [server_app.expected_sites(fed, least).least for least in (None, 1, 2)] == [1, 1, 1]
    fed.revoke("nyu")
    with pytest.raises(ConfigError, match="no site is admitted"):
        server_app.expected_sites(fed, 2)


@pytest.mark.parametrize("address", ["10.0.0.5", "::", "server.example"])
def test_the_server_listens_where_its_own_commands_reach_it(tmp_path: Path, address: str) -> None:
    folder = server_app.make(tmp_path / "fed", ["nyu"])
    line = ["federation", "server", str(folder.path), "--bind", address]
    said = str(CliRunner().invoke(app, line).exception)
    assert said == f"--bind {address}: legal are 0.0.0.0 and 127.0.0.1"
