"""`training.patience`: a run that has not become better for long ends, and gives its best."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedbn
from commanding import call
from fedbn.core.best_round import EarlyStop, early_stop, validation
from fedbn.core.metric import Metric
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import checked
from fedbn.experiments.merging import Part
from fedbn.experiments.runner import Writer
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder
from scores import record
from tiny import federation, same_runs


class Once(nn.Module):
    """Right after so many batches, and wrong before and after."""

    def __init__(self, at: int):
        super().__init__()
        self.norm, self.out, self.at = nn.BatchNorm1d(3), nn.Linear(3, 2), at

    def forward(self, x: Tensor) -> Tensor:
        sign = torch.where(self.norm.num_batches_tracked == self.at, 100.0, -100.0)
        return self.out(self.norm(x)) + sign * x[:, :1] * torch.tensor([-1.0, 1.0])


def fit(**settings):
    given = {"batch_size": "full", "evaluation__validation": 0.25, "rounds": 12, **settings}
    return fedbn.fit(federation(16, 24), lambda: Once(3), "fedbn", **given)


@pytest.mark.parametrize(
    ("scores", "patience", "expected"),
    [
        ({1: [0.5], 2: [0.7], 3: [0.6]}, 2, None),
        ({1: [0.5], 2: [0.7], 3: [0.6], 4: [0.7]}, 2, EarlyStop(4, 2)),
        ({1: [0.5], 2: [0.7], 3: [0.6], 4: [0.8]}, 2, None),
        ({1: [0.5], 2: [0.4], 3: [0.3], 4: [0.9]}, 2, EarlyStop(3, 1)),
        ({2: [0.5], 4: [0.4], 6: [0.3]}, 3, EarlyStop(6, 2)),  # scored every second round
        ({1: [0.9], 2: [0.5, 0.6], 3: [0.4, 0.4]}, 2, None),  # more clients count more
        ({1: [0.5], 2: [0.4], 3: [0.3]}, None, None),
        ({}, 1, None),
    ],
)
def test_patience_by_hand(scores, patience, expected) -> None:
    assert early_stop(scores, patience) == expected


def test_of_errors_less_is_better() -> None:
    error = Metric("mae", higher=False)
    assert early_stop({1: [0.5], 2: [0.4], 3: [0.6], 4: [0.5]}, 2, error) == EarlyStop(4, 2)


def test_a_run_ends_and_gives_its_best_round() -> None:
    heard: list[str] = []
    result = fit(training__patience=4, notes=heard.append)
    assert result.state.round == 3
    assert max(record.round for record in result.records) == 7
    assert heard[-1] == (
        "stopped after round 7: no better validation accuracy than round 3's for 4 rounds; "
        "round 3 is the result"
    )
    assert same_runs(result.state, fit(rounds=7, evaluation__report="best").state)


def test_a_run_that_becomes_better_goes_on() -> None:
    result = fit(training__patience=4, rounds=6)
    assert (result.state.round, max(record.round for record in result.records)) == (3, 6)


def test_why_it_stopped_is_written_down_and_it_stays_stopped(tmp_path: Path) -> None:
    result = fit(training__patience=4, out=tmp_path / "run")
    place = RunFolder(tmp_path / "run").job("fedbn", "default", 0)
    written = json.loads((place / "stopped.json").read_text())
    assert (written["round"], written["best"]) == (7, 3)
    assert written["why"].startswith("stopped after round 7: no better validation accuracy")
    heard: list[str] = []
    again = fit(
        training__patience=4, out=tmp_path / "run", resume=True, callback=lambda d: heard.append(d)
    )
    assert heard == []
    assert same_runs(again.state, result.state)
    assert again.records == result.records
    (job,) = fedbn.jobs_of(tmp_path / "run")
    assert job.rounds_done == job.rounds == 7
    assert Part.read(RunFolder(tmp_path / "run")).unfinished == []


def test_only_scores_with_running_statistics_choose_the_best_round() -> None:
    rows = [record(value, split="valid", round=n) for n, value in ((1, 0.5), (2, 0.9), (3, 0.7))]
    other = [{**row, "value": 1 - row["value"], "statistics": "exact"} for row in rows]
    assert validation([*other, *rows, *other]) == {1: [0.5], 2: [0.9], 3: [0.7]}


@pytest.mark.parametrize(("higher", "left"), [(True, []), (False, ["fedbn seed 0, round 3 of 9"])])
def test_records_tell_by_their_own_metric_whether_patience_had_ended(
    higher: bool, left: list[str], tmp_path: Path
) -> None:
    raw = {"methods": ["fedbn"], "seeds": [0], "training": {"epochs": 9, "patience": 2}}
    wanted = checked({**raw, "evaluation": {"report": "best", "validation": 0.2}}, "a test")
    judged = {"task": {"metrics": [{"name": "mae", "higher": higher, "unit": ""}]}}
    about = {"split": "valid", "metric": "mae", "statistics": "running"}
    rows = [{**about, "round": round, "value": 1 / round} for round in (1, 2, 3)]
    part = Part(RunFolder(tmp_path), wanted, judged, {("fedbn", "default", 0): rows})
    assert part.unfinished == left


@pytest.mark.parametrize("at", [2, 5, 7])
def test_a_run_that_was_interrupted_stops_where_it_would_have(at: int, tmp_path: Path) -> None:
    def interrupt(done: fedbn.RoundDone) -> None:
        if done.round == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(training__patience=4, out=tmp_path / "run", callback=interrupt)
    went_on = fit(training__patience=4, out=tmp_path / "run", resume=True)
    whole = fit(training__patience=4)
    assert same_runs(went_on.state, whole.state)
    assert went_on.records == whole.records


def test_the_end_is_not_said_before_its_state_is_on_disk(tmp_path: Path, monkeypatch) -> None:
    """A full disk at the last checkpoint: what is resumed is not taken for finished."""
    full, save = OSError(errno.ENOSPC, "no room"), checkpoints.save
    monkeypatch.setattr(checkpoints, "save", Mock(side_effect=full))
    with pytest.raises(OSError, match="no room"):
        fit(training__patience=4, out=tmp_path / "run")
    monkeypatch.setattr(checkpoints, "save", save)
    went_on = fit(training__patience=4, out=tmp_path / "run", resume=True)
    whole = fit(training__patience=4)
    assert same_runs(went_on.state, whole.state)
    assert went_on.records == whole.records


def test_records_alone_are_finished_where_patience_ended_them(tmp_path: Path) -> None:
    fit(training__patience=4, out=tmp_path / "run")
    folder, alone = RunFolder(tmp_path / "run"), tmp_path / "alone"
    alone.mkdir()
    for name in ("config.toml", "environment.json", "metrics.jsonl"):
        shutil.copy(folder.path / name, alone)
    assert call("merge", alone, "--out", tmp_path / "merged").code == 0
    writer = Writer(RunFolder(tmp_path / "merged").job("fedbn", "default", 0))
    assert writer.finished(writer.done(), 12)


@pytest.mark.shows("S13")
def test_patience_needs_validation_data_and_takes_what_clients_bring() -> None:
    with pytest.raises(ConfigError, match=r"a, b brought none: set evaluation\.validation"):
        fit(training__patience=4, evaluation__validation=0.0)
    draws = np.random.default_rng(0)

    def part(n: int):
        x = draws.normal(size=(n, 3)).astype("float32")
        return x, (x[:, 0] > 0).astype("int64")

    sites = {name: (part(16), part(8), part(8)) for name in "ab"}
    given = {"rounds": 12, "batch_size": "full", "training__patience": 4}
    result = fedbn.fit(sites, lambda: Once(3), **given)
    assert result.state.round == 3
    assert [len(client.valid) for client in result.plan.federation.clients] == [8, 8]
    again = fedbn.fit(sites, lambda: Once(3), **given, evaluation__validation=0.5)
    assert same_runs(again.state, result.state)


@pytest.mark.shows("S13")
@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"training": {"patience": 0}}, "training.patience = 0"),
        (
            {"training": {"patience": 3}, "evaluation": {"validation": 0.2, "report": "last"}},
            "training.patience gives the best round: evaluation.report = 'last' excludes it",
        ),
    ],
)
def test_what_cannot_be_is_one_line(raw, line) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        checked(raw)
    assert "\n" not in str(error.value)
