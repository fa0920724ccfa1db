"""`fedbn.fit`: one run from Python, with your own objects or with registered names."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedbn.core.engine import one_torch_thread
from fedbn.core.method import Method
from fedbn.core.plan import copied
from fedbn.core.rounds import Record, initial_state
from fedbn.data.arrays import Data, federation_of
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import (
    IN_PYTHON,
    changed,
    checked,
    looks_like_path,
    placed,
    with_absolute_paths,
)
from fedbn.experiments.jobs import Event, Job, Setting
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import Memory, reached, run_plan, start
from fedbn.methods import parse_method
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder
from fedbn.trained.trained_run import Trained

Model = str | nn.Module | Callable[..., nn.Module]
Result = Trained
_log = logging.getLogger("fedbn")


_AS_OBJECT = (
    "the model is an object: its first weights are the ones it has, whatever the seed; give the "
    "function that makes it, and the seed decides them"
)


_SEVERAL = ("methods", "quick", "reproduce", "seeds", "sweep")


@one_torch_thread()  # from the first operation on: in a forked child, a second thread never comes
def fit(
    data: str | Path | Data,
    model: Model | None = None,
    method: str | Method = "fedbn",
    *,
    rounds: int = 40,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 0,
    notes: Callable[[str], None] = _log.warning,
    **settings: Any,
) -> Result:
    """Train one method and give every client its model.

    Args:
        data: A registered name, a path of your own data, a `Federation`, or a mapping from each
            client's name to `(x, y)`, or to `((train_x, train_y), (test_x, test_y))`; each is an
            array, a tensor or lists of numbers.
        model: A registered name, `module:callable`, a function that makes a model; None for one
            that fits the data. A model itself is copied, with the weights it has: no seed
            changes them.
        method: A method, or its name as on the command line.
        rounds: Communication rounds.
        seed: Decides everything that is random.
        out: A run folder to write; None to write nothing.
        resume: Go on with the run in `out`, if there is one.
        workers: Cores to use; 0 for all. Never changes the result.
        notes: Hears each remark once, if there is any: on data, model and clients that work and
            may not be what was meant. `print` prints them; the logger `fedbn`, unless given.
        **settings: Any key of the configuration, with `__` for the dot: `training__lr=0.1`.

    Returns:
        The result.

    Examples:
        >>> import numpy as np, fedbn
        >>> draws = np.random.default_rng(0)
        >>> def site(scale):
        ...     x = draws.normal(size=(40, 5)).astype("float32")
        ...     return scale * x, (x[:, 0] > 0).astype("int64")
        >>> sites = {"a": site(1.0), "b": site(50.0)}
        >>> result = fedbn.fit(sites, "mlp", "fedbn", rounds=2, seed=0)
        >>> sorted(result.models)
        ['a', 'b']
    """
    names = _named(data, model, method)
    asked = {key.replace("__", "."): value for key, value in settings.items()}
    _check(asked, names, method, seed)
    raw: dict[str, Any] = {"seeds": [seed], "training": {"rounds": rounds}}
    for key, value in {**names, **asked}.items():
        section = isinstance(value, Mapping) and "." not in key
        raw = changed(raw, {key: value}) if section else placed(raw, key, value)
    experiment = checked(with_absolute_paths(raw), "fit")
    planner = Planner(
        federation=None if isinstance(data, str | Path) else federation_of(data),
        make_model=_maker(model),
    )
    chosen = _method(method, experiment.method.mu)
    job = Job(chosen, Setting("default", experiment), seed)
    plan = planner.plan(job)
    if isinstance(model, nn.Module):
        planner.warnings.append(_AS_OBJECT)
    if out is None:
        for text in planner.warnings:
            notes(text)
        memory = Memory(experiment.evaluation.report == "best")
        run_plan(plan, memory, partial(_pass_on, notes), workers=workers)
        assert memory.state is not None
        return Result(plan, memory.state, tuple(memory.records), None)
    folder = RunFolder(out)
    if not (resume and (folder.config.exists() or folder.request.exists())):
        folder.begin(experiment.model_dump(exclude_unset=True, exclude_none=True))
    with folder.locked():
        start(experiment, [job], planner, folder, partial(_pass_on, notes), workers=workers)
    found = reached(job, folder, initial_state(plan))
    assert found is not None
    read = metrics.read(folder.job(*job.key) / "metrics.jsonl")
    return Result(plan, found.state, tuple(Record(**r) for r in read), folder.path)


def _pass_on(notes: Callable[[str], None], event: Event) -> None:
    if event.kind == "note":
        notes(event.text)


def _named(data: str | Path | Data, model: Model | None, method: str | Method) -> dict[str, Any]:
    """The configuration's words for what was given; objects have none that could be read back."""
    names: dict[str, Any] = {"methods": [getattr(method, "name", method)]}
    if isinstance(data, Path) or (isinstance(data, str) and looks_like_path(data)):
        names["data.path"] = str(data)
    else:
        names["data.name"] = data if isinstance(data, str) else IN_PYTHON
    if model is not None:
        names["model.name"] = model if isinstance(model, str) else IN_PYTHON
    return names


def _check(asked: Mapping[str, Any], names: Mapping[str, Any], method: Any, seed: Any) -> None:
    """Refuse by name what fit would not heed."""
    given = {"method": method, "seed": seed}
    for key, value in {**given, **asked}.items():
        section = key.partition(".")[0]
        if section in _SEVERAL or (key in given and isinstance(value, list | tuple | range)):
            why = "fit trains one method with one seed, `method` and `seed`; `fedbn run` several"
        elif key in names or (section == "data" and names.get("data.name") == IN_PYTHON):
            why = f"the argument `{section}` decides that"
        elif key == "method.mu" and isinstance(method, Method):
            why = "`method` is a value, which has its own"
        else:
            continue
        raise ConfigError(f"fit: {key} = {reprlib.repr(value)}: {why}")
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
