"""A second evaluation of a finished run: its reported models, scored with other statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from fedbn.core.engine import Round, one_torch_thread
from fedbn.core.rounds import initial_state
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.environment import changed_keys
from fedbn.experiments.jobs import Job, jobs
from fedbn.experiments.merging import without_final
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import engine_for, reached
from fedbn.experiments.schema import Experiment
from fedbn.runs import checkpoints, metrics, outcomes
from fedbn.runs.folder import RunFolder, write_atomically
from fedbn.runs.messages import MessageStore, RunWarning


@one_torch_thread()
def rescore(
    folder: RunFolder,
    experiment: Experiment,
    kinds: Sequence[StatisticsKind] | None = None,
    *,
    workers: int = 0,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Score the reported round of every job of a run again, and add the scores to its records.

    An earlier evaluation of the reported round is replaced. Nothing is trained.

    Args:
        folder: A finished run with its checkpoints. It must be locked.
        experiment: The run's configuration.
        kinds: The BatchNorm statistics to score with; None for all that are worth their cost.
        workers: Cores to use; 0 for all.
        note: Called with each warning.

    Raises:
        ConfigError: A job is not finished, or has no checkpoint.
        DataError: The data is not what the run was trained on.
    """
    planner, todo = Planner(), jobs(experiment)
    for job in todo:
        _check_finished(folder, job)
    for experiment_of_job in {job.setting.name: job.setting.experiment for job in todo}.values():
        planner.federation(experiment_of_job)
    if changed := changed_keys(folder.read_environment().get("data", {}), planner.fingerprint()):
        raise DataError(
            f"{folder.path}: the data has changed since the run was trained (client "
            f"{', '.join(changed)}); scores of other data cannot be added to its records"
        )
    for job in todo:
        done = _evaluate(folder, job, planner, kinds, workers, note)
        for text in done.notes:
            note(text)
            MessageStore(folder).extend([RunWarning(text, job.key)])
        _write(folder, job, done)
    files = [folder.job(*job.key) / "metrics.jsonl" for job in todo]
    lines = [metrics.line(row) for file in files for row in metrics.read(file)]
    write_atomically(folder.metrics, "".join(lines).encode())


def _check_finished(folder: RunFolder, job: Job) -> None:
    place, rounds = folder.job(*job.key), job.setting.experiment.training.total_rounds
    done = max((number for number, _ in checkpoints.rounds(place)), default=0)
    if not done:
        raise ConfigError(f"{place}: no checkpoint, so there are no models to score")
    if done < rounds and not folder.stopped(*job.key):
        raise ConfigError(
            f"{place}: round {done} of {rounds}; finish the run first: fedbn resume {folder.path}"
        )


def _evaluate(
    folder: RunFolder,
    job: Job,
    planner: Planner,
    kinds: Sequence[StatisticsKind] | None,
    workers: int,
    note: Callable[[str], None],
) -> Round:
    """Score the reported round of one job."""
    plan = replace(
        planner.plan(job), final_statistics=None if kinds is None else tuple(dict.fromkeys(kinds))
    )
    asked = plan.scored_statistics(final=True)
    found = reached(job, folder, initial_state(plan))
    assert found is not None
    kept = checkpoints.read_manifest(checkpoints.place_of(folder.job(*job.key), found.state.round))[
        "rows"
    ]
    if "local" in asked and "own_statistics" not in kept:
        asked = tuple(kind for kind in asked if kind != "local")
        note(
            f"{job.method.name} seed {job.seed}: the run did not keep local statistics, so it is "
            "not scored with them; a new run keeps them"
        )
    with closing(engine_for(plan, workers)) as engine:
        return engine.evaluate(found.state, found.state, asked)


def _write(folder: RunFolder, job: Job, done: Round) -> None:
    """Replace a job's evaluation of the reported round; `evaluated.json` comes last."""
    place = folder.job(*job.key)
    file = place / "metrics.jsonl"
    outcomes.forget(place)
    rows = [*without_final(metrics.read(file), job), *map(vars, done.records)]
    write_atomically(file, "".join(map(metrics.line, rows)).encode())
    if done.final is not None:
        outcomes.write(place, done.final)
