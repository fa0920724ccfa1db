"""Opening a run folder: which jobs are in it, and the trained result of one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from fedbn import registry
from fedbn.core.engine import one_torch_thread
from fedbn.core.federation import Federation
from fedbn.core.findings import check_federation
from fedbn.core.method import Method
from fedbn.core.own_statistics import statistics_of
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, RunState, initial_state
from fedbn.core.task import Loss, Task
from fedbn.data.preparation import Preparation, prepared
from fedbn.data.python_data import Data
from fedbn.errors import ConfigError, DamagedRun, GivenInPython, unknown
from fedbn.experiments.configuration import IN_PYTHON, held_experiment
from fedbn.experiments.environment import facts_for, sketch
from fedbn.experiments.jobs import Job, Key, method_of, named_jobs
from fedbn.experiments.planner import plan_of
from fedbn.experiments.runner import reached
from fedbn.experiments.schema import Experiment
from fedbn.experiments.sources import named_files, named_task, read_federation, read_given
from fedbn.methods import baseline_names
from fedbn.runs import checkpoints
from fedbn.runs.folder import RunFolder, without_checkpoints
from fedbn.runs.messages import warnings_of_job
from fedbn.runs.metrics import read
from fedbn.tasks.making import GivenMetric, TaskChoice
from fedbn.text import listed
from fedbn.trained import local_parts
from fedbn.trained.trained_run import Trained

Notes = Callable[[str], None]


@dataclass(frozen=True)
class JobInfo:
    """One job of a run folder, and how far it has come."""

    method: str
    setting: str
    seed: int
    rounds_done: int
    rounds: int


def jobs_of(path: str | Path, *, trust: str | Iterable[str] = ()) -> list[JobInfo]:
    """List the jobs of a run folder, in their order.

    `trust` is as for `open_run`; needed only where methods are a user's own and `method.mu` a list.
    """
    registry.trust(trust)
    folder = RunFolder(path)
    found = []
    for key, (_, setting) in named_jobs(held_experiment(folder)).items():
        rounds = setting.experiment.training.total_rounds
        done = max((n for n, _ in checkpoints.rounds(folder.job(*key))), default=0)
        done = rounds if _alone(folder, key) else done
        rounds = done if folder.stopped(*key) else rounds
        found.append(JobInfo(*key, rounds_done=done, rounds=rounds))
    return found


def open_run(
    path: str | Path,
    *,
    method: str | Method | None = None,
    seed: int | None = None,
    setting: str | None = None,
    data: Data | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    task: str | Task | Callable[..., Task] | None = None,
    loss: str | Loss | None = None,
    metrics: Sequence[GivenMetric] | None = None,
    trust: str | Iterable[str] = (),
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
        task: The task, where the run was started with an object; `loss` and `metrics` likewise.
        loss: See `task`.
        metrics: See `task`.
        trust: Modules that the folder may name as `module:callable`, which runs their code. What
            was named in this process before is trusted.
        notes: Hears remarks, for example `print`.

    Returns:
        The result, as `fedbn.fit` gives it.
    """
    registry.trust(trust)
    folder = RunFolder(path)
    job = job_of(folder, method, seed, setting)
    if job.method.baseline is None:  # of which nothing is kept anywhere
        _check_local(folder.job(*job.key))
    own = _maker(job, model)
    choice = TaskChoice(task, loss, metrics)
    asked = job.setting.experiment
    known_task = named_task(asked.task, choice)
    given = None if data is None else read_given(data, asked.data, known_task)
    facts = facts_for(folder.read_environment().get("inputs", {}), job.setting.name)
    loader = _loader(folder, job.setting.experiment, given, facts, notes)
    known = sketch(facts) if facts else loader()
    _check_task(job, choice)
    with one_torch_thread():  # at a site one client is here of those that a round needs
        plan = plan_of(_without_data(job), known, own, task=choice)
    state = _state(folder, job, plan, notes)
    records = tuple(Record(**record) for record in read(folder.job(*job.key) / "metrics.jsonl"))
    sites = local_parts.find(folder, *job.key)
    warnings = warnings_of_job(folder, job.key)
    held_out = asked.evaluation.validation
    opened = Trained(plan, state, records, folder.path, sites, loader, facts, warnings, held_out)
    if names := opened.rejected:
        learned = "its model" if len(names) == 1 else "their models"
        notes(
            f"every update of {listed(names)} was rejected: {learned} learned nothing from the "
            "data there"
        )
    return opened


def _loader(
    folder: RunFolder,
    experiment: Experiment,
    given: Federation | None,
    facts: Mapping[str, Any] | None,
    notes: Notes,
) -> Callable[[], Federation]:
    """Make what loads a run's data, once, prepared as it was for training."""

    @cache
    def load() -> Federation:
        section = experiment.data
        if given is None and section.name == IN_PYTHON:
            raise _in_python(f"{folder.path}: the run's data", "data")
        read = given or read_federation(section, task=named_task(experiment.task))
        found = prepared(read, Preparation.read(facts) if facts else None)
        check_federation(found)
        if given is None:
            before = folder.read_environment().get("data", {})
            for text in (*named_files(section.path, section), *_changed(found, before)):
                notes(text)
        return found

    return load


