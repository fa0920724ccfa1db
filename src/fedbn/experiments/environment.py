"""What a run was begun with: what its models need to be used, and whether it is still the same."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import torch

from fedbn import __version__
from fedbn.core.engine import cores
from fedbn.core.federation import A_CLASS, Federation, blank_client
from fedbn.errors import ConfigError, DamagedRun, Misfit
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import OF_DATA, Planner
from fedbn.experiments.schema import Experiment, with_earlier_defaults
from fedbn.fast import chosen
from fedbn.fast.allocator import granted
from fedbn.runs.folder import RunFolder

EVERY = "all settings"


def facts_of(federation: Federation) -> dict[str, Any]:
    """Collect plain values: names, shapes and how a sample is prepared, and no sample."""
    clients = federation.clients
    extents = [client.train.extent() for client in clients]
    return {
        "name": federation.name,
        "classes": list(federation.classes),
        "input_shape": list(federation.input_shape),
        "clients": [[client.name, client.domain] for client in federation.clients],
        "sizes": {c.name: [len(c.train), sum(map(len, c.tests.values()))] for c in clients},
        "dtype": str(clients[0].train.dtype).removeprefix("torch."),
        "target": [federation.target[0], list(federation.target[1])],
        "range": [min(low for low, _ in extents), max(high for _, high in extents)],
        "remarks": list(federation.remarks),
        "stand_ins": list(federation.stand_ins),
        "preparation": dict(federation.preparation),
    }


def facts_by_setting(federations: Mapping[str, Federation]) -> dict[str, Any]:
    """Collect the facts of each setting's data; once where all settings have the same."""
    if len({id(federation) for federation in federations.values()}) == 1:
        federations = {EVERY: next(iter(federations.values()))}
    return {setting: facts_of(federation) for setting, federation in federations.items()}


def facts_for(recorded: Mapping[str, dict[str, Any]], setting: str) -> dict[str, Any] | None:
    """Find the facts of a setting; None in a run that recorded none."""
    return recorded.get(setting, recorded.get(EVERY))


def sketch(facts: Mapping[str, Any]) -> Federation:
    """Make a federation of the same clients, classes and shapes, with two blank samples each."""
    shape, dtype = facts["input_shape"], getattr(torch, facts["dtype"])
    kind, size = facts.get("target") or A_CLASS
    blank = partial(blank_client, input_shape=shape, dtype=dtype, target=(kind, tuple(size)))
    return Federation(
        facts["name"],
        tuple(blank(str(name), str(domain)) for name, domain in facts["clients"]),
        tuple(facts["classes"]),
        tuple(facts["remarks"]),
        preparation=dict(facts["preparation"]),
    )


_FREE = {"workers", "data.workers", "checkpoint.every"}  # change no result
_GROWING = {"seeds", "methods", "training.rounds", "training.epochs"}


def environment_of(
    config: Mapping[str, Any], todo: Sequence[Job], directory: Path, **more: Any
) -> dict[str, Any]:
    """Collect what a run's result depends on, and what helps to explain one.

    What else an engine knows is `more`; its `data` has a value a client that must stay the same.
    """
    files = dict.fromkeys(job.setting.experiment.model.weights for job in todo)
    return {
        "config": config,
        "directory": str(directory),
        "seeds": config["seeds"],
        "versions": {
            "fedbn": __version__,
            "numpy": numpy.__version__,
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "weights": {file: weights_hash(file) for file in files if file},
        **more,
    }


def embedded_facts(todo: Sequence[Job], planner: Planner) -> dict[str, Any]:
    """Collect what is known where all data and all threads are in this process."""
    trained = (job for job in todo if job.method.baseline is None)
    plan = planner.plan(next(trained, todo[0]))
    return {
        "data": planner.fingerprint(),
        "fast": chosen(plan),
        "task": plan.task.facts(),
        "inputs": facts_by_setting(
            {j.setting.name: planner.federation(j.setting.experiment) for j in todo}
        ),
        "memory": granted(),
        "threads": {"cores": cores(), "torch_per_worker": 1},
    }


def same_run(
    folder: RunFolder,
    environment: Mapping[str, Any],
    come_and_go: bool = False,
    grows: bool = False,
) -> list[str]:
    """Write down what a run begins with, or refuse one that is not the same; say what else changed.

    Where clients `come_and_go`, the data of those that are here must be what it was; where a run
    `grows` by seeds, methods and rounds, these are written down.
    """
    if not folder.config.exists():
        folder.commit(environment["config"], environment)
        return []
    before = folder.read_environment()
    known, here = before.get("data", {}), environment["data"]
    had = {key.rpartition(OF_DATA)[2] for key in known}
    new = {k: v for k, v in here.items() if OF_DATA in k and k.rpartition(OF_DATA)[2] not in had}
    if come_and_go:
        before = {**before, "data": {name: known.get(name, one) for name, one in here.items()}}
    elif "merged" in before:  # of runs that may all have lacked some data
        before = {**before, "data": {**known, **new}}
    found = differences(before, environment, _FREE | _GROWING if grows else _FREE)
    if grows or (new and not come_and_go):
        config, seeds = environment["config"], environment["seeds"]
        folder.commit(config, {**before, "config": config, "seeds": seeds})
    folder.request.unlink(missing_ok=True)  # a kill may have left it
    return found


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], free: Collection[str] = _FREE
) -> list[str]:
    """Refuse a run that is not the same any more; say what else changed."""
    if not isinstance(before.get("config"), Mapping):
        raise DamagedRun("environment.json is missing or damaged: the run cannot be compared")
    now = json.loads(json.dumps(now))
    defaults = Experiment().model_dump()  # a key that came with a later fedbn had its default
    every = changed_keys(with_earlier_defaults(before["config"]), now["config"], defaults)
    if changed := [key for key in every if key not in free]:
        again = "if growing was cut off, repeat that `fedbn resume --rounds` or `--add-...`; else "
        raise ConfigError(
            f"the configuration changed since the run began: {', '.join(changed)}; "
            f"{again if _GROWING.issuperset(changed) else ''}undo that, or start a new run"
        )
    if data := changed_keys(before.get("data", {}), now["data"]):
        changed_at = f"the data changed since the run began: client {', '.join(data)}"
        raise Misfit(changed_at, "it changed since the run began")
    if weights := changed_keys(before.get("weights", {}), now["weights"]):
        raise ConfigError(f"model.weights changed since the run began: {', '.join(weights)}")
    if versions := changed_keys(before.get("versions", {}), now["versions"]):
        return [f"other versions than the run began with: {', '.join(versions)}"]
    return []


def weights_hash(file: str) -> str:
    """Hash the file that a model starts from."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"model.weights {file}: {error.strerror}") from error


def changed_keys(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    defaults: Mapping[str, Any] = MappingProxyType({}),
    above: str = "",
) -> list[str]:
    """Name the keys, dotted, whose values differ; a missing key of `before` has its default."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        default = defaults.get(key)
        old, new = before.get(key, default), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            below = default if isinstance(default, Mapping) else {}
            found += changed_keys(old, new, below, f"{above}{key}.")
        elif old != new:
            found.append(f"{above}{key}")
    return found
