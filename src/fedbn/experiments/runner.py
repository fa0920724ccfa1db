"""Run a whole experiment into a run folder, from the beginning or from where it stopped."""

from __future__ import annotations

from collections.abc import Callable

from fedbn.engines.crews import cores
from fedbn.errors import Interrupted
from fedbn.experiments.crew import run_side_by_side
from fedbn.experiments.events import Ahead, Event, Listener
from fedbn.experiments.jobs import execute, rounds_done, tidy
from fedbn.experiments.plans import Planner, resolved, training_of
from fedbn.experiments.sameness import differences, environment_of
from fedbn.experiments.schema import Experiment
from fedbn.experiments.settings import Job, jobs
from fedbn.runs import metrics
from fedbn.runs.files import write_atomically
from fedbn.runs.folder import RunFolder


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