def _changed(found: Federation, recorded: Mapping[str, Any]) -> list[str]:
    """Say which clients' data is not what the run was trained on."""
    now = found.fingerprint()
    if recorded.keys() != now.keys() or recorded == now:
        return []
    other = [client for client in now if now[client] != recorded[client]]
    some = ", ".join(other[:5]) + (" …" if len(other) > 5 else "")
    return [f"The data has changed since the run was begun: {some}"]


def _in_python(what: str, argument: str, explanation: str = "") -> GivenInPython:
    return GivenInPython(
        f"{what} was given in Python and is not in the run folder",
        f"in Python, fedbn.open_run(..., {argument}=...) takes it{explanation}",
    )


def job_of(
    folder: RunFolder, method: str | Method | None, seed: int | None, setting: str | None
) -> Job:
    """Make the job that is meant; of all methods of the run only its own is."""
    experiment = held_experiment(folder)
    if isinstance(method, Method):
        experiment = experiment.model_copy(update={"methods": ["fedavg"]})
        named = {(method.name, *key[1:]): job for key, job in named_jobs(experiment).items()}
    else:
        named = named_jobs(experiment)
    name = method.name if isinstance(method, Method) else method
    key = _chosen(list(named), folder, (name, setting, seed))
    spec, where = named[key]
    return Job(method if isinstance(method, Method) else method_of(spec, where), where, key[2])


def _chosen(keys: list[Key], folder: RunFolder, asked: tuple[str | int | None, ...]) -> Key:
    names = [key[0] for key in keys]
    likely = [name for name in names if name.partition("+")[0] == "fedbn"]
    networks = [name for name in names if name not in baseline_names()]
    default = "fedbn" if "fedbn" in names else [*likely, *networks, *names][0]
    for place, what in enumerate(("method", "setting", "seed")):
        legal = list(dict.fromkeys(key[place] for key in keys))
        first = legal[0] if place else default
        wanted = first if asked[place] is None else asked[place]
        if wanted not in legal:
            raise ConfigError(f"{folder.path}: {unknown(what, str(wanted), map(str, legal))}")
        keys = [key for key in keys if key[place] == wanted]
    return keys[0]


def _maker(
    job: Job, model: nn.Module | Callable[..., nn.Module] | None
) -> Callable[..., nn.Module] | None:
    if isinstance(model, nn.Module):
        kept = model
        return lambda: copy.deepcopy(kept)
    if model is None and job.setting.experiment.model.name == IN_PYTHON:
        raise _in_python("the run's model", "model", ", the model or the function that makes it")
    return model


def _check_task(job: Job, given: TaskChoice) -> None:
    section = job.setting.experiment.task
    named: Mapping[str, Sequence[str | None]] = {
        "task": [section.name], "loss": [section.loss], "metrics": section.metrics or []
    }  # fmt: skip
    for what, names in named.items():
        if IN_PYTHON in names and getattr(given, what) is None:
            raise _in_python(f"the run's {what}", what)


def _without_data(job: Job) -> Job:
    """The job as far as its model goes: here, without validation, weights or a special engine."""
    experiment = job.setting.experiment
    training = experiment.training.model_copy(update={"device": "cpu"})
    evaluation = experiment.evaluation.model_copy(update={"validation": 0.0})
    model = experiment.model.model_copy(update={"weights": None})  # the checkpoint has them all
    changes = {"training": training, "evaluation": evaluation, "model": model, "engine": "plain"}
    setting = replace(job.setting, experiment=experiment.model_copy(update=changes))
    return replace(job, setting=setting)


def _alone(folder: RunFolder, key: Key) -> bool:
    """Tell whether a job is finished and has its records alone, as all of a folder may."""
    bare = folder.metrics.exists() and not (folder.path / "checkpoints").exists()
    return bare or without_checkpoints(folder.job(*key))


def _state(folder: RunFolder, job: Job, plan: Plan, notes: Notes) -> RunState:
    start = initial_state(plan)
    if plan.averages_statistics:  # clients may have kept their own for scoring
        own = statistics_of(plan.initial_model)
        start = replace(start, own_statistics=dict.fromkeys(start.local, own))
    if (found := reached(job, folder, start)) is None:
        method, setting, seed = job.key
        if _alone(folder, job.key):
            raise ConfigError(f"{folder.path}: records without checkpoints: no models to use")
        raise ConfigError(
            f"{folder.path}: no round of {method}, setting {setting}, seed {seed} was finished; "
            f"`fedbn resume {folder.path}` goes on with the run"
        )
    for text in found.damaged:
        notes(f"{text}; the one before it is used")
    rounds = job.setting.experiment.training.total_rounds
    if found.round < rounds and not folder.stopped(*job.key):
        notes(f"the run is at round {found.round} of {rounds}")
    if found.state.round < found.round:
        notes(f"round {found.state.round} is used, the best of {found.round} on validation data")
    place = checkpoints.place_of(folder.job(*job.key), found.state.round)
    if "own_statistics" not in checkpoints.read_manifest(place)["rows"]:
        return replace(found.state, own_statistics={})
    return found.state


def _check_local(place: Path) -> None:
    """Tell a federation's server, which never sees a local part, from a damaged run."""
    for _, path in checkpoints.rounds(place)[:1]:
        try:
            rows = checkpoints.read_manifest(path)["rows"]
        except DamagedRun:
            return
        if "local" not in rows:
            raise ConfigError(
                f"{path}: the clients' local parts are not here; in a federation they lie at the "
                "sites, so only a site can use its model"
            )
