"""Four hospitals with one CSV each: proposed, checked and trained by one contract."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import Bench, FakeGrid
from flwr.app import ArrayRecord, Message, RecordDict
from loading import read_samples
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.errors import ConfigError, TooFewClients
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import Job, jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import Memory, run_plan
from fedbn.flower import messages, server_app, site_app
from fedbn.flower.approvals import Approvals
from fedbn.flower.audit_log import AuditLog, read as read_log
from fedbn.flower.credentials import make_key
from fedbn.flower.membership import Expected
from fedbn.flower.messages import Member, Order, report_order
from fedbn.flower.policy import Policy
from fedbn.flower.site import Site, reply
from fedbn.flower.site_job import SiteOptions
from fedbn.runs import metrics
from fedbn.trained.opening import open_run

NAMES = ("nyu", "usm")
RAW = {
    "methods": ["fedbn"],
    "seeds": [0],
    "training": {"rounds": 2, "batch_size": 8},
    "model": {"name": "mlp", "args": {"hidden": [8]}},
    "evaluation": {"final_statistics": []},  # sites score with running statistics alone
}


def write(file: Path, seed: int, pains: tuple[str, ...] = ("low", "mid")) -> Path:
    draw, lines = random.Random(seed), ["age,pain,out"]
    for number in range(80):
        lines.append(f"{draw.randint(30, 80)},{draw.choice(pains)},{number % 2}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def grid_of(bench: Bench, tmp_path: Path, **options: object) -> FakeGrid:
    made = []
    for seed, name in enumerate(NAMES):
        pains = ("low", "mid") if seed else ("mid", "high")
        file = write(tmp_path / "at" / name / "export.csv", seed, pains)
        write(tmp_path / "all" / f"{name}.csv", seed, pains)
        data = site_app.data_section(str(file), ["data.label=out"])
        folder = bench.root / "sites" / name
        made.append(Site(SiteOptions(name, data, folder, "fed", **options)))  # type: ignore[arg-type]
    return FakeGrid(made)


def expected() -> Expected:
    return Expected(NAMES, {name.encode(): name for name in NAMES}, len(NAMES))


def test_tables_join_by_a_contract_that_the_sites_reports_proposed(
    bench: Bench, tmp_path: Path
) -> None:
    grid = grid_of(bench, tmp_path)
    contract, notes = server_app.ask_reports(grid, report_order("fed"), expected())
    assert notes == []
    raw = {**RAW, "data": {"contract": contract}}
    found = metrics.read(bench.run(grid, raw, expected=expected()).metrics)
    embedded = {**RAW, "data": {"contract": contract, "path": str(tmp_path / "all")}}
    memory = Memory()
    run_plan(Planner().plan(jobs(checked(embedded))[0]), memory, workers=1)
    key = ("round", "client", "split", "metric", "value")
    wanted = {tuple(vars(record)[k] for k in key) for record in memory.records}
    assert {tuple(record[k] for k in key) for record in found} == wanted


def test_the_server_hears_of_no_value_and_no_path_of_a_site(bench: Bench, tmp_path: Path) -> None:
    grid = grid_of(bench, tmp_path)
    for name in NAMES:
        file = tmp_path / "at" / name / "export.csv"
        file.write_text(file.read_text().replace("mid", "Mr Miller"))
    columns = [{"name": "age"}, {"name": "pain", "values": ["low", "high"]}]
    raw = {**RAW, "data": {"contract": {"classes": ["0", "1"], "columns": columns}}}
    with pytest.raises(TooFewClients):
        bench.run(grid, raw, expected=expected())
    said = str([dict(answer.content.config_records) for _, _, answer in grid.log])
    assert "does not fit" in said
    assert "Miller" not in said
    assert str(tmp_path) not in said


FITS = [{"name": "age", "range": [0.0, 120.0]}, {"name": "pain", "values": ["mid", "high"]}]
OTHERS = {
    "a range of one value": [{"name": "age", "range": [57.0, 57.0]}],
    "a category less": [{"name": "age"}, {"name": "pain", "values": ["mid"]}],
    "a column that is not there": [{"name": "age"}, {"name": "zip"}],
    "words for numbers": [{"name": "pain"}],
}


def asked(columns: list[dict], kind: str = "hello", **changes: object) -> Order:
    raw = {**RAW, "data": {"contract": {"classes": ["0", "1"], "columns": columns}}, **changes}
    (order,) = server_app.orders(checked(raw), "fed")
    return order.model_copy(update={"kind": kind})


def told(site: Site, order: Order) -> tuple[str, dict]:
    """What a server hears: the kind of an answer, and what is in it but the log's hash."""
    arrays = {messages.SHARED: ArrayRecord()} if order.kind == "train" else {}
    question = Message(messages.put(order, **arrays), 1, "query")
    question.metadata.__dict__["_message_id"] = "question"
    ((kind, record),) = reply(site, question, RecordDict()).content.config_records.items()
    return kind, {k: v for k, v in json.loads(str(record["json"])).items() if k != "log"}


