"""Time left, against runs of which every round's length is known."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import pytest

from fedbn.cli.progress import Clock
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import Ahead, Event, Key, jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import work


@dataclass(frozen=True)
class Job:
    """A job of a made-up run: its rounds, what each really takes, and what it is said to cost."""

    key: Key
    rounds: int
    seconds: float
    work: float = 100.0


def told(run: list[Job], beside: int, waking: float, making: float) -> list[tuple[str, float]]:
    """What is told after each event of a run, beside the seconds that are really left.

    Args:
        run: The jobs, in their order.
        beside: How many go side by side.
        waking: Seconds before the first round of a process begins.
        making: Seconds before the first round of any further job.
    """
    happened: list[tuple[float, int, Event]] = []
    places = [waking] * min(beside, len(run))
    for number, job in enumerate(run):
        at = heapq.heappop(places) + (making if number >= beside else 0.0)
        for round in range(1, job.rounds + 1):
            at += job.seconds
            event = Event("round", job.key, round, job.rounds)
            happened.append((at, len(happened), event))
        happened.append((at, len(happened), Event("done", job.key, job.rounds, job.rounds)))
        heapq.heappush(places, at)
    happened.sort(key=lambda each: each[:2])
    now = [0.0]
    clock = Clock(lambda: now[0])
    ahead = [Ahead(job.key, job.rounds, job.work) for job in run]
    clock.hear(
        Event("begin", run[0].key, 0, sum(j.rounds for j in run), ahead=ahead, beside=beside)
    )
    said = [(clock.text(), happened[-1][0])]
    for at, _, event in happened:
        now[0] = at
        clock.hear(event)
        said.append((clock.text(), happened[-1][0] - at))
    return said


def seconds(text: str) -> int:
    minutes, rest = text.removesuffix(" left").split(":")
    return 60 * int(minutes) + int(rest)


def seeds(method: str, setting: str, rounds: int, each: float, work: float = 100.0) -> list[Job]:
    return [Job((method, setting, seed), rounds, each, work) for seed in (0, 1)]


RUNS = {
    "one job": ([Job(("fedbn", "default", 0), 120, 1.0)], 1),
    "methods of unequal cost, one after another": (
        [*seeds("fedavg", "default", 100, 1.0), *seeds("fedbn", "default", 100, 1.4)],
        1,
    ),
    "side by side": ([Job(("fedbn", "default", seed), 60, 2.0) for seed in range(5)], 2),
    "local epochs, as many epochs each": (
        [
            Job(
                (method, f"local_epochs={epochs}", seed), 64 // epochs, 2.0 * epochs, 100.0 * epochs
            )
            for seed in (0, 1)
            for epochs in (1, 4, 16)
            for method in ("fedavg", "fedbn")
        ],
        2,
    ),
    "a round each": ([Job(("fedbn", f"lr={i}", 0), 1, 60.0) for i in range(20)], 1),
}


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_told_before_three_rounds_and_then_within_half_as_much_again(name: str) -> None:
    run, beside = RUNS[name]
    said = told(run, beside, waking=40.0, making=3.0)
    known = [text != "time left unknown" for text, _ in said]
    first = known.index(True)
    assert all(known[first:])
    assert 3 < first <= 3 + 2 * beside if run[0].rounds > 3 else 3 < first < 10
    for text, left in said[first:]:
        assert left / 1.5 - 2 <= seconds(text) <= 1.5 * left + 2, (text, left)
    assert said[-1][0] == "0:00 left"


def test_time_goes_by_between_rounds() -> None:
    now = [0.0]
    clock = Clock(lambda: now[0])
    job = ("fedbn", "default", 0)
    clock.hear(Event("begin", job, 0, 10, ahead=[Ahead(job, 10, 5.0)]))
    for round in range(1, 5):
        now[0] = 100.0 + 20 * round
        clock.hear(Event("round", job, round, 10))
    assert clock.text() == "2:00 left"  # six rounds of 20 s
    now[0] += 15
    assert clock.text() == "1:45 left"


def test_the_work_of_a_round_by_hand() -> None:
    raw = {
        "data": {"name": "gaussians", "train": 40, "test": 9},
        "model": {"name": "mlp"},
        "training": {"batch_size": 32, "last_batch": "keep"},
        "sweep": {"training": {"local_epochs": [1, 4]}},
    }
    found, planner = jobs(checked(raw)), Planner()
    clients = len(planner.federation(found[0].setting.experiment).clients)
    by_setting = {job.setting.name: work(job, planner) for job in found}
    # Batches of 32: a pass over 40 samples takes two, counted as full ones; nine scored cost three.
    assert by_setting == {
        "local_epochs=1": clients * (64 + 3),
        "local_epochs=4": clients * (256 + 3),
    }
