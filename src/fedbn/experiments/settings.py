"""The jobs of an experiment: one a method, a seed and a setting of its sweep."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedbn.core.method import Method
from fedbn.errors import ConfigError
from fedbn.experiments.loading import checked, placed
from fedbn.experiments.schema import Experiment
from fedbn.methods import parse_method

DEFAULT = "default"


@dataclass(frozen=True)
class Setting:
    """One point of a sweep: its name and the experiment with its values in place."""

    name: str
    experiment: Experiment


@dataclass(frozen=True)
class Job:
    """One run of one method."""

    method: Method
    setting: Setting
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What names the job in folders and records."""
        return self.method.name, self.setting.name, self.seed


def settings(experiment: Experiment) -> list[Setting]:
    """Expand `[sweep]`, and a list for `method.mu`, into settings.

    Example:
        >>> [s.name for s in settings(Experiment(sweep={"training": {"local_epochs": [1, 4]}}))]
        ['local_epochs=1', 'local_epochs=4']
    """
    axes = dict(_axes(experiment.sweep))
    if isinstance(experiment.method.mu, list):
        axes["method.mu"] = experiment.method.mu
    if not axes:
        return [Setting(DEFAULT, experiment)]
    base = {**experiment.model_dump(exclude_unset=True), "sweep": {}}
    return [
        _setting(base, dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


def jobs(experiment: Experiment) -> list[Job]:
    """List all jobs in their fixed order: seed by seed, so that early results compare methods.

    A method that a setting does not change (FedAvg, when only mu varies) runs once.
    """
    found: dict[tuple[str, str, int], Job] = {}
    only_mu = not experiment.sweep
    for seed in experiment.seeds:
        for setting in settings(experiment):
            for spec in experiment.methods:
                method = parse_method(spec, {"mu": setting.experiment.method.mu})
                alone = only_mu and parse_method(spec, {"mu": 1}) == parse_method(spec, {"mu": 2})
                job = Job(method, Setting(DEFAULT, setting.experiment) if alone else setting, seed)
                found.setdefault(job.key, job)
    return list(found.values())


def _axes(sweep: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, list[Any]]]:
    for key, value in sweep.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _axes(value, f"{path}.")
        elif isinstance(value, list) and value:
            yield path, value
        else:
            raise ConfigError(f"sweep.{path} = {value!r}: expected a list of values")


def _setting(base: Mapping[str, Any], values: Mapping[str, Any]) -> Setting:
    raw = dict(base)
    for key, value in values.items():
        raw = placed(raw, key, value)
    name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
    return Setting(re.sub(r"[^\w.=,+()\-]", "_", name), checked(raw, f"sweep {name}"))
