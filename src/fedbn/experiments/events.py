"""What a running experiment tells: the same from this process and from worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState
from fedbn.experiments.settings import Job
from fedbn.experiments.settings import Key as Key


@dataclass(frozen=True)
class Ahead:
    """What is left of a job as a run begins: rounds, and the work of each beside other jobs'."""

    job: Key
    rounds: int
    work: float


@dataclass(frozen=True)
class Event:
    """One thing that happened to one job.

    Attributes:
        kind: The beginning (rounds of all jobs: done, and in all), a remark, a finished round, a
            finished job, or a failure.
        job: Method, setting and seed.
        round: Rounds done.
        rounds: Rounds in all.
        text: The remark, or the error's line.
        whole: Whether the remark is about the whole run, and not about this job.
        exit_code: The failure's exit code.
        records: The round's numbers.
        ahead: At the beginning: what is left of each job.
        beside: At the beginning: how many jobs run side by side.
    """

    kind: Literal["begin", "note", "round", "done", "failed"]
    job: Key
    round: int = 0
    rounds: int = 0
    text: str = ""
    whole: bool = False
    exit_code: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    ahead: list[Ahead] = field(default_factory=list)
    beside: int = 1

    def to_line(self) -> str:
        """Render for a pipe."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Read back."""
        values = json.loads(line)
        method, setting, seed = values.pop("job")
        return cls(job=(method, setting, seed), **values)


Listener = Callable[[Event], None]


class Reporter:
    """A sink that passes on what an engine tells as events."""

    def __init__(self, job: Job, listener: Listener):
        self._key = job.key
        self._tell = listener

    def note(self, plan: Plan, text: str) -> None:
        """Pass on a remark."""
        self._tell(Event("note", self._key, text=text))

    def round_done(self, plan: Plan, state: RunState, records: Sequence[Record]) -> None:
        """Pass on a finished round."""
        numbers = [asdict(record) for record in records]
        rounds = plan.training.rounds
        self._tell(Event("round", self._key, state.round, rounds, records=numbers))
