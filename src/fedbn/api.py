"""`fedbn.fit`: a run from Python, with your own objects or with registered names."""

from __future__ import annotations

import itertools
import logging
import reprlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from torch import nn

from fedbn.core.engine import one_torch_thread
from fedbn.core.method import Method
from fedbn.core.plan import copied
from fedbn.core.rounds import Record, initial_state
from fedbn.core.statistics_kinds import RUNNING
from fedbn.core.task import Loss, Task
from fedbn.data.python_data import Data
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import (
    IN_PYTHON,
    changed,
    checked,
    looks_like_path,
    placed,
    with_absolute_paths,
)
from fedbn.experiments.jobs import Event, Job, Listener, Setting
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import Memory, reached, run_plan, start
from fedbn.experiments.sources import given_federation, named_task
from fedbn.methods import parse_method
from fedbn.registry import TYPED
from fedbn.results.aggregate import rejection
from fedbn.runs.folder import RunFolder, explained
from fedbn.runs.messages import warnings_of_job
from fedbn.runs.metrics import read
from fedbn.tasks.making import GivenMetric, TaskChoice
from fedbn.trained.trained_run import Trained, frame_of

Model = str | nn.Module | Callable[..., nn.Module]
TaskGiven = str | Task | Callable[..., Task]
Result = Trained
T = TypeVar("T")
_log = logging.getLogger("fedbn")

_AS_OBJECT = (
    "the model is an object: its first weights are the ones it has, whatever the seed; give the "
    "function that makes it, and the seed decides them"
)

_NOT_HERE = ("quick", "reproduce", "sweep")
_PLAIN = ("lr", "batch_size", "local_epochs")


@overload
def fit(
    data: str | Path | Data,
    model: Model | None = None,
    method: str | Method = "fedbn",
    *,
    methods: None = None,
    seeds: None = None,
    **settings: Any,
) -> Result: ...


@overload
def fit(
    data: str | Path | Data,
    model: Model | None = None,
    method: str | Method = "fedbn",
    *,
    methods: Sequence[str | Method] | None = None,
    seeds: Sequence[int] | None = None,
    **settings: Any,
) -> Results: ...


