"""What holds of a run whatever its engine: in this process, or with sites that answer messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench, FakeGrid, few

from fedbn.core.federation import Federation
from fedbn.errors import Interrupted
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import Event
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import prepare, start
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("bench")  # Flower wants to know whose messages these are
JOB = ("fedbn", "default", 0)
Run = Callable[..., RunFolder]


def training(**values: Any) -> dict[str, Any]:
    return {**RAW, "training": {"rounds": 3, "local_steps": 2, **values}}


def sites(scale: float = 1.0) -> Federation:
    """The sites' data; `scale` spoils what `photo` trains on."""
    plain, photo = (next(c for c in few().clients if c.name == name) for name in SITES)
    x = photo.train.x.float() * scale
    return replace(few(), clients=(plain, replace(photo, train=replace(photo.train, x=x))))


def embedded(root: Path, notes: list[str]) -> Run:
    def run(raw, name, data=None, stop_after=None):
        folder, experiment = RunFolder(root / "embedded" / name), checked(raw)
        if not folder.config.exists():
            folder.begin(raw)
        planner, rounds = Planner(federation=data or sites()), []

        def hear(event: Event) -> None:
            notes.extend([event.text] if event.kind == "note" else [])
            rounds.extend([event] if event.kind == "round" else [])

        start(
            experiment,
            prepare(experiment, planner),
            planner,
            folder,
            hear,
            workers=1,
            stop=lambda: len(rounds) == stop_after,
        )
        return folder

    return run


def flower(root: Path, notes: list[str]) -> Run:
    def run(raw, name, data=None, stop_after=None):
        bench = Bench(root / "flower" / name)
        made = [bench.site(site) for site in SITES]
        for site, client in zip(made, (data or sites()).clients, strict=True):
            site.__dict__["_federation"] = replace(few(), clients=(client,))
        try:
            return bench.run(FakeGrid(made), raw, name, stop_after=stop_after)
        finally:
            notes.append(bench.notes())

    return run


def numbers(folder: RunFolder) -> dict[tuple[object, ...], float | None]:
    key = ("method", "setting", "seed", "round", "client", "domain", "split", "metric")
    found = metrics.read(folder.metrics)
    assert found == metrics.read(folder.job(*JOB) / "metrics.jsonl")
    return {tuple(record[k] for k in key): record["value"] for record in found}


def shared(folder: RunFolder) -> tuple[int, dict[str, torch.Tensor]]:
    number, place = checkpoints.rounds(folder.job(*JOB))[0]
    return number, checkpoints.Checkpoint(place).section("shared")


def alike(one: RunFolder, other: RunFolder) -> bool:
    (n, a), (m, b) = shared(one), shared(other)
    return n == m and a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(params=[embedded, flower])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return request.param(tmp_path, [])


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_both_engines_give_the_same_records_and_checkpoints(
    participation: float, tmp_path: Path
) -> None:
    raw = training(participation=participation)
    one, two = (engine(tmp_path, [])(raw, "run") for engine in (embedded, flower))
    assert numbers(one) == numbers(two)
    assert alike(one, two)


def test_both_engines_leave_out_the_same_client_and_say_so(tmp_path: Path) -> None:
    spoilt, heard = sites(scale=1e30), ([], [])
    one, two = (
        engine(tmp_path, notes)(training(), "run", spoilt)
        for engine, notes in zip((embedded, flower), heard, strict=True)
    )
    refused = {key[3:5] for key in numbers(one) if key[-1] == "refused"}
    assert refused == {(round, "photo") for round in (1, 2, 3)}
    assert {key[3:5] for key in numbers(two) if key[-1] == "refused"} == refused
    assert alike(one, two)
    assert all("round 1: photo" in "\n".join(notes) for notes in heard)


@pytest.mark.parametrize("done", [1, 2])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_that_stops_saves_its_round_and_goes_on_bit_for_bit(
    run: Run, done: int, participation: float
) -> None:
    raw = training(participation=participation)
    whole = run(raw, "whole")
    with pytest.raises(Interrupted, match=f"stopped after round {done} of 3"):
        run(raw, "halved", stop_after=done)
    halved = run(raw, "halved")
    assert halved.metrics.read_bytes() == whole.metrics.read_bytes()
    assert alike(halved, whole)


def test_a_run_that_is_finished_is_left_as_it_is(run: Run) -> None:
    folder = run(training(), "run")
    before = folder.metrics.read_bytes(), shared(folder)[0]
    run(training(), "run")
    assert (folder.metrics.read_bytes(), shared(folder)[0]) == before
