"""One job from start, or from its newest checkpoint, to its end; and the state that it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedbn.core.best import Validation, best_round, validation
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState, initial_state
from fedbn.engines.embedded import Sink, run
from fedbn.errors import DamagedRun
from fedbn.experiments.events import Event, Listener, Reporter
from fedbn.experiments.plans import Planner
from fedbn.experiments.settings import Job
from fedbn.runs import checkpoints, metrics
from fedbn.runs.files import explained
from fedbn.runs.folder import RunFolder


@dataclass(frozen=True)
class Reached:
    """How far a job has come.

    Attributes:
        state: What it gives: the state of its newest round, or of its best.
        round: Its newest round.
        damaged: What was damaged of newer ones.
    """

    state: RunState
    round: int
    damaged: tuple[str, ...]


class Recorder:
    """A sink that puts every finished round on disk: first its numbers, then its state.

    Args:
        place: The job's folder.
        scores: What is known of its rounds, where the best one is kept; None to keep none.
    """

    def __init__(self, place: Path, scores: Validation | None = None):
        self._place = place
        self._scores = scores

    def note(self, plan: Plan, text: str) -> None:
        """Remarks are not kept."""

    def round_done(self, plan: Plan, state: RunState, records: Sequence[Record]) -> None:
        """Write the round down."""
        text = "".join(metrics.line(record) for record in records)
        metrics.append(self._place / "metrics.jsonl", text.encode())
        facts = {"method": plan.method.name, "setting": plan.setting, "seed": plan.seed}
        checkpoints.save(self._place, state, facts, best=self._best(records))

    def _best(self, records: Sequence[Record]) -> checkpoints.Best:
        if self._scores is None:
            return checkpoints.no_best
        self._scores |= validation(map(vars, records))
        return partial(best_round, self._scores)


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
    sinks: list[Sink] = [Recorder(place, _scores(job, place)), Reporter(job, listener)]
    state = run(plan, sinks, start=start, workers=workers, stop=stop)
    listener(Event("done", job.key, state.round, plan.training.rounds))
    return state


def tidy(job: Job, folder: RunFolder, done: int) -> None:
    """Drop what a kill left of a job beside the rounds that are done."""
    place = folder.job(*job.key)
    metrics.keep_until(place / "metrics.jsonl", done)
    checkpoints.forget_before(place, done, best=partial(best_round, _scores(job, place) or {}))


def rounds_done(job: Job, folder: RunFolder) -> int:
    """Count the rounds of a job that are safely on disk."""
    return checkpoints.whole_round(folder.job(*job.key))


def reached(job: Job, folder: RunFolder, like: RunState) -> Reached | None:
    """Find the state that a job gives: the newest, or the best where `evaluation.report` says so.

    Returns:
        None where no round was ever finished.

    Raises:
        DamagedRun: No checkpoint is whole, or the best one is not.
    """
    place = folder.job(*job.key)
    state, damaged = checkpoints.newest(place, like)
    if state is None:
        return None
    done = state.round
    best = best_round(_scores(job, place) or {}, done) or done
    if best != done:
        try:
            state = checkpoints.load(checkpoints.place_of(place, best), like)
        except DamagedRun as error:
            raise DamagedRun(f"{error}; it is the best round, which the run reports") from error
    return Reached(state, done, tuple(damaged))


def _scores(job: Job, place: Path) -> Validation | None:
    if job.setting.experiment.evaluation.report == "last":
        return None
    return validation(metrics.read(place / "metrics.jsonl"))
