"""One job from start, or from its newest checkpoint, to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState, initial_state
from fedbn.engines.embedded import Sink, run
from fedbn.experiments.events import Event, Listener, Reporter
from fedbn.experiments.plans import Planner
from fedbn.experiments.settings import Job
from fedbn.runs import checkpoints, metrics
from fedbn.runs.files import explained
from fedbn.runs.folder import RunFolder


class Recorder:
    """A sink that puts every finished round on disk: first its numbers, then its state."""

    def __init__(self, place: Path):
        self._place = place

    def note(self, plan: Plan, text: str) -> None:
        """Remarks are not kept."""

    def round_done(self, plan: Plan, state: RunState, records: Sequence[Record]) -> None:
        """Write the round down."""
        text = "".join(metrics.line(record) for record in records)
        metrics.append(self._place / "metrics.jsonl", text.encode())
        facts = {"method": plan.method.name, "setting": plan.setting, "seed": plan.seed}
        checkpoints.save(self._place, state, facts)


def execute(
    job: Job,
    planner: Planner,
    folder: RunFolder,
    listener: Listener,
    *,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> RunState:
    """Run a job, or the rest of it, writing into the run folder."""
    plan = planner.plan(job)
    place = folder.job(*job.key)
    with explained(place):
        place.mkdir(parents=True, exist_ok=True)
    start, damaged = checkpoints.newest(place, initial_state(plan))
    for text in damaged:
        listener(Event("note", job.key, text=f"{text}; going on from the one before it"))
    metrics.keep_until(place / "metrics.jsonl", start.round if start else 0)
    sinks: list[Sink] = [Recorder(place), Reporter(job, listener)]
    state = run(plan, sinks, start=start, workers=workers, stop=stop)
    listener(Event("done", job.key, state.round, plan.training.rounds))
    return state


def rounds_done(job: Job, folder: RunFolder) -> int:
    """Count the rounds of a job that are safely on disk."""
    return checkpoints.whole_round(folder.job(*job.key))
