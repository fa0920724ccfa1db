"""Opening a run folder: which jobs are in it, and the trained result of one of them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from fedbn.core.federation import Federation
from fedbn.core.method import Method
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState, initial_state
from fedbn.data._given import Data, federation_of
from fedbn.errors import ConfigError, DamagedRun, unknown
from fedbn.experiments.facts import facts_for, sketch
from fedbn.experiments.jobs import reached
from fedbn.experiments.loading import IN_PYTHON, checked
from fedbn.experiments.plans import Planner
from fedbn.experiments.schema import Experiment
from fedbn.experiments.settings import Job, jobs
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder
from fedbn.use import adapted
from fedbn.use.trained import Trained

_FORMAT = 1
Notes = Callable[[str], None]


@dataclass(frozen=True)
class JobInfo:
    """One job of a run folder, and how far it has come."""

    method: str
    setting: str
    seed: int
    rounds_done: int
    rounds: int


def jobs_of(path: str | Path) -> list[JobInfo]:
    """List the jobs of a run folder, in their order."""
    folder = RunFolder(path)
    return [
        JobInfo(*job.key, rounds_done=_rounds_done(folder, job), rounds=_rounds(job))
        for job in _jobs(folder, None)
    ]


def open_run(
    path: str | Path,
    *,
    method: str | Method | None = None,
    seed: int | None = None,
    setting: str | None = None,
    data: Data | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    notes: Notes = lambda text: None,
) -> Trained:
    """Open a run: its newest whole checkpoint, its numbers and the sites adapted since.

    The training data is not read before `Trained.federation` asks for it.

    Args:
        path: The run folder.
        method: Which of its methods; FedBN if the run has it, else its first, unless given.
        seed: Which seed; the first unless given.
        setting: Which setting of a sweep; the first unless given.
        data: The data, where the run was started with arrays or a `Federation`.
        model: The model or the function that makes it, where the run was started with one.
        notes: Hears remarks, for example `print`.

    Returns:
        The result, as `fedbn.fit` gives it.
    """
    folder = RunFolder(path)
    with _imports_from(folder):
        job = _chosen(_jobs(folder, method), folder, method, seed, setting)
        _check_local(folder.job(*job.key))
        own = _maker(job, model)
        given = None if data is None else federation_of(data)
        facts = facts_for(folder.read_environment().get("inputs"), job.setting.name)
        loader = _Loader(folder, job.setting.experiment, given)
        known = sketch(facts) if facts else loader()
        plan = Planner(known, own).plan(_without_data(job))
    state = _state(folder, job, plan, notes)
    file = folder.job(*job.key) / "metrics.jsonl"
    records = tuple(Record(**record) for record in metrics.read(file))
    sites = adapted.find(folder, *job.key)
    return Trained(plan, state, records, folder.path, sites, loader, facts)


class _Loader:
    """Loads a run's data, once."""

    def __init__(self, folder: RunFolder, experiment: Experiment, given: Federation | None):
        self._folder = folder
        self._experiment = experiment
        self._given = given
        self._found: Federation | None = None

    def __call__(self) -> Federation:
        if self._found is None:
            if self._given is None and self._experiment.data.name == IN_PYTHON:
                raise ConfigError(
                    f"{self._folder.path}: its data was given in Python and is not on disk; "
                    "open it with open_run(..., data=...), or name a data set with --data"
                )
            with _imports_from(self._folder):
                self._found = Planner(self._given).federation(self._experiment.data)
        return self._found


def job_of(path: str | Path, method: str, setting: str, seed: int) -> Job:
    """Find a job of a run by its name."""
    folder = RunFolder(path)
    with _imports_from(folder):
        return _chosen(_jobs(folder, method), folder, method, seed, setting)


def _jobs(folder: RunFolder, method: str | Method | None) -> list[Job]:
    raw = folder.read_request()
    if isinstance(raw.get("format"), int) and raw["format"] > _FORMAT:
        raise DamagedRun(
            f"{folder.config}: format {raw['format']} is from a newer fedbn; this reads {_FORMAT}"
        )
    experiment = checked(raw, str(folder.config))
    if isinstance(method, Method):
        found = jobs(experiment.model_copy(update={"methods": ["fedavg"]}))
        return [replace(job, method=method) for job in found]
    return jobs(experiment)


