"""Trackers hear every round once, in order, also after a resume, and can never cost a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from commanding import call, records
from fedbn.errors import ConfigError
from fedbn.experiments.jobs import Event
from fedbn.runs.folder import RunFolder
from fedbn.tracking import Job, Names, Tracking, find_trackers, numbers
from scores import record

# A user's own tracker: appends what it hears to a file.
OWN = """
import json, pathlib

class Mine:
    def __init__(self, folder):
        self.file = folder / "heard.jsonl"

    def say(self, *what):
        with self.file.open("a") as stream:
            stream.write(json.dumps(what) + chr(10))

    def log(self, job, round, records):
        self.say("log", job, round, len(records))

    def done(self, job):
        self.say("done", job)

    def close(self):
        self.say("close")

def mine(folder, config):
    assert config["methods"] == ["fedavg", "fedbn"]
    return Mine(folder)

def broken(folder, config):
    raise OSError("the server is away")

class Breaks(Mine):
    def log(self, job, round, records):
        raise ValueError("full")

def breaks(folder, config):
    return Breaks(folder)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "tracker_of_mine.py").write_text(OWN)
    return tmp_path


def heard(run: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (run / "heard.jsonl").read_text().splitlines()]


def asked(sites: Path, *more: object) -> list[object]:
    methods = ["--method", "fedavg", "--method", "fedbn"]
    flags = ["run", "--data", sites, "--model", "mlp", "--rounds", 2, "--seed", 0, "--workers", 1]
    return [*flags, *methods, "--out", "out", *more]


def test_an_own_tracker_hears_all_rounds_of_all_jobs(sites: Path, own: Path) -> None:
    answer = call(*asked(sites, "--log", "tracker_of_mine:mine"), cwd=own)
    assert answer.code == 0, answer.err
    jobs = [[method, "default", 0] for method in ("fedavg", "fedbn")]
    found = records(own / "out" / "metrics.jsonl")
    a_round = len([r for r in found if r["round"] == 1]) // 2
    final = Counter(r["method"] for r in found if r["statistics"] != "running")
    assert final["fedavg"] == 2 * final["fedbn"] > 0  # FedAvg has local statistics too
    assert heard(own / "out") == [
        *(line for job in jobs for line in (
            ["log", job, 1, a_round], ["log", job, 2, a_round], ["log", job, 2, final[job[0]]],
            ["done", job],
        )),
        ["close"],
    ]  # fmt: skip


def test_a_finished_run_can_be_logged_later(finished: Path, own: Path) -> None:
    answer = call("resume", finished, "--log", "tracker_of_mine:mine", cwd=own)
    assert answer.code == 0, answer.err
    rounds = [(line[1][0], line[2]) for line in heard(finished) if line[0] == "log"]
    assert rounds == [(method, n) for method in ("fedavg", "fedbn") for n in (1, 2, 3)]


def test_rounds_before_and_after_a_resume_are_heard_once(finished: Path, own: Path) -> None:
    """The newest checkpoint is damaged: the run goes on from the one before, and is told whole."""
    newest = max((finished / "checkpoints" / "fedbn" / "default" / "seed-0").glob("round-*"))
    (newest / "state.safetensors").write_bytes(b"damaged")
    answer = call("resume", finished, "--log", "tracker_of_mine:mine", cwd=own)
    assert answer.code == 0, answer.err
    logged = [(line[1][0], line[2]) for line in heard(finished) if line[0] == "log"]
    # FedBN's last round comes with its scores, and again with its final evaluation.
    expected = [("fedavg", 1), ("fedavg", 2), ("fedavg", 3)]
    assert sorted(logged) == [*expected, *(("fedbn", n) for n in (1, 2, 3, 3))]
    assert [line[1][0] for line in heard(finished) if line[0] == "done"] == ["fedavg", "fedbn"]


@pytest.mark.parametrize(("name", "said"), [("broken", "server is away"), ("breaks", "full")])
def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    name: str, said: str, sites: Path, own: Path
) -> None:
    both = ("--log", f"tracker_of_mine:{name}", "--log", "tracker_of_mine:mine")
    answer = call(*asked(sites, *both), cwd=own)
    assert answer.code == 0, answer.err
    assert answer.err.count(said) == 1
    assert "resume out --log ..." in answer.err
    assert len([line for line in heard(own / "out") if line[0] == "log"]) == 6


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensorbord", "did you mean 'tensorboard'?"),
        ("tracker_of_mine:mien", "did you mean 'mine'?"),
        ("nowhere:mine", "no module 'nowhere'"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_an_unknown_tracker_is_refused_before_anything_is_written(
    name: str, said: str, dry: bool, sites: Path, own: Path
) -> None:
    answer = call(*asked(sites, "--log", name, *["--dry-run"] * dry), cwd=own)
    assert answer.code == 3
    assert said in answer.line
    assert not (own / "out").exists()


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda wanted: None)
    with pytest.raises(ConfigError) as error:
        find_trackers([name])
    assert str(error.value).startswith(f"--log {name} needs {package}")
    assert f"pip install 'fedbn[{name}]'" in str(error.value)


class Recorded:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Job, int]] = []
        self.finished: list[Job] = []

    def log(self, job: Job, round: int, records: Sequence[Mapping[str, Any]]) -> None:
        self.rounds.append((job, round))

    def done(self, job: Job) -> None:
        self.finished.append(job)

    def close(self) -> None:
        """Nothing to do."""


def test_earlier_rounds_are_told_with_the_later_ones_and_nothing_is_read(tmp_path: Path) -> None:
    job, other = ("fedbn", "default", 0), ("fedavg", "default", 0)
    folder = RunFolder(tmp_path / "run")
    folder.begin({})
    tracker, said = Recorded(), []
    tracking = Tracking({"x": lambda f, c: tracker}, folder, said.append)
    earlier = [record(0.5, round=n) for n in (1, 2)]
    tracking(Event("begin", job, 3, 5))
    tracking(Event("earlier", job, 2, 4, records=earlier))
    tracking(Event("earlier", other, 1, 1, records=earlier[:1], over=True))
    tracking(Event("round", job, 3, 4, records=[record(0.5, round=3)]))
    assert tracker.rounds == [(job, 1), (job, 2), (other, 1), (job, 3)]
    assert tracker.finished == [other]
    assert said == []


def test_names_are_legal_and_no_two_become_one() -> None:
    names = Names()
    words = ["a b", "a/b", "a?b", "ä", "日", "x" * 400, "a/b"]
    found = [names(word) for word in words]
    assert found[1] == found[6]
    assert len(set(found)) == 6
    assert all(name.isascii() and "/" not in name and len(name) < 200 for name in found)


def test_numbers_of_a_round_with_their_means() -> None:
    found = numbers(
        [
            record(0.25, "a"),
            record(0.75, "b"),
            record(2.0, "a", metric="loss"),
            {**record(0.0, "b", metric="loss"), "value": None},
            record(0.5, "all", domain="x", split="valid"),
            record(1.0, "a", statistics="exact"),
        ],
        Names(),
    )
    assert found == {
        "mean/test accuracy": 0.5,
        "mean/test accuracy exact statistics": 1.0,
        "mean/test loss": 2.0,
        "mean/valid accuracy": 0.5,
        "test accuracy/a": 0.25,
        "test accuracy/b": 0.75,
        "test accuracy exact statistics/a": 1.0,
        "test loss/a": 2.0,
        "valid accuracy/x": 0.5,
    }
