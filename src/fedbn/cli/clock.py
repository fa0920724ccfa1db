"""Time left of a run, from what its rounds took so far."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from fedbn.experiments.jobs import Event, Key

_LEAST = 3  # measured rounds; fewer say nothing


class Clock:
    """Hears of rounds, and tells when the run may end.

    A job to come is taken to be as fast, for its work, as the measured jobs nearest to it. A job's
    first round, in which data and model are made, counts only where no job has a second one.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._beside = 1
        self._work: dict[Key, float] = {}  # of a round
        self._left: dict[Key, int] = {}  # rounds
        self._since: dict[Key, float] = {}  # the last round's end, of jobs that run
        self._free: list[float] = []  # when jobs ended whose place nobody was heard in yet
        self._first: dict[Key, list[float]] = {}
        self._later: dict[Key, list[float]] = defaultdict(list)

    def hear(self, event: Event) -> None:
        """Take the time."""
        now, job = self._now(), event.job
        if event.kind == "begin":
            self._beside = event.beside
            self._work = {each.job: max(each.work, 1.0) for each in event.ahead}
            self._left = {each.job: each.rounds for each in event.ahead}
        elif event.kind == "round":
            if job in self._since:
                self._later[job].append(now - self._since[job])
            elif self._free:
                self._first[job] = [now - self._free.pop(0)]
            self._since[job] = now
            self._left[job] = event.rounds - event.round
        elif event.kind == "done":
            self._left.pop(job, None)
            self._since.pop(job, None)
            self._free.append(now)

    def text(self) -> str:
        """Say how much time is left."""
        took = self._later if _enough(self._later) else self._first
        if self._left and not _enough(took):
            return "time left unknown"
        seconds = int(self._seconds(took))
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def _seconds(self, took: dict[Key, list[float]]) -> float:
        """Deal what is left out to the places, in the order of the jobs."""
        rates = self._rates(took)
        need = {
            job: rounds
            * self._work.get(job, 1.0)
            * next(statistics.fmean(rates[near]) for near in _nearness(job) if near in rates)
            for job, rounds in self._left.items()
        }
        now = self._now()
        ends = [max(0.0, need.pop(job) - (now - since)) for job, since in self._since.items()]
        ends += [0.0] * (self._beside - len(ends))
        heapq.heapify(ends)
        for seconds in need.values():
            heapq.heapreplace(ends, ends[0] + seconds)
        return max(ends)

    def _rates(self, took: dict[Key, list[float]]) -> dict[Key | tuple[object, ...], list[float]]:
        """Seconds a piece of work, of all that is near."""
        found: dict[Key | tuple[object, ...], list[float]] = defaultdict(list)
        for job, seconds in took.items():
            for near in _nearness(job):
                found[near].append(statistics.fmean(seconds) / self._work.get(job, 1.0))
        return found


def _enough(took: dict[Key, list[float]]) -> bool:
    return sum(map(len, took.values())) >= _LEAST


def _nearness(job: Key) -> Iterator[Key | tuple[object, ...]]:
    """The job itself, its method and setting under any seed, its setting, any job."""
    yield from (job, job[:2], job[1:2], ())