def nyu(tmp_path: Path, **options: object) -> Site:
    file = write(tmp_path / "at" / "nyu" / "export.csv", 0, ("mid", "high"))
    data, home = site_app.data_section(str(file), ["data.label=out"]), tmp_path / "home"
    given = {"home": home, "log": AuditLog(home / "log.jsonl", make_key()), **options}
    return Site(SiteOptions("nyu", data, home / "runs", "fed", **given))  # type: ignore[arg-type]


@pytest.mark.shows("H10")
@pytest.mark.parametrize("kind", ["hello", "train"])
def test_no_contract_of_the_servers_choice_asks_for_data_before_a_person_approves(
    tmp_path: Path, kind: str
) -> None:
    site = nyu(tmp_path, policy=Policy())
    waits = told(site, asked(FITS))
    assert waits[0] == "sorry"
    assert waits[1]["waiting"] is True
    assert waits[1]["reason"].startswith("waits for approval by a person at the site, or is ref")
    for columns in OTHERS.values():
        assert told(site, asked(columns, kind)) == waits
    forbidden = {"training": {"rounds": 2, "batch_size": 2}}  # said where the data fits: an answer
    assert told(site, asked(FITS, kind, **forbidden)) == waits
    broken = {"model": {"name": "mlp", "args": {"hidden": [-1]}}}
    assert told(site, asked(FITS, kind, **broken)) == waits
    lines = list(read_log(tmp_path / "home" / "log.jsonl"))
    said = " ".join(one.get("reason", "") for one in lines)
    assert {one["told"] for one in lines} == {waits[1]["reason"]}
    full = ("% of its values lie outside", "'high' is not a category", "no column 'zip'")
    for text in full if kind == "train" else (*full, "min_batch = 8"):
        assert text in said


def test_of_a_contract_that_was_approved_the_server_hears_what_does_not_fit(tmp_path: Path) -> None:
    site = nyu(tmp_path, policy=Policy())
    told(site, asked(FITS))
    (one,) = Approvals(tmp_path / "home").all()
    Approvals(tmp_path / "home").decide(one.hash, True)
    assert told(site, asked(FITS))[0] == "hello"
    changed = nyu(tmp_path, policy=Policy())
    file = tmp_path / "at" / "nyu" / "export.csv"
    file.write_text(file.read_text().replace("high", "severe"))
    kind, said = told(changed, asked(FITS))
    assert (kind, said["waiting"]) == ("sorry", False)
    assert "column 'pain' has a value that is no category" in said["reason"]
    assert told(changed, asked(OTHERS["a column that is not there"]))[1]["waiting"] is True


@pytest.mark.parametrize("sends", [["names"], []])
@pytest.mark.parametrize("what", OTHERS)
def test_without_approval_no_number_is_told_and_no_name_that_is_kept(
    tmp_path: Path, what: str, sends: list
) -> None:
    site = nyu(tmp_path, policy=Policy(approval=False, sends=sends))
    kind, said = told(site, asked(OTHERS[what]))
    assert (kind, said["waiting"]) == ("sorry", False)
    assert "its data does not fit" in said["reason"]
    assert not [sign for sign in said["reason"] if sign.isdigit()]
    named = [name for name in ("age", "pain", "zip") if f"column {name!r}" in said["reason"]]
    assert len(named) == len(sends)


