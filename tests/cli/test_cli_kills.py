"""Kills and signals at any instant: resumed, a run ends with the same bits (F01 to F06, F61)."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from commanding import Processes, bits, call, children, end, newest, running, until

# A model whose training waits, at one step of a chosen round, until a file is gone.
GATE = """
import os, threading, time
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent
steps = 0

class Gate(nn.Module):
    def forward(self, x):
        global steps
        if self.training and torch.is_grad_enabled():  # no probe
            steps += 1
            if steps == 3 and (HERE / "shut").exists():  # the first step of round 2, of two clients
                (HERE / f"waiting-{os.getpid()}").touch()
                while (HERE / "shut").exists():
                    time.sleep(0.005)
        return x

def net(classes):
    return nn.Sequential(Gate(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""
ASKED = ("--model", "gate:net", "--rounds", 4, "--seed", 0, "--method", "fedavg")
ASKED += ("--method", "fedbn", "--set", "training.batch_size=full")
ASKED += ("--set", "evaluation.report=best", "--set", "evaluation.validation=0.25")
ASKED += ("--set", "checkpoint.every=1")
AUTO = ("--set", "checkpoint.every=auto")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the gated model, the gate shut."""
    (tmp_path / "gate.py").write_text(GATE)
    (tmp_path / "shut").touch()
    return tmp_path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, sites: Path) -> dict[str, bytes]:
    home = tmp_path_factory.mktemp("uninterrupted")
    (home / "gate.py").write_text(GATE)
    answer = call("run", "--data", sites, *ASKED, "--workers", 1, "--out", "run", cwd=home)
    assert answer.code == 0, answer.err
    return bits(home / "run")


def waiting(home: Path, workers: int) -> Callable[[], bool]:
    """Whether the training of so many processes has come to the gate."""
    return lambda: len(list(home.glob("waiting-*"))) == workers


def resumed(home: Path) -> dict[str, bytes]:
    (home / "shut").unlink(missing_ok=True)
    answer = call("resume", home / "run", "--trust", "gate", "--workers", 1)
    assert answer.code == 0, answer.err
    return bits(home / "run")


@pytest.mark.shows("F04", "F06")
@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGINT, 1), (signal.SIGTERM, 2)],
    ids=["Ctrl-C", "SIGTERM, with workers"],
)
def test_one_signal_saves_the_round(
    number: int,
    workers: int,
    home: Path,
    sites: Path,
    processes: Processes,
    uninterrupted: dict[str, bytes],
) -> None:
    asked = ("run", "--data", sites, *ASKED, "--workers", workers, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until(waiting(home, workers), process)
    process.send_signal(number)
    until(lambda: "stopping after this round" in (home / "stderr").read_text(), process)
    (home / "shut").unlink()
    assert process.wait(60) == 130
    last = (home / "stderr").read_text().splitlines()[-1]
    assert last.startswith("fedbn: stopped after round ")
    assert last.endswith("continue with `fedbn resume run --trust gate`")
    assert newest(home / "run", "fedavg").name >= "round-000002"
    assert resumed(home) == uninterrupted


@pytest.mark.shows("F05")
def test_two_signals_stop_at_once(
    home: Path, sites: Path, processes: Processes, uninterrupted: dict[str, bytes]
) -> None:
    asked = ("run", "--data", sites, *ASKED, *AUTO, "--workers", 1, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until(waiting(home, 1), process)
    process.send_signal(signal.SIGINT)
    until(lambda: "stopping after this round" in (home / "stderr").read_text(), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130  # though the gate is shut
    assert "stopped at once; saved rounds are there" in (home / "stderr").read_text()
    assert newest(home / "run", "fedavg").name == "round-000001"
    assert results(resumed(home)) == results(uninterrupted)


def test_a_signal_while_the_picture_is_drawn_is_heard_at_once(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(records: object, file: Path) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("drawn to the end")

    monkeypatch.setattr("fedbn.results.figures.draw_curves", draw)
    answer = call("resume", finished, pictures=True)
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == "fedbn: interrupted; finished rounds are saved"


@pytest.mark.shows("F01")
def test_a_kill_in_the_middle_of_a_round_leaves_no_worker_behind(
    home: Path, sites: Path, processes: Processes, uninterrupted: dict[str, bytes]
) -> None:
    asked = ("run", "--data", sites, *ASKED, "--workers", 2, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until(waiting(home, 2), process)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    until(lambda: not any(map(running, workers)))
    assert resumed(home) == uninterrupted


def results(found: dict[str, bytes]) -> dict[str, bytes]:
    """All numbers, and the last state of each job."""
    return {k: v for k, v in found.items() if "round-" not in k or "round-000004" in k}


def test_where_rounds_are_not_saved_one_by_one_workers_save_the_last_when_their_parent_is_killed(
    home: Path, sites: Path, processes: Processes, uninterrupted: dict[str, bytes]
) -> None:
    asked = ("run", "--data", sites, *ASKED, *AUTO, "--workers", 2, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until(waiting(home, 2), process)
    workers = children(process.pid)
    if list((home / "run").rglob("round-*")):
        pytest.skip("ten seconds went by in the first round: this machine is too busy")
    process.kill()
    process.wait()
    until(lambda: not any(map(running, workers)))
    assert {newest(home / "run", m).name for m in ("fedavg", "fedbn")} == {"round-000001"}
    assert results(resumed(home)) == results(uninterrupted)


def test_where_rounds_are_not_saved_one_by_one_one_signal_saves_the_last(
    home: Path, sites: Path, processes: Processes, uninterrupted: dict[str, bytes]
) -> None:
    asked = ("run", "--data", sites, *ASKED, *AUTO, "--workers", 1, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until(waiting(home, 1), process)
    process.send_signal(signal.SIGTERM)
    until(lambda: "stopping after this round" in (home / "stderr").read_text(), process)
    (home / "shut").unlink()
    assert process.wait(60) == 130
    assert "kill -9" not in (home / "stderr").read_text()
    assert "checkpoint interval: 10 s or longer" in (home / "run" / "run.log").read_text()
    assert newest(home / "run", "fedavg").name == "round-000002"
    assert results(resumed(home)) == results(uninterrupted)


@pytest.mark.shows("F15")
def test_a_second_process_is_refused_and_a_dead_one_s_lock_is_taken_over(
    home: Path, sites: Path, processes: Processes, uninterrupted: dict[str, bytes]
) -> None:
    asked = ("--data", sites, *ASKED, "--workers", 1, "--out", "run")
    first = processes.start("run", *asked, cwd=home)
    until(waiting(home, 1), first)
    second = processes.run("resume", "run", "--trust", "gate", cwd=home)
    assert second.code == 1
    assert "is in use by another process" in second.err
    end(first.pid)
    first.wait()
    assert resumed(home) == uninterrupted


@pytest.mark.shows("F61")
def test_a_killed_worker_is_named(home: Path, sites: Path, uninterrupted: dict[str, bytes]) -> None:
    def kill_one() -> None:
        until(waiting(home, 2))
        end(int(next(home.glob("waiting-*")).name.partition("-")[2]))

    killer = threading.Thread(target=kill_one)
    killer.start()
    answer = call("run", "--data", sites, *ASKED, "--workers", 2, "--out", "run", cwd=home)
    killer.join()
    assert answer.code == 1
    last = answer.err.splitlines()[-1]
    assert "the worker process of fed" in last
    assert "default 0 died (exit status -9); saved rounds are there" in last
    assert not any(map(running, children(os.getpid())))
    assert resumed(home) == uninterrupted


def test_a_kill_before_the_configuration_is_checked(
    home: Path, sites: Path, processes: Processes, uninterrupted: dict[str, bytes]
) -> None:
    asked = ("run", "--data", sites, *ASKED, "--workers", 1, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until((home / "run" / "request.toml").exists, process)
    process.kill()
    process.wait()
    assert sorted(f.name for f in (home / "run").iterdir()) == ["request.toml"]
    assert resumed(home) == uninterrupted


def test_ctrl_c_before_training(home: Path, sites: Path, processes: Processes) -> None:
    asked = ("run", "--data", sites, *ASKED, "--workers", 1, "--out", "run")
    process = processes.start(*asked, cwd=home)
    until((home / "run" / "request.toml").exists, process)
    process.send_signal(signal.SIGTERM)
    (home / "shut").unlink()
    assert process.wait(60) == 130
    assert "Traceback" not in (home / "stderr").read_text()
    assert call("resume", home / "run", "--trust", "gate").code == 0


def killed_somewhere(
    home: Path, sites: Path, processes: Processes, draws: random.Random, expected: int
) -> None:
    """Kill a run when its records have come to a number of bytes drawn at random."""
    workers = draws.choice([1, 2])
    limit = draws.randrange(expected)
    process = processes.start(
        *("run", "--data", sites, *ASKED, "--workers", workers, "--out", "run"), cwd=home
    )
    jobs = [home / f"run/checkpoints/{m}/default/seed-0/metrics.jsonl" for m in ("fedavg", "fedbn")]

    def reached() -> bool:
        written = sum(job.stat().st_size for job in jobs if job.exists())
        return written >= limit or process.poll() is not None

    until(reached)
    assert process.poll() in (None, 0), (home / "stderr").read_text()
    left = children(process.pid)
    process.kill()
    process.wait()
    until(lambda: not any(map(running, left)))


def check_random_kills(
    count: int, seed: int, home: Path, sites: Path, expected: dict[str, bytes]
) -> None:
    draws = random.Random(seed)
    (home / "shut").unlink()
    for number in range(count):
        place = home / str(number)
        place.mkdir()
        (place / "gate.py").write_text(GATE)
        started = Processes()
        try:
            size = len(expected["metrics.jsonl"])
            killed_somewhere(place, sites, started, draws, size)
        finally:
            started.end()
        found = resumed(place)
        different = [name for name in expected if found.get(name) != expected[name]]
        assert found == expected, f"kill {number} of seed {seed}: {different}"


@pytest.mark.shows("F01")
def test_a_kill_at_a_random_instant(
    home: Path, sites: Path, uninterrupted: dict[str, bytes]
) -> None:
    check_random_kills(1, random.randrange(2**32), home, sites, uninterrupted)


@pytest.mark.shows("F03")
@pytest.mark.slow
def test_twenty_kills_at_random_instants(
    home: Path, sites: Path, uninterrupted: dict[str, bytes]
) -> None:
    check_random_kills(20, random.randrange(2**32), home, sites, uninterrupted)
