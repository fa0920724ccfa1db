"""Run a whole experiment into a run folder, from the beginning or from where it stopped."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedbn._version import __version__
from fedbn.core.federation import Federation
from fedbn.engines.embedded import cores
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.crew import run_side_by_side
from fedbn.experiments.events import Event, Listener
from fedbn.experiments.jobs import execute, rounds_done
from fedbn.experiments.plans import Planner, resolved
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
    environment = _environment(config, federation)
    notes = list(planner.warnings)
    if folder.config.exists():
        notes += _differences(folder.read_environment(), environment)
    else:
        folder.commit(config, environment)
    for text in notes:
        listener(Event("note", todo[0].key, text=text))
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
    lengths = {job.key: job.setting.experiment.training.rounds for job in todo}
    listener(Event("begin", todo[0].key, sum(done.values()), sum(lengths.values())))
    left = [job for job in todo if done[job.key] < lengths[job.key]]
    for job in left:
        metrics.keep_until(folder.job(*job.key) / "metrics.jsonl", done[job.key])
    whole = Assembly(folder, todo, {job.key for job in todo} - {job.key for job in left})

    def tell(event: Event) -> None:
        listener(event)
        whole.hear(event)

    on_cpu = all(job.setting.experiment.training.device == "cpu" for job in left)
    if min(workers, len(left)) > 1 and on_cpu:
        run_side_by_side(left, folder, tell, workers, stop)
    else:
        for job in left:
            execute(job, planner, folder, tell, workers=workers, stop=stop)
    return bool(left)


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
                metrics.append(self._target, content.decode())
                self._read += len(content)
            if key not in self._finished:
                return
            self._left.pop(0)
            self._read = 0


def _environment(config: dict[str, Any], federation: Federation) -> dict[str, Any]:
    import numpy
    import torch

    return {
        "config": config,
        "data": federation.fingerprint(),
        "directory": str(Path.cwd()),
        "seeds": config["seeds"],
        "threads": {"cores": cores(), "torch_per_worker": 1},
        "versions": {
            "fedbn": __version__,
            "numpy": numpy.__version__,
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Refuse a run that is not the same any more; say what else changed."""
    ignored = {"workers"}
    changed = [k for k in _changed(before.get("config", {}), now["config"]) if k not in ignored]
    if changed:
        raise ConfigError(
            f"the configuration changed since the run began: {', '.join(changed)}; "
            "undo that, or start a new run"
        )
    data = _changed(before.get("data", {}), now["data"])
    if data:
        raise DataError(f"the data changed since the run began: client {', '.join(data)}")
    versions = _changed(before.get("versions", {}), now["versions"])
    if versions:
        return [f"other versions than the run began with: {', '.join(versions)}"]
    return []


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _changed(old, new, f"{above}{key}.")
        elif old != new:
            found.append(f"{above}{key}")
    return found