def test_an_error_that_nobody_foresaw_tells_its_kind_alone(tmp_path: Path, monkeypatch) -> None:
    site = nyu(tmp_path, policy=Policy(approval=False))

    def fails(order: Order, job: Job) -> None:
        raise OSError(13, "Permission denied", str(tmp_path / "Mr Miller.csv"))

    monkeypatch.setattr(site, "_plan", fails)
    assert told(site, asked(FITS))[1]["reason"] == (
        "not foreseen: PermissionError; `fedbn federation log` at the site says more"
    )


WAITS = "waits for approval by a person at the site, or is refused there: its own log says which"


def plain_order(**changes: object) -> Order:
    """An order without a contract."""
    (order,) = server_app.orders(checked(RAW), "fed")
    return order.model_copy(update=changes)


@pytest.mark.parametrize("sends", [["names"], []])
@pytest.mark.parametrize("approval", [True, False])
def test_without_a_contract_no_column_is_told(
    bench: Bench, tmp_path: Path, approval: bool, sends: list
) -> None:
    for name in NAMES:
        write(tmp_path / "all" / f"{name}.csv", 0)
    data, home = site_app.data_section(str(tmp_path / "all")), tmp_path / "home"  # no label
    policy = Policy(approval=approval, sends=sends)
    site = Site(SiteOptions("nyu", data, home / "runs", "fed", policy=policy, home=home))
    for order in (plain_order(), *([report_order("fed")] if sends else [])):
        said = told(site, order)[1]["reason"]
        assert "pain" not in said
        assert str(tmp_path) not in said
    assert (told(site, plain_order())[1]["reason"] == WAITS) is approval


@pytest.mark.parametrize("approval", [True, False])
def test_no_number_of_classes_asks_for_the_labels_of_samples(
    bench: Bench, tmp_path: Path, approval: bool
) -> None:
    site = bench.site("plain", policy=Policy(approval=approval), home=tmp_path / "home")
    people = tuple(Member(name=name, domain=name, examples=64) for name in ("plain", "photo"))
    facts = {"kind": "train", "round": 1, "input_shape": (3, 28, 28), "members": people}
    one, most = (
        told(site, plain_order(classes=tuple("0123456789"[:count]), **facts)) for count in (1, 9)
    )
    assert one == most
    assert one[1]["reason"] == (
        WAITS if approval else "other classes, or another shape, than the site's data has"
    )


def test_what_the_policy_forbids_is_heard_without_a_contract(bench: Bench, tmp_path: Path) -> None:
    order = plain_order(experiment={**plain_order().experiment, "training": {"batch_size": 2}})
    site = bench.site("plain", policy=Policy(), home=tmp_path / "home")
    assert "forbids 2 samples a batch (min_batch = 8)" in told(site, order)[1]["reason"]
    assert told(site, order.model_copy(update={"kind": "train"}))[1]["reason"] == WAITS