@one_torch_thread()  # from the first operation on: in a forked child, a second thread never comes
def fit(
    data: str | Path | Data,
    model: Model | None = None,
    method: str | Method = "fedbn",
    *,
    task: TaskGiven | None = None,
    loss: str | Loss | None = None,
    metrics: Sequence[GivenMetric] | None = None,
    rounds: int = 40,
    seed: int = 0,
    methods: Sequence[str | Method] | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 0,
    notes: Callable[[str], None] = _log.warning,
    callback: Callable[[RoundDone], object] | None = None,
    **settings: Any,
) -> Result | Results:
    """Train a method, or several with several seeds, and give every client its model.

    Args:
        data: A registered name, a path of your own data, a `Federation`; a mapping from each
            client's name to `(x, y)`, `(x, y, groups)`, a Dataset or a DataFrame, or to
            `(train, test)` or `(train, valid, test)` of those; or one such data set, dealt into
            clients by `data__partition`.
        model: A registered name, `module:callable`, a function that makes a model; None for one
            that fits the data. A model itself is copied, with the weights it has: no seed
            changes them.
        method: A method, or its name as on the command line.
        task: What models learn: `classification`, `multilabel`, `regression`, `segmentation`, a
            `Task` or a function that makes one; what the targets are for unless given.
        loss: In place of the task's: a name, or a function of outputs and targets.
        metrics: In place of the task's, the first decides: names, `Metric`s, or functions of
            predictions and targets that have an attribute `higher_is_better`.
        rounds: Communication rounds.
        seed: Decides the first weights, the order of samples, which clients take part and the
            validation split. It does not decide the test split, so that seeds are scored on the
            same samples: `data__split_seed` does, for arrays, tables and pictures that are divided
            here. With `out`, `splits.json.gz` there says which samples are in which part.
        methods: Several, in place of `method`.
        seeds: Several, in place of `seed`; every method runs with each.
        out: A run folder to write; None to write nothing.
        resume: Go on with the run in `out`, if there is one.
        workers: Cores to use; 0 for all. Never changes the result.
        notes: Hears each remark once, if there is any: on data, model and clients that work and
            may not be what was meant. `print` prints them; the logger `fedbn`, unless given.
        callback: Called after each round. What it raises ends the run with that round saved and
            is the caller's, as it was raised: with `out` and `resume` the run goes on later.
        **settings: `lr`, `batch_size` and `local_epochs`; and any key of the configuration, with
            `__` for the dot: `training__optimizer="Adam"`.

    Returns:
        The result; of several methods or seeds, all of them.

    Examples:
        >>> import numpy as np, fedbn
        >>> draws = np.random.default_rng(0)
        >>> def site(scale):
        ...     x = draws.normal(size=(40, 5)).astype("float32")
        ...     return scale * x, (x[:, 0] > 0).astype("int64")
        >>> sites = {"a": site(1.0), "b": site(50.0)}
        >>> result = fedbn.fit(sites, "mlp", "fedbn", rounds=2, seed=0, lr=0.1)
        >>> sorted(result.models)
        ['a', 'b']
        >>> both = fedbn.fit(sites, "mlp", methods=["fedavg", "fedbn"], seeds=[0, 1], rounds=2)
        >>> list(both.runs)
        [('fedavg', 0), ('fedbn', 0), ('fedavg', 1), ('fedbn', 1)]
    """
    chosen = _several("method", method, methods, "fedbn")
    drawn = _several("seed", seed, seeds, 0)
    choice = TaskChoice(task, loss, metrics)
    names = _named(data, model, chosen, choice)
    asked = {_key(key): value for key, value in settings.items()}
    _check(asked, names, chosen, settings)
    raw: dict[str, Any] = {"seeds": drawn, "training": {"rounds": rounds}}
    for key, value in {**names, **asked}.items():
        section = isinstance(value, Mapping) and "." not in key
        raw = changed(raw, {key: value}) if section else placed(raw, key, value)
    experiment = checked(with_absolute_paths(raw), "fit", TYPED)
    named = isinstance(data, str | Path)
    given = (
        None
        if named
        else given_federation(data, experiment.data, named_task(experiment.task, choice))
    )
    planner = Planner(federation=given, make_model=_maker(model), task=choice)
    setting = Setting("default", experiment)
    mu = experiment.method.mu
    jobs = [Job(_method(m, mu), setting, s) for s, m in itertools.product(drawn, chosen)]
    for job in jobs[: len(chosen)]:
        planner.plan(job).check_metrics()
    if isinstance(model, nn.Module):
        planner.warnings.append(_AS_OBJECT)
    hear = partial(_pass_on, notes, callback or (lambda done: None))
    run = partial(_in_memory, planner=planner, workers=workers, hear=hear)
    if out is None:
        for text in planner.warnings:
            if planner.level(text) != "debug":
                notes(text)
    else:
        folder = RunFolder(out)
        if not (resume and (folder.config.exists() or folder.request.exists())):
            folder.begin(experiment.model_dump(exclude_unset=True, exclude_none=True))
        with folder.locked():
            start(experiment, jobs, planner, folder, hear, workers=workers, apart=False)
            _draw_curves(folder)
        run = partial(_on_disk, planner=planner, folder=folder)
    runs = {(job.method.name, job.seed): run(job) for job in jobs}
    for (name, job_seed), result in runs.items():
        if result.rejected:
            notes(rejection(result.rejected, [f"{name} seed {job_seed}"]))
    return next(iter(runs.values())) if methods is None and seeds is None else Results(runs)


def _draw_curves(folder: RunFolder) -> None:
    """Draw the learning curves of a run into its folder, as the command line does."""
    from fedbn.results.figures import draw_curves  # matplotlib takes a second to import
    from fedbn.results.run_files import RunFiles

    facts = folder.read_environment()
    run = RunFiles(str(folder.path), read(folder.metrics), folder.read_request(), facts)
    with explained(folder.curves):
        draw_curves(run.table, folder.curves)


def _in_memory(job: Job, planner: Planner, workers: int, hear: Listener) -> Result:
    plan = planner.plan(job)
    memory = Memory(job.setting.experiment.evaluation.report == "best")
    texts = [text for text in planner.warnings if planner.level(text) == "warning"]

    def keep_warning(event: Event) -> None:
        if event.kind == "note" and event.level == "warning":
            texts.append(event.text)

    run_plan(plan, memory, keep_warning, hear, workers=workers, reported=memory.reported)
    assert memory.state is not None
    warnings = tuple(dict.fromkeys(texts))
    return Result(plan, memory.state, tuple(memory.records), None, warnings=warnings)


def _on_disk(job: Job, planner: Planner, folder: RunFolder) -> Result:
    plan = planner.plan(job)
    found = reached(job, folder, initial_state(plan))
    assert found is not None
    records = read(folder.job(*job.key) / "metrics.jsonl")
    warnings = warnings_of_job(folder, job.key)
    made = tuple(Record(**record) for record in records)
    return Result(plan, found.state, made, folder.path, warnings=warnings)


@dataclass(frozen=True)
class RoundDone:
    """What `callback` hears of a round: its numbers, as in `metrics.jsonl`, and of how many it is.

    `metric` is the name of the metric that decides, the task's first.
    """

    method: str
    seed: int
    round: int
    rounds: int
    records: tuple[Record, ...]
    metric: str

    def mean(self, metric: str | None = None, split: str = "test") -> float | None:
        """The mean of a metric over clients, scored with running statistics.

        None where this round was not scored by it.
        """
        asked = (metric or self.metric, split, RUNNING)
        found = [r.value for r in self.records if (r.metric, r.split, r.statistics) == asked]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if known else None


