"""How a run is going, in lines on stderr; the time that is left; and Ctrl-C."""

from __future__ import annotations

import heapq
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import _exit
from types import FrameType

from fedbn.cli.console import say
from fedbn.errors import Interrupted, StopNow
from fedbn.experiments.jobs import Event, Key
from fedbn.results.aggregate import LOSS_SEEN, of_round, scores_of_round

_QUIET_SECONDS = 10.0
_LEAST = 3  # measured rounds; fewer say nothing about the time left
_SHOW_CURSOR = "\x1b[?25h"  # a bar hides it


class Lines:
    """A line now and then: for logs, pipes and batch systems."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._told = 0.0

    def __call__(self, event: Event) -> None:
        """Print a line, or wait for a later event."""
        self._clock.hear(event)
        if event.kind == "note":
            if event.level != "debug":
                say(remark(event))
        elif event.kind == "done":
            say(f"{job_name(event)}: done ({self._clock.text()})")
        elif event.kind == "round" and time.monotonic() - self._told > _QUIET_SECONDS:
            self._told = time.monotonic()
            at = f"round {event.round}/{event.rounds}"
            say(f"{job_name(event)}: {at}, {_numbers(event)} ({self._clock.text()})")

    def close(self) -> None:
        """Nothing to tidy."""


def job_name(event: Event) -> str:
    """What a job is called on the screen."""
    method, setting, seed = event.job
    return f"{method} seed {seed}" + ("" if setting == "default" else f" {setting}")


def remark(event: Event) -> str:
    """A remark, with the job that it is about."""
    return event.text if event.whole else f"{job_name(event)}: {event.text}"


def _numbers(event: Event) -> str:
    parts = []
    if losses := of_round(event.records, LOSS_SEEN):
        parts.append(f"loss {statistics.fmean(losses.values()):.3f}")
    metric = event.judged_by
    if scores := scores_of_round(event.records, metric):
        mean = f"{statistics.fmean(scores.values()):{metric.form}} {metric.unit}"
        parts.append(f"{metric.words} {mean.rstrip()}")
    return ", ".join(parts)


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


class Stopper:
    """Answers whether a stop was asked for; installs the signal handlers while it is open."""

    def __init__(self) -> None:
        self._signals = 0
        self._saves = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stopper:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __call__(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._signals > 0

    def follow(self, event: Event) -> None:
        """Listen to a run of this process: a second signal saves its last finished round."""
        self._saves |= event.kind == "begin"
        if event.kind == "stopped" and self._signals > 1:
            _leave()  # not by the end of the threads, whose clients may train for long

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            _write("fedbn: stopping after this round (once more to stop at once) ...\n")
        elif self._signals == 2 and self._saves:
            _write("fedbn: saving the last finished round (once more to leave it) ...\n")
            raise StopNow
        else:
            _leave()


def _leave() -> None:
    _write(_SHOW_CURSOR if sys.stderr.isatty() else "")
    _write("fedbn: stopped at once; saved rounds are there\n")
    _exit(Interrupted.exit_code)


def _write(text: str) -> None:
    """Write past Python's buffers: a signal may arrive in the middle of a print."""
    with suppress(OSError):
        os.write(2, text.encode())