@pytest.mark.parametrize("approval", [True, False])
def test_what_depends_on_labels_is_told_to_the_site_alone(
    bench: Bench, tmp_path: Path, approval: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With every seed other samples are held out: each refusal would tell of their labels."""
    site = bench.site("plain", policy=Policy(approval=approval), home=tmp_path / "home")
    (client,) = site._federation.clients
    labels = (torch.arange(len(client.train)) < 4).long()
    skewed = replace(client, train=replace(client.train, y=labels))
    site.__dict__["_federation"] = replace(site._federation, clients=(skewed,))

    def reason(weights: object) -> str:
        raw = {**plain_order().experiment, "task": {"class_weights": weights}}
        return str(told(site, plain_order(experiment=raw))[1]["reason"])

    forbidden = "class weights of which one is more than 2 times another"
    assert forbidden in reason([3.0, *[1.0] * 9])  # whatever the site's labels are
    caplog.clear()
    said = reason("balanced")
    assert (said == WAITS) is approval
    assert (forbidden in said) is not approval
    assert (forbidden in caplog.text) is approval  # what the server does not hear, the site does
    assert not (tmp_path / "home" / "experiments").exists()


@pytest.mark.parametrize("kind", ["train", "score"])
def test_of_an_error_in_training_or_scoring_its_kind_is_told_and_no_word(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def broken(*work: object) -> None:
        raise KeyError("Mr Miller, born 1950-03-01")

    name = "rounds.local_train" if kind == "train" else "scoring.evaluate_part"
    monkeypatch.setattr(f"fedbn.core.{name}", broken)
    grid = grid_of(bench, tmp_path, policy=Policy(approval=False, sends=[]))
    columns = [{"name": "age"}, {"name": "pain", "values": ["low", "mid", "high"]}]
    raw = {**RAW, "data": {"contract": {"classes": ["0", "1"], "columns": columns}}}
    with suppress(TooFewClients):
        bench.run(grid, raw, expected=expected())
    said = str([dict(answer.content.config_records) for _, _, answer in grid.log])
    assert "not foreseen: KeyError; `fedbn federation log` at the site says more" in said
    assert "Miller" not in said


def test_the_levels_of_a_site_stay_there(bench: Bench, tmp_path: Path) -> None:
    grid = grid_of(bench, tmp_path)
    columns = [{"name": "age"}, {"name": "pain", "values": ["low", "mid", "high"]}]
    contract = {"classes": ["0", "1"], "columns": columns, "normalize": "site"}
    bench.run(grid, {**RAW, "data": {"contract": contract}}, expected=expected())
    said = str([dict(answer.content.config_records) for _, _, answer in grid.log])
    for name in NAMES:
        run = open_run(bench.root / "sites" / name / "run")
        (mean, deviation), *_ = zip(*run.inputs["preparation"]["levels"][name], strict=True)
        assert 50 < mean < 60
        assert str(mean)[:6] not in said
        assert str(deviation)[:6] not in said
        file = tmp_path / "at" / name / "export.csv"
        raw = torch.tensor([float(row.split(",")[0]) for row in file.read_text().split()[1:]])
        found = read_samples(file, run.inputs, client=name).x[:, 0]
        assert torch.allclose(found, (raw - mean) / deviation, atol=1e-5)


@pytest.mark.shows("H01")
def test_a_site_that_does_not_fit_the_contract_is_refused_by_name(
    bench: Bench, tmp_path: Path
) -> None:
    columns = [{"name": "age"}, {"name": "pain", "values": ["low", "mid"]}]
    contract = {"classes": ["0", "1"], "columns": columns}
    with pytest.raises(TooFewClients, match=r"nyu: its data does not fit: column 'pain' has a v"):
        bench.run(
            grid_of(bench, tmp_path), {**RAW, "data": {"contract": contract}}, expected=expected()
        )


def test_a_site_may_keep_its_names_to_itself(bench: Bench, tmp_path: Path) -> None:
    quiet = grid_of(bench, tmp_path, policy=Policy(approval=False, sends=[]))
    with pytest.raises(TooFewClients, match="forbids to name columns and classes"):
        server_app.ask_reports(quiet, report_order("fed"), expected())


@pytest.mark.shows("H06")
def test_a_site_sets_its_own_data_and_nothing_else() -> None:
    assert site_app.data_section("digits_mini", ["data.size=8"]) == {
        "name": "digits_mini",
        "size": 8,
    }
    with pytest.raises(ConfigError, match=r"--set training: only data\.KEY=VALUE is a site's own"):
        site_app.data_section("digits_mini", ["training.lr=1"])


@pytest.mark.shows("H01")
def test_check_compares_a_sites_table_with_the_contract(tmp_path: Path) -> None:
    folder = server_app.make(tmp_path / "fed", NAMES)
    file = write(tmp_path / "export.csv", 0)
    toml = tmp_path / "mine.toml"
    toml.write_text(
        'methods = ["fedbn"]\n[training]\nbatch_size = 8\n[data.contract]\nclasses = ["0", "1"]\n'
        '[[data.contract.columns]]\nname = "age"\nrange = [0.0, 120.0]\n'
        '[[data.contract.columns]]\nname = "pain"\nvalues = ["low", "mid"]\n'
    )
    line = ["federation", "check", str(folder.bundle("nyu")), "--data", str(file)]
    line += ["--set", "data.label=out", "--experiment", str(toml)]
    said = CliRunner().invoke(app, line).output
    assert "64 training samples of shape (3,)" in said
    assert "WRONG  waits for approval" in said
    file.write_text(file.read_text().replace("mid", "severe"))
    said = CliRunner().invoke(app, line).output
    assert "column 'pain': 'severe' is not a category of the contract: low, mid" in said


def test_a_site_says_something_of_every_kind_of_order() -> None:
    order = report_order("fed")
    for kind in get_args(Order.model_fields["kind"].annotation):
        assert site_app._done(order.model_copy(update={"kind": kind}))