@dataclass(frozen=True, repr=False)
class Results:
    """The results of several methods and seeds; `runs` has each, by method and seed."""

    runs: Mapping[tuple[str, int], Result]

    def frame(self) -> Any:
        """All numbers of all runs as a pandas DataFrame, one row a number."""
        return frame_of([record for result in self.runs.values() for record in result.records])

    def __repr__(self) -> str:
        uneven = any(result.is_uneven for result in self.runs.values())
        shown = []
        for method in dict.fromkeys(method for method, _ in self.runs):
            own = [result for (name, _), result in self.runs.items() if name == method]
            means = [statistics.fmean(scores.values()) for one in own if (scores := one.scores())]
            shown.append(f"{method} {statistics.fmean(means):.3f}" if means else method)
            if means and uneven:
                weighted = statistics.fmean(one.weighted_mean() for one in own if one.scores())
                shown[-1] += f" ({weighted:.3f})"
        seeds = dict.fromkeys(seed for _, seed in self.runs)
        metric = next(iter(self.runs.values())).metric.words
        what = f"mean test {metric}{' (weighted by test samples)' if uneven else ''}"
        return f"<Results of seeds {[*seeds]}, {what}: {', '.join(shown)}>"


def _several(name: str, one: T, several: Sequence[T] | None, default: T) -> list[T]:
    """What was asked for as one, or as several."""
    if several is None:
        if isinstance(one, Sequence) and not isinstance(one, str):
            raise ConfigError(f"fit: {name} = {one!r}: legal is one; several are `{name}s`")
        return [one]
    if isinstance(several, str) or not isinstance(several, Sequence) or not several:
        raise ConfigError(f"fit: {name}s = {several!r}: legal is a list; one is `{name}`")
    if one != default:
        raise ConfigError(f"fit: {name} = {one!r} beside {name}s = {several!r}: give one of them")
    return list(several)


def _pass_on(
    notes: Callable[[str], None], callback: Callable[[RoundDone], object], event: Event
) -> None:
    if event.kind == "note" and event.level != "debug":
        notes(event.text)
    if event.kind == "round" and event.gave is not None:
        method, _, seed = event.job
        records = tuple(event.gave.records)
        name = event.judged_by.name
        callback(RoundDone(method, seed, event.round, event.rounds, records, name))


def _key(word: str) -> str:
    """The configuration's key for a keyword."""
    return f"training.{word}" if word in _PLAIN else word.replace("__", ".")


def _named(
    data: str | Path | Data, model: Model | None, methods: Sequence[Any], choice: TaskChoice
) -> dict[str, Any]:
    """The configuration's words for what was given; objects have none that could be read back."""
    path = isinstance(data, Path) or (isinstance(data, str) and looks_like_path(data))
    given = {
        "data.path" if path else "data.name": str(data) if path else data,
        "model.name": model,
        "task.name": choice.task,
        "task.loss": choice.loss,
    }
    names: dict[str, Any] = {key: _word(one) for key, one in given.items() if one is not None}
    if choice.metrics is not None:
        names["task.metrics"] = [_word(one) for one in choice.metrics] or [IN_PYTHON]
    return {"methods": [getattr(method, "name", method) for method in methods], **names}


def _word(given: object) -> str:
    return given if isinstance(given, str) else IN_PYTHON


def _check(
    asked: Mapping[str, Any],
    names: Mapping[str, Any],
    methods: Sequence[Any],
    settings: Mapping[str, Any],
) -> None:
    """Refuse by name what fit would not heed."""
    for key, value in asked.items():
        section = key.partition(".")[0]
        if section in _NOT_HERE:
            why = "fit trains methods and seeds of one setting; `fedbn run` does this"
        elif key in names or (key == "data.path" and names.get("data.name") == IN_PYTHON):
            why = f"the argument `{section}` decides that"
        elif key == "method.mu" and all(isinstance(method, Method) for method in methods):
            why = "`method` is a value, which has its own"
        elif sum(_key(word) == key for word in settings) > 1:
            why = f"given twice, as `{key.partition('.')[2]}` too"
        else:
            continue
        raise ConfigError(f"fit: {key} = {reprlib.repr(value)}: {why}")
    for method in methods:
        if not isinstance(method, str | Method):
            raise ConfigError(f"fit: method = {method!r}: legal are a name and a Method")


def _method(method: str | Method, mu: float | list[float]) -> Method:
    if isinstance(method, Method):
        return method
    if isinstance(mu, list):
        raise ConfigError("method.mu: fit takes one number; a grid is for `fedbn run`")
    return parse_method(method, {"mu": mu})


def _maker(model: Model | None) -> Callable[..., nn.Module] | None:
    """A function that makes the model, where it was given as an object."""
    if model is None or isinstance(model, str):
        return None
    if isinstance(model, nn.Module):
        return lambda: copied(model)
    return model
