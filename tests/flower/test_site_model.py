"""A site gets its model: a run folder of one client, used at the site without the server."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid, few, in_one_process
from flwr.app import ConfigRecord, Message, RecordDict
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.core.best_round import best_round, early_stop, validation
from fedbn.core.engine import RoundCost
from fedbn.core.replica import Replica
from fedbn.errors import ConfigError, Interrupted, TooFewClients
from fedbn.experiments.configuration import checked
from fedbn.flower import messages, server_app, site_app
from fedbn.flower.membership import Expected
from fedbn.flower.policy import OPEN
from fedbn.flower.site import Site
from fedbn.flower.site_job import SiteOptions
from fedbn.runs import checkpoints, metrics
from fedbn.trained.opening import open_run

BEST = {
    **RAW,
    "training": {"rounds": 4, "local_steps": 2, "lr": 0.3},
    "evaluation": {"report": "best", "validation": 0.25},
}

JUDGED = ("valid", "accuracy")
ANEW = "the run begins anew, and …/run has BatchNorm and a model of later rounds"


def folder_of(bench: Bench, site: str, run: str = "run") -> Path:
    return bench.root / "sites" / site / run


def outputs(model: torch.nn.Module, site: str) -> torch.Tensor:
    client = next(client for client in few().clients if client.name == site)
    with torch.no_grad():
        return model(client.train.batch(slice(0, 16))[0])


@pytest.mark.parametrize("method", ["fedbn", "fedavg", "silobn"])
def test_a_sites_model_is_the_one_of_the_embedded_runs_client(bench: Bench, method: str) -> None:
    raw = {**RAW, "methods": [method]}
    bench.run(bench.grid(), raw)
    plan, state, records = in_one_process(raw)
    for site in ("plain", "photo"):
        trained = open_run(folder_of(bench, site))
        assert trained.clients == (site,)
        replica = Replica(plan.initial_model, plan.method)
        replica.load(state.shared, state.local[site])
        wanted = outputs(replica.model.eval(), site)
        assert torch.equal(outputs(trained.model(site), site), wanted)
        own = [record for record in records if record.client == site]
        assert {(r.round, r.split, r.metric, r.value) for r in trained.records} == {
            (r.round, r.split, r.metric, r.value) for r in own
        }


def test_a_site_makes_its_model_once_whatever_the_servers_log_says_by_then(bench: Bench) -> None:
    grid, site = bench.grid(), bench.site("plain")
    bench.run(grid, RAW)
    read = (messages.get(m.content, messages.Order, messages.SHARED) for _, m, _ in grid.log[2:])
    order = next(order for order in read if order.kind == "train")
    later = order.model_copy(update={"round": order.round + 1, "log": 64 * "0"})
    job = messages.job_of(order)
    assert site._desk(order, job) is site._desk(later, job)
    other = order.model_copy(update={"members": order.members[:1]})
    assert site._desk(other, job) is not site._desk(order, job)


def test_a_site_that_rests_in_the_last_round_has_the_last_shared_part(bench: Bench) -> None:
    raw = {**RAW, "training": {"rounds": 3, "local_steps": 2, "participation": 0.5}}
    bench.run(bench.grid(), raw)
    plan, state, _ = in_one_process(raw)
    for site in ("plain", "photo"):
        replica = Replica(plan.initial_model, plan.method)
        replica.load(state.shared, state.scored_with(site))
        wanted = outputs(replica.model.eval(), site)
        assert torch.equal(outputs(open_run(folder_of(bench, site)).model(site), site), wanted)


@pytest.mark.parametrize("stop", [None, 2])
def test_the_best_round_is_the_one_that_the_embedded_run_gives(bench: Bench, stop) -> None:
    if stop:
        with pytest.raises(Interrupted):
            bench.run(bench.grid(), BEST, stop_after=stop)
    grid = bench.grid()
    bench.run(grid, BEST)
    ends = [messages.get(m.content, messages.Order) for _, m, a in grid.log if "noted" in a.content]
    plan, _, records = in_one_process(BEST)
    best = best_round(validation(map(vars, records)))
    assert [order.best for order in ends] == [best, best]
    short = {**BEST, "training": {**BEST["training"], "rounds": best}}
    plan, state, _ = in_one_process(short)
    for site in ("plain", "photo"):
        trained = open_run(folder_of(bench, site))
        assert trained.state.round == best
        replica = Replica(plan.initial_model, plan.method)
        replica.load(state.shared, state.local[site])
        assert torch.equal(outputs(trained.model(site), site), outputs(replica.model.eval(), site))
        kept = [n for n, _ in checkpoints.rounds(next(folder_of(bench, site).rglob("seed-0")))]
        assert {*kept} <= {best, 4}


@pytest.mark.shows("F26")
@pytest.mark.parametrize("domains", [False, True])
def test_a_validation_score_counts_once_a_site(bench: Bench, domains: bool) -> None:
    _, _, records = in_one_process(BEST)
    best = best_round(validation(map(vars, records)))
    other = 2 if best != 2 else 3

    def repeat(site: str, answer: Message) -> Message:
        record = answer.content.config_records.get("answer")
        said = json.loads(str(record["json"])) if record else {}
        if site == "photo" and said.get("scores"):
            (score,) = (s for s in said["scores"] if (s["split"], s["metric"]) == JUDGED)
            more = [{**score, "domain": f"d{n}"} if domains else score for n in range(900)]
            said["scores"] += more if said["round"] == other + 1 else []  # asked a round later
            answer.content["answer"] = ConfigRecord({"json": json.dumps(said)})
        return answer

    grid = bench.grid(repeat)
    found = metrics.read(bench.run(grid, BEST).metrics)
    ends = [messages.get(m.content, messages.Order) for _, m, a in grid.log if "noted" in a.content]
    assert [order.best for order in ends] == [best, best]
    judged = [r for r in found if (r["split"], r["metric"]) == JUDGED]
    assert len(judged) == 2 * 4


@pytest.mark.parametrize("stop", [None, 2])
def test_patience_ends_with_the_same_state_as_in_one_process(bench: Bench, stop) -> None:
    """The server hears a round later, and trains one more, which does not count."""
    training = {**BEST["training"], "rounds": 12, "patience": 2}
    raw = {**BEST, "training": training}
    _, _, records = in_one_process(raw)
    early = early_stop(validation(map(vars, records)), 2)
    assert early is not None
    assert early.round < 12
    if stop:
        with pytest.raises(Interrupted):
            bench.run(bench.grid(), raw, stop_after=stop)
    folder = bench.run(bench.grid(), raw)
    place = folder.job("fedbn", "default", 0)
    assert json.loads((place / "stopped.json").read_text()).items() >= asdict(early).items()
    found = metrics.read(folder.metrics)
    assert max(r["round"] for r in found if r["split"] == "valid") == early.round
    assert max(r["round"] for r in found) == early.round + 1
    short = {**BEST, "training": {**BEST["training"], "rounds": early.best}}
    plan, state, _ = in_one_process(short)
    kept = checkpoints.Checkpoint(checkpoints.place_of(place, early.best)).section("shared")
    assert all(torch.equal(kept[name], value) for name, value in state.shared.state.items())
    for site in ("plain", "photo"):
        trained = open_run(folder_of(bench, site))
        assert trained.state.round == early.best
        replica = Replica(plan.initial_model, plan.method)
        replica.load(state.shared, state.local[site])
        assert torch.equal(outputs(trained.model(site), site), outputs(replica.model.eval(), site))


def test_the_commands_use_a_sites_folder_without_the_server(bench: Bench, tmp_path: Path) -> None:
    bench.run(bench.grid())
    place = str(folder_of(bench, "photo"))
    said = CliRunner().invoke(app, ["evaluate", place, "--resamples", "10"])
    assert said.exit_code == 0, said.output
    made = tmp_path / "model"
    said = CliRunner().invoke(app, ["export", place, "--client", "photo", "--out", str(made)])
    assert said.exit_code == 0, said.output
    page = tmp_path / "page.html"
    said = CliRunner().invoke(app, ["report", place, "--out", str(page)])
    assert said.exit_code == 0, said.output
    assert "photo" in page.read_text()


def test_the_commands_use_the_folder_of_a_site_with_pictures(bench: Bench, tmp_path: Path) -> None:
    draws, names = np.random.default_rng(0), ("nyu", "usm")
    sites = []
    for name in names:
        for label in ("cat", "dog"):
            home = tmp_path / "at" / name / label
            home.mkdir(parents=True)
            for number in range(20):
                pixels = draws.integers(0, 256, (8, 8, 3)).astype("uint8")
                Image.fromarray(pixels).save(home / f"{number}.png")
        data = site_app.data_section(str(tmp_path / "at" / name), [])
        sites.append(Site(SiteOptions(name, data, bench.root / "sites" / name, "fed")))
    contract = {"classes": ["cat", "dog"], "size": 8}
    raw = {**RAW, "data": {"contract": contract}, "model": {"name": "mlp"}}
    keys = {name.encode(): name for name in names}
    bench.run(FakeGrid(sites), raw, expected=Expected(names, keys, len(names)))
    place = str(folder_of(bench, "nyu"))
    said = CliRunner().invoke(app, ["evaluate", place, "--resamples", "10"])
    assert said.exit_code == 0, repr(said.exception)
    page = tmp_path / "page.html"
    said = CliRunner().invoke(app, ["report", place, "--out", str(page)])
    assert said.exit_code == 0, repr(said.exception)
    text = page.read_text()
    assert "Confusion matrices" in text
    assert "data:image" not in text  # nobody asked for pictures of patients


def test_a_message_done_twice_writes_its_numbers_once(bench: Bench) -> None:
    def twice(name: str, answer: Message) -> Message:
        if messages.SHARED in grid.log[-1][1].content:
            bench.site(name).answer(grid.log[-1][1].content, RecordDict())
        return answer

    grid = bench.grid(twice)
    bench.run(grid)
    found = metrics.read(next(folder_of(bench, "photo").rglob("seed-0/metrics.jsonl")))
    once = {json.dumps(record) for record in found}
    assert len(found) == len(once) > 4


@pytest.mark.shows("H26")
@pytest.mark.parametrize("alone", [False, True])
def test_a_new_start_of_the_same_name_keeps_a_sites_batchnorm_and_model(
    bench: Bench, alone: bool
) -> None:
    """Where the other site is enough the run goes on, and this one stays out of all of it."""
    bench.run(bench.grid(), BEST)
    place = folder_of(bench, "photo")
    before = {file: file.read_bytes() for file in place.rglob("round-*/*")}
    (bench.root / "runs" / "run").rename(bench.root / "runs" / "gone")
    other = Bench(bench.root)
    if alone:
        folder_of(bench, "plain").rename(bench.root / "moved away")
        other.run(other.grid(), BEST)
        said = f"photo is left out: photo: {ANEW}"
        assert all(f"round {number}: {said}" in other.notes() for number in range(1, 5))
    else:
        with pytest.raises(TooFewClients, match=ANEW):
            other.run(other.grid(), BEST)
    assert str(bench.root) not in other.notes()
    assert {file: file.read_bytes() for file in place.rglob("round-*/*")} == before
    place.rename(bench.root / "photo moved away")
    if not alone:
        folder_of(bench, "plain").rename(bench.root / "moved away")
        (bench.root / "runs" / "run").rename(bench.root / "runs" / "refused")
        other.run(other.grid(), BEST)


def test_a_new_start_of_a_run_of_one_round_keeps_a_sites_model(bench: Bench) -> None:
    raw = {**RAW, "training": {"rounds": 1, "local_steps": 2}}
    bench.run(bench.grid(), raw)
    files = {file: file.read_bytes() for file in folder_of(bench, "photo").rglob("round-*/*")}
    (bench.root / "runs" / "run").rename(bench.root / "runs" / "gone")
    with pytest.raises(TooFewClients, match=ANEW):
        Bench(bench.root).run(bench.grid(), raw)
    assert files == {file: file.read_bytes() for file in files}


def test_a_site_that_was_away_in_the_best_round_has_a_model_to_use(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Round 2 is the best by the scores of `plain`; `photo` is away when it is sent, in round 3."""

    def lift(site: str, answer: Message) -> Message:
        if record := answer.content.config_records.get("answer"):
            said = json.loads(str(record["json"]))
            scored = said["round"] - (messages.SHARED in answer.content)
            for score in said["scores"]:
                score["value"] = 0.9 if scored == 2 else 0.1
            answer.content["answer"] = ConfigRecord({"json": json.dumps(said)})
        return answer

    def away(cost: RoundCost) -> None:
        grid.away = {"photo"} if cost.round == 2 else set()

    quiet = OPEN.model_copy(update={"sends": ["loss"]})
    grid = FakeGrid([bench.site("plain"), bench.site("photo", policy=quiet)], lift)
    bench.run(grid, BEST, expected=Expected(SITES, {s.encode(): s for s in SITES}, 1), costs=away)
    assert open_run(folder_of(bench, "plain")).state.round == 2
    trained = open_run(folder_of(bench, "photo"))
    assert outputs(trained.model("photo"), "photo").isfinite().all()
    assert trained.state.round == 4
    assert "photo was away when round 2, the best one, was sent: round 4 is used" in caplog.text


def test_data_of_an_order_is_no_data_of_the_site(bench: Bench) -> None:
    """It would be written into the site's run folder, and read when that is used."""
    for data in ({"path": "/etc/passwd"}, {"label": "x"}, {"contract": None, "name": "y"}):
        grid = bench.grid()
        (order,) = server_app.orders(checked(RAW), "fed")
        asked = order.model_copy(update={"experiment": {**order.experiment, "data": data}})
        (key,) = data.keys() - {"contract"}
        with pytest.raises(ConfigError, match=rf"an order names data\.{key}: all but the contract"):
            grid.sites["plain"].answer(messages.put(asked), RecordDict())


@pytest.mark.shows("H26")
def test_another_run_of_the_same_name_does_not_overwrite_a_sites_model(bench: Bench) -> None:
    bench.run(bench.grid())
    other = Bench(bench.root)
    (bench.root / "runs" / "run").rename(bench.root / "runs" / "gone")
    raw = {**RAW, "training": {"rounds": 2, "local_steps": 1}}
    with pytest.raises(TooFewClients, match="configuration changed since the run began: training"):
        other.run(other.grid(), raw)