def _chosen(
    found: list[Job],
    folder: RunFolder,
    method: str | Method | None,
    seed: int | None,
    setting: str | None,
) -> Job:
    name = method.name if isinstance(method, Method) else method or _default_method(found)
    asked: dict[str, str | int | None] = {"method": name, "seed": seed, "setting": setting}
    for what, value in asked.items():
        legal = list(dict.fromkeys(_part(job, what) for job in found))
        wanted = legal[0] if value is None else value
        if wanted not in legal:
            raise ConfigError(f"{folder.path}: {unknown(what, str(wanted), map(str, legal))}")
        found = [job for job in found if _part(job, what) == wanted]
    return found[0]


def _part(job: Job, what: str) -> str | int:
    method, setting, seed = job.key
    parts: dict[str, str | int] = {"method": method, "setting": setting, "seed": seed}
    return parts[what]


def _default_method(found: list[Job]) -> str:
    names = [job.method.name for job in found]
    likely = [name for name in names if name.partition("+")[0] == "fedbn"]
    return "fedbn" if "fedbn" in names else [*likely, *names][0]


def _maker(
    job: Job, model: nn.Module | Callable[..., nn.Module] | None
) -> Callable[..., nn.Module] | None:
    if isinstance(model, nn.Module):
        kept = model
        return lambda: copy.deepcopy(kept)
    if model is None and job.setting.experiment.model.name == IN_PYTHON:
        raise ConfigError(
            "the run's model was given in Python and is not on disk; open it with "
            "open_run(..., model=...), the model or the function that makes it"
        )
    return model


def _without_data(job: Job) -> Job:
    """The job as far as its model goes: here, without validation, weights or a special engine."""
    experiment = job.setting.experiment
    training = experiment.training.model_copy(update={"device": "cpu"})
    evaluation = experiment.evaluation.model_copy(update={"validation": 0.0})
    model = experiment.model.model_copy(update={"weights": None})  # the checkpoint has them all
    changes = {"training": training, "evaluation": evaluation, "model": model, "engine": "plain"}
    setting = replace(job.setting, experiment=experiment.model_copy(update=changes))
    return replace(job, setting=setting)


def _state(folder: RunFolder, job: Job, plan: Plan, notes: Notes) -> RunState:
    found = reached(job, folder, initial_state(plan))
    if found is None:
        method, setting, seed = job.key
        raise ConfigError(
            f"{folder.path}: no round of {method}, setting {setting}, seed {seed} was finished; "
            f"`fedbn resume {folder.path}` goes on with the run"
        )
    for text in found.damaged:
        notes(f"{text}; the one before it is used")
    if found.round < _rounds(job):
        notes(f"the run is at round {found.round} of {_rounds(job)}")
    if found.state.round < found.round:
        notes(f"round {found.state.round} is used, the best of {found.round} on validation data")
    return found.state


def _check_local(place: Path) -> None:
    """Tell a federation's server, which never sees a local part, from a damaged run."""
    for _, path in checkpoints.rounds(place)[:1]:
        try:
            files = checkpoints.read_manifest(path)["files"]
        except DamagedRun:
            return
        if not any(name.startswith("local/") for name in files):
            raise ConfigError(
                f"{path}: the clients' local parts are not here; in a federation they lie at the "
                "sites, so only a site can use its model"
            )


def _rounds(job: Job) -> int:
    return job.setting.experiment.training.total_rounds


def _rounds_done(folder: RunFolder, job: Job) -> int:
    return max((number for number, _ in checkpoints.rounds(folder.job(*job.key))), default=0)


@contextmanager
def _imports_from(folder: RunFolder) -> Iterator[None]:
    """Let a user's own modules be found where the run was started."""
    before = list(sys.path)
    sys.path.insert(0, str(folder.directory()))
    try:
        yield
    finally:
        sys.path[:] = before
