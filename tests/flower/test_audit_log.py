"""What ever left a site stands in its log, and whoever changes the log is found out."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.errors import FedbnError
from fedbn.experiments.configuration import checked
from fedbn.flower import audit_log, credentials, messages, server_app
from fedbn.flower.audit_log import AuditLog, log_of
from fedbn.flower.federation_folder import FederationFolder
from fedbn.flower.membership import Expected
from fedbn.flower.policy import Policy
from fedbn.flower.server_app import Service, own_log, serve
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder


def site_home(root: Path, name: str) -> Path:
    home = root / name
    home.mkdir(parents=True)
    (home / "site.key").write_bytes(credentials.ssh_private_bytes(credentials.make_key()))
    return home


@pytest.fixture
def logs(bench: Bench, tmp_path: Path) -> tuple[Path, dict[str, Path], FakeGrid]:
    """A run whose server and sites keep logs."""
    fed = FederationFolder(tmp_path / "fed")
    fed.create("test", SITES, "127.0.0.1")
    homes = {name: site_home(tmp_path / "homes", name) for name in SITES}
    grid = FakeGrid([bench.site(name, log=log_of(home)) for name, home in homes.items()])
    keys = {name.encode(): name for name in SITES}
    expected = Expected(SITES, keys, len(SITES))
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    own_log(fed).write("run", run="run")
    service = Service("fed", lambda: expected, folder, limits=bench.limits, log=own_log(fed))
    serve(grid, checked(RAW), service)
    return fed.path, homes, grid


def events(home: Path) -> list[dict]:
    return list(audit_log.read(home / "log.jsonl"))


def verified(home: Path, *flags: str) -> str:
    done = CliRunner().invoke(app, ["federation", "log", str(home), "--verify", *flags])
    return done.output + str(done.exception or "")


def test_a_site_sees_what_ever_left_it(logs) -> None:
    _, homes, grid = logs
    said = events(homes["photo"])
    assert [(e["asked"], e["round"]) for e in said] == [
        ("hello", 0), ("train", 1), ("train", 2), ("score", 2),
    ]  # fmt: skip
    answers = [answer.content for site, _, answer in grid.log if site == "photo"]
    assert [e["sent"]["bytes"] for e in said] == [messages.length(one) for one in answers]
    entries = said[1]["sent"]["arrays"]["shared"]["entries"]
    assert entries
    assert not [name for name in entries if "running" in name]
    assert said[1]["sent"]["fields"]["answer"] == sorted(messages.Answer.model_fields)


def test_the_server_knows_what_it_asked_and_what_came(logs) -> None:
    fed, _, _ = logs
    said = events(fed)
    kinds = [(e["event"], e.get("site")) for e in said]
    assert kinds[1:3] == [("takes part", "plain"), ("takes part", "photo")]
    assert kinds.count(("asked", "photo")) == kinds.count(("came", "photo")) == 3
    assert "ok" in verified(fed)


def test_the_questions_before_a_run_are_in_the_servers_log(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = server_app.make(tmp_path / "fed", SITES)
    homes = {name: site_home(tmp_path / "homes", name) for name in SITES}
    grid = FakeGrid([bench.site(name, log=log_of(home)) for name, home in homes.items()])
    sites = Expected(SITES, {name.encode(): name for name in SITES}, len(SITES))
    monkeypatch.setattr(server_app, "grid_of", lambda folder: nullcontext(grid))
    monkeypatch.setattr(server_app, "expected_sites", lambda folder, least: sites)
    server_app.survey_sites(fed, server_app.orders(checked(RAW), fed.read().id))
    with suppress(FedbnError):  # the sites belong to another federation, and say so
        server_app.propose(fed)
    said = [e for e in events(fed.path) if e["site"] == "photo"]
    assert [(e["event"], e.get("asked")) for e in said] == [
        ("refused", None), ("asked", "report"), ("came", "report"),
    ]  # fmt: skip
    assert {e["theirs"] for e in said if "theirs" in e} <= audit_log.line_hashes(
        homes["photo"] / "log.jsonl"
    )


def test_the_word_that_a_run_is_over_is_in_both_logs(bench: Bench, tmp_path: Path) -> None:
    fed = server_app.make(tmp_path / "fed", SITES)
    home = site_home(tmp_path / "homes", "photo")
    grid = FakeGrid([bench.site("plain"), bench.site("photo", log=log_of(home))])
    sites = Expected(SITES, {name.encode(): name for name in SITES}, len(SITES))
    (tmp_path / "run").mkdir()
    service = Service("fed", lambda: sites, RunFolder(tmp_path / "run"), log=own_log(fed))
    raw = {**RAW, "training": {"rounds": 1}, "evaluation": {"report": "best", "validation": 0.25}}
    serve(grid, checked(raw), service)
    last = [e for e in events(fed.path) if e["site"] == "photo"][-2:]
    assert [(e["event"], e["asked"]) for e in last] == [("asked", "end"), ("came", "end")]
    assert events(home)[-1]["asked"] == "end"


def test_keys_that_were_made_at_the_server_are_in_its_log(tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    line = ["federation", "init", str(fed), "--host", "127.0.0.1", "--sites", "nyu,usm"]
    assert CliRunner().invoke(app, line).exit_code == 0
    assert CliRunner().invoke(app, ["federation", "add-site", str(fed), "mgh"]).exit_code == 0
    keys = {
        site: credentials.fingerprint(key) for key, site in FederationFolder(fed).keys().items()
    }
    assert [(e["event"], e["site"], e["key"], e["confirmed"]) for e in events(fed)] == [
        ("admitted", site, keys[site], "made here") for site in ("nyu", "usm", "mgh")
    ]


def changed(lines: list[bytes], how: str) -> list[bytes]:
    if how == "a flipped byte":
        return [lines[0], lines[1].replace(b"train", b"trair", 1), *lines[2:]]
    if how == "a removed line":
        return [lines[0], *lines[2:]]
    return [lines[0], lines[2], lines[1], *lines[3:]]


@pytest.mark.shows("H22")
@pytest.mark.parametrize("how", ["a flipped byte", "a removed line", "two lines moved"])
def test_a_changed_log_is_found_out(logs, how: str) -> None:
    _, homes, _ = logs
    home = homes["photo"]
    assert "ok" in verified(home)
    file = home / "log.jsonl"
    file.write_bytes(b"\n".join(changed(file.read_bytes().splitlines(), how)) + b"\n")
    assert "WRONG  line 2" in verified(home)


@pytest.mark.shows("H23")
def test_an_end_that_was_cut_off_is_found_by_the_other_sides_log(logs) -> None:
    fed, homes, _ = logs
    home = homes["photo"]
    other = str(fed / "log.jsonl")
    assert "ok" in verified(home, "--against", other)
    file = home / "log.jsonl"
    file.write_bytes(b"\n".join(file.read_bytes().splitlines()[:2]) + b"\n")
    assert "ok" in verified(home)
    assert "1 hash(es) that" in verified(home, "--against", other)


@pytest.mark.shows("H23")
def test_logs_of_which_nothing_was_compared_are_not_called_fine(
    logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, homes, _ = logs
    home, other = homes["photo"], str(fed / "log.jsonl")
    assert "ok" in verified(fed, "--against", str(home / "log.jsonl"))
    for wrong in (str(fed), f"{other}x"):
        assert f"--against {wrong}: no log here" in verified(home, "--against", wrong)
    mine = str(home / "log.jsonl")
    assert "it names no line of photo, nothing was compared" in verified(home, "--against", mine)
    file = home / "log.jsonl"
    file.write_bytes(b"\n".join(file.read_bytes().splitlines()[:2]) + b"\n")
    monkeypatch.chdir(home)
    assert "1 hash(es) that" in verified(Path(), "--against", other)
    moved = home.rename(tmp_path / "moved")
    assert "it names no line of moved, nothing was" in verified(moved, "--against", other)
    (moved / "fedbn-site-photo.service").touch()  # as `join` leaves it
    assert "1 hash(es) that" in verified(moved, "--against", other)


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_a_line_that_was_torn_spoils_no_later_one(tmp_path: Path, whole: int) -> None:
    home = site_home(tmp_path, "nyu")
    log = log_of(home)
    for number in range(whole):
        log.write("answered", text="x" * 50_000 * number)
    file = home / "log.jsonl"
    before = file.read_bytes() if whole else b""
    file.write_bytes(before + b'{"event":"half' + b"." * 70_000)  # the disk was full
    assert log_of(home).newest == log.newest
    log.write("answered")
    log.write("answered")
    assert file.read_bytes().startswith(before)
    assert [e.get("torn_bytes") for e in events(home)] == [*[None] * whole, 70_014, None]
    assert "ok" in verified(home)


def test_the_first_messages_carry_the_newest_hashes_too(logs) -> None:
    fed, homes, grid = logs
    mine, theirs = events(homes["photo"]), events(fed)
    asked = [
        messages.get(m.content, messages.Order) for _, m, a in grid.log if "hello" in a.content
    ]
    before = [order.log for order in asked if order.kind == "hello"]
    assert before == [mine[0]["theirs"]] * len(SITES)
    assert before[0] in audit_log.line_hashes(fed / "log.jsonl")
    took_part = [e for e in theirs if e["event"] == "takes part"]
    assert [e["theirs"] for e in took_part] == ["", ""]  # nothing was in the sites' logs yet
    assert {e["theirs"] for e in theirs if e["event"] == "came" and e["site"] == "photo"} <= (
        audit_log.line_hashes(homes["photo"] / "log.jsonl")
    )


def test_two_processes_may_write_into_one_log(tmp_path: Path) -> None:
    home = site_home(tmp_path, "nyu")
    one, other = log_of(home), log_of(home)
    for number in range(3):
        one.write("answered", text="x" * 50_000 * number)
        other.write("approved")
    assert "ok" in verified(home)


@pytest.mark.shows("H24")
def test_another_key_cannot_write_the_log_anew(logs) -> None:
    _, homes, _ = logs
    home, old = homes["photo"], events(homes["photo"])
    (home / "log.jsonl").unlink()
    forged = AuditLog(home / "log.jsonl", credentials.make_key())
    forged.write("answered", asked=old[0]["asked"])
    assert "not signed by the log's owner" in verified(home)


def test_lines_that_a_rotated_key_signed_stay_good(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["federation", "request", "nyu"])
    log_of(Path("nyu")).write("joined")
    CliRunner().invoke(app, ["federation", "request", "nyu", "--rotate"])
    log_of(Path("nyu")).write("joined")
    assert "ok" in verified(Path("nyu"))


def test_what_a_site_refuses_is_logged(bench: Bench, tmp_path: Path) -> None:
    home = site_home(tmp_path, "photo")
    policy = Policy(approval=False, methods=["fedavg"])
    sites = [bench.site("plain"), bench.site("photo", policy=policy, log=log_of(home))]
    with pytest.raises(FedbnError):
        bench.run(FakeGrid(sites))
    (said,) = events(home)
    assert said["event"] == "refused"
    assert "forbids method fedbn" in said["reason"]
    assert json.dumps(said).count("/") == 0  # no path


def test_the_server_is_never_further_back_than_sites_remember(bench: Bench) -> None:
    raw = {**RAW, "training": {"rounds": 4, "local_steps": 1}}
    folder = RunFolder(bench.root / "runs" / "run")
    seen = []

    def cost(one):
        seen.append((one.round, checkpoints.rounds(folder.job("fedbn", "default", 0))[0][0]))

    bench.run(bench.grid(), raw, costs=cost)
    assert seen == [(number, number) for number in range(1, 5)]


@pytest.mark.parametrize("left", [b"", b"\n", b"\n\n  \n"])
def test_an_emptied_log_is_found_out(logs, left: bytes) -> None:
    fed, homes, _ = logs
    for home in (homes["photo"], fed):
        (home / "log.jsonl").write_bytes(left)
        said = verified(home)
        assert "WRONG  no line: a log begins with its owner's first event" in said
        assert "ok " not in said


def test_a_log_that_was_emptied_and_went_on_is_found_out(logs) -> None:
    _, homes, _ = logs
    home = homes["photo"]
    (home / "log.jsonl").write_bytes(b"")
    log_of(home).write("answered")
    log_of(home).write("answered")
    assert "WRONG  line 1: the log was empty when this line was written" in verified(home)


def test_the_first_line_of_a_new_log_is_fine(tmp_path: Path) -> None:
    home = site_home(tmp_path, "nyu")
    log_of(home).write("joined")
    assert "ok" in verified(home)
