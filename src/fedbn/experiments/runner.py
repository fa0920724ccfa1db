"""One job from start, or from its newest checkpoint, to its end; and the state that it gives.

Run a whole experiment into a run folder, from the beginning or from where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedbn import fast
from fedbn.core.best_round import Validation, best_round, validation
from fedbn.core.engine import Sink, cores, run
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState, initial_state
from fedbn.errors import DamagedRun, Interrupted
from fedbn.experiments.environment import differences, environment_of
from fedbn.experiments.jobs import Ahead, Event, Job, Listener, Reporter, jobs
from fedbn.experiments.planner import Planner, resolved, training_of
from fedbn.experiments.process_pool import run_side_by_side
from fedbn.experiments.schema import Experiment
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder, explained, write_atomically


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


def run_plan(
    plan: Plan,
    sinks: Sequence[Sink] = (),
    *,
    start: RunState | None = None,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> RunState:
    """Run a plan to its last round in this process, as fast as it may be.

    Args:
        plan: What to run.
        sinks: Who is told.
        start: The state to go on from; None for the beginning.
        workers: Cores to use; 0 for all. Changes no result.
        stop: Asked after each round; True ends the run with `Interrupted`.
    """
    crew = partial(fast.make_crew, workers=workers)
    return run(plan, sinks, start=start, stop=stop, make_crew=crew)


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
    state = run_plan(plan, sinks, start=start, workers=workers, stop=stop)
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
    state, damaged = checkpoints.newest(place, like, lazy=True)
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


def prepare(experiment: Experiment, planner: Planner) -> list[Job]:
    """Check everything that can be checked before training: every job's plan, for one seed."""
    found = jobs(experiment)
    seen = set()
    for job in found:
        if job.key[:2] not in seen:
            seen.add(job.key[:2])
            planner.plan(job)
    planner.settle()
    return found


def start(
    experiment: Experiment,
    todo: list[Job],
    planner: Planner,
    folder: RunFolder,
    listener: Listener,
    *,
    workers: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Begin or continue a run.

    Args:
        experiment: The configuration.
        todo: Its jobs, checked by `prepare`.
        planner: Makes their plans.
        folder: Holds the request already (`RunFolder.begin`), or an earlier part of the run.
        listener: Hears how it goes.
        workers: Cores to use; 0 for what the configuration says.
        stop: Asked after each round.

    Returns:
        False where there was nothing left to do.
    """
    federation = planner.federation(todo[0].setting.experiment.data)
    config = resolved(experiment, federation)
    if planner.settled:
        config["engine"] = planner.settled
    environment = environment_of(config, todo, planner, folder.directory())
    notes = list(planner.warnings)
    if folder.config.exists():
        notes += differences(folder.read_environment(), environment)
    else:
        folder.commit(config, environment)
    folder.request.unlink(missing_ok=True)
    for text in notes:
        listener(Event("note", todo[0].key, text=text, whole=True))
    count = workers or experiment.workers or cores()
    return run_jobs(todo, planner, folder, listener, workers=count, stop=stop)


def run_jobs(
    todo: list[Job],
    planner: Planner,
    folder: RunFolder,
    listener: Listener,
    *,
    workers: int,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run what is left of the jobs, side by side where that is faster."""
    done = {job.key: rounds_done(job, folder) for job in todo}
    lengths = {job.key: job.setting.experiment.training.total_rounds for job in todo}
    left = [job for job in todo if done[job.key] < lengths[job.key]]
    on_cpu = all(job.setting.experiment.training.device == "cpu" for job in left)
    beside = min(workers, len(left)) if on_cpu else 1
    ahead = [Ahead(j.key, lengths[j.key] - done[j.key], work(j, planner)) for j in left]
    so_far, whole_length = sum(done.values()), sum(lengths.values())
    listener(Event("begin", todo[0].key, so_far, whole_length, ahead=ahead, beside=beside))
    for job in todo:
        tidy(job, folder, done[job.key])
    whole = Assembly(folder, todo, {job.key for job in todo} - {job.key for job in left})

    def tell(event: Event) -> None:
        listener(event)
        whole.hear(event)

    if beside > 1:
        text = f"{len(left)} runs, {beside} side by side, one core each"
        tell(Event("note", left[0].key, text=text, whole=True))
        run_side_by_side(left, folder, tell, workers, stop)
    else:
        for job in left:
            if stop():
                raise Interrupted("stopped between two jobs")
            execute(job, planner, folder, tell, workers=workers, stop=stop)
    return bool(left)


def work(job: Job, planner: Planner) -> float:
    """Count the samples that pass the model in a round; without gradients one costs a third."""
    experiment = job.setting.experiment
    training, clients = (
        training_of(experiment.training),
        planner.federation(experiment.data).clients,
    )
    largest = max(len(client.train) for client in clients)
    passed = 0.0
    for client in clients:
        size = min(training.batch_size or largest, len(client.train))
        passed += training.participation * training.steps(len(client.train), largest) * size
        passed += sum(map(len, client.tests.values())) / 3 / experiment.evaluation.every
    return passed


class Assembly:
    """Grows the run's `metrics.jsonl` from the jobs' own files, in the order of the jobs."""

    def __init__(self, folder: RunFolder, order: list[Job], finished: set[tuple[str, str, int]]):
        self._target = folder.metrics
        self._left = [(job.key, folder.job(*job.key) / "metrics.jsonl") for job in order]
        self._finished = set(finished)
        self._read = 0
        write_atomically(self._target, b"")
        self._advance()

    def hear(self, event: Event) -> None:
        """Take note of a finished round or job."""
        if event.kind == "done":
            self._finished.add(event.job)
        if event.kind in ("round", "done"):
            self._advance()

    def _advance(self) -> None:
        while self._left:
            key, file = self._left[0]
            if file.exists():
                content = metrics.read_from(file, self._read)
                metrics.append(self._target, content)
                self._read += len(content)
            if key not in self._finished:
                return
            self._left.pop(0)
            self._read = 0
