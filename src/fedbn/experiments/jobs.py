"""The jobs of an experiment, one a method, a seed and a setting of its sweep; and what they tell.

A run tells events, the same from this process and from worker processes. Who writes a run down,
shows it or tracks it listens.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedbn.core.engine import Round
from fedbn.core.method import Method
from fedbn.core.metric import ACCURACY, Metric
from fedbn.errors import ConfigError, unknown
from fedbn.experiments.configuration import PATHS, checked, placed
from fedbn.experiments.schema import Experiment
from fedbn.methods import parse_method, pieces_of
from fedbn.registry import Held
from fedbn.runs import metrics
from fedbn.runs.folder import folder_name
from fedbn.runs.messages import Level
from fedbn.text import flat

DEFAULT = "default"
Key = tuple[str, str, int]
_SECTIONS = ("training", "method", "data", "model", "evaluation")
_MAX_SETTINGS = 10_000
_MAX_NAME = 200


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
    def key(self) -> Key:
        """What names the job in folders and records."""
        return self.method.name, self.setting.name, self.seed


def settings(experiment: Experiment) -> list[Setting]:
    """Expand `[sweep]`, and a list for `method.mu`, into settings.

    Examples:
        >>> [s.name for s in settings(Experiment(sweep={"training": {"local_epochs": [1, 4]}}))]
        ['local_epochs=1', 'local_epochs=4']
    """
    if not (varied := axes(experiment)):
        return [Setting(DEFAULT, experiment)]
    if (count := math.prod(map(len, varied.values()))) > _MAX_SETTINGS:
        raise ConfigError(f"sweep: {count:,} settings; legal are at most {_MAX_SETTINGS:,}")
    base = {**experiment.model_dump(exclude_unset=True), "sweep": {}}
    found: dict[str, Setting] = {}
    for values in itertools.product(*varied.values()):
        setting = _setting(base, dict(zip(varied, values, strict=True)), experiment.held)
        if setting.name in found:
            raise ConfigError(f"sweep: two settings would be called {setting.name!r}")
        found[setting.name] = setting
    return list(found.values())


def axes(experiment: Experiment) -> dict[str, list[Any]]:
    """Map each key that varies to its values."""
    found: dict[str, list[Any]] = {}
    for section in experiment.sweep:
        if section not in _SECTIONS:
            raise ConfigError(f"sweep: {unknown('section', section, _SECTIONS)}")
    for key, values in flat(experiment.sweep):
        if isinstance(values, list) and values:
            found[key] = values
        elif values != {}:  # a section without keys
            raise ConfigError(f"sweep.{key} = {values!r}: expected a list of values")
    if isinstance(experiment.method.mu, list):
        found["method.mu"] = experiment.method.mu
    return found


def jobs(experiment: Experiment) -> list[Job]:
    """List all jobs in their fixed order: seed by seed, so that early results compare methods.

    A method that a setting does not change (FedAvg, when only mu varies) runs once.
    """
    named = named_jobs(experiment)
    spoken = {key[:2]: one for key, one in named.items()}  # the same for every seed
    methods = {key: method_of(*one) for key, one in spoken.items()}
    return [Job(methods[key[:2]], setting, key[2]) for key, (_, setting) in named.items()]


def method_of(spec: str, setting: Setting) -> Method:
    """Make the method of a job from its written form."""
    experiment = setting.experiment
    return parse_method(spec, {"mu": experiment.method.mu}, experiment.held)


def named_jobs(experiment: Experiment) -> dict[Key, tuple[str, Setting]]:
    """Map the key of each job to its method as written and its setting.

    Nothing of a user's own is imported for that, but where a list of mu asks whether a method
    takes it.
    """
    found: dict[Key, tuple[str, Setting]] = {}
    specs = {spec: "+".join(pieces_of(spec)) for spec in experiment.methods}
    once = set()  # methods that take no mu
    for spec in specs if isinstance(experiment.method.mu, list) and not experiment.sweep else ():
        one, two = (parse_method(spec, {"mu": mu}, experiment.held) for mu in (1, 2))
        once |= {spec} if one == two else set()
    every = settings(experiment)
    for seed, setting, (spec, name) in itertools.product(experiment.seeds, every, specs.items()):
        own = Setting(DEFAULT, setting.experiment) if spec in once else setting
        found.setdefault((name, own.name, seed), (spec, own))
    _check_folders(found)
    return found


def _check_folders(keys: Iterable[Key]) -> None:
    """Refuse methods that would write into one folder, or into none that a disk takes."""
    taken: dict[str, str] = {}
    for method in dict.fromkeys(key[0] for key in keys):
        name = folder_name(method)
        if len(name.encode()) > _MAX_NAME:
            raise ConfigError(f"method {method[:60]!r} ...: legal are at most {_MAX_NAME} bytes")
        if name in taken:
            raise ConfigError(f"methods {taken[name]!r} and {method!r} would share a folder")
        taken[name] = method


def _setting(base: Mapping[str, Any], values: Mapping[str, Any], held: Held) -> Setting:
    raw = dict(base)
    for key, value in values.items():
        raw = placed(raw, key, value)
    shown = {
        key: Path(v).name if key in PATHS and isinstance(v, str) else v for key, v in values.items()
    }
    name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in shown.items())
    name = re.sub(r"[^\w.=,+()\-]", "_", name)
    if len(name.encode()) > _MAX_NAME:
        raise ConfigError(f"sweep: a setting's name has at most {_MAX_NAME} bytes: {name[:60]} ...")
    return Setting(name, checked(raw, f"sweep {name}", held))


@dataclass(frozen=True)
class Ahead:
    """What is left of a job as a run begins: rounds, and the work of each beside other jobs'."""

    job: Key
    rounds: int
    work: float


@dataclass(frozen=True)
class Event:
    """One thing that happened to one job."""

    # the beginning (rounds of all jobs: done, and in all), what a job had done before it, a remark,
    # a finished round, a finished job, one that ends before its last round, or a failure
    kind: Literal["begin", "earlier", "note", "round", "done", "stopped", "failed"]
    job: Key  # method, setting and seed
    round: int = 0  # rounds done
    rounds: int = 0  # rounds in all
    text: str = ""  # the remark, or the error's line
    whole: bool = False  # whether the remark is about the whole run, and not about this job
    level: Level = "warning"  # whether a message is stored, shown or only logged
    exit_code: int = 0  # the failure's exit code
    # the round's numbers; of a job that goes on, those of its earlier rounds
    records: list[dict[str, Any]] = field(default_factory=list)
    ahead: list[Ahead] = field(default_factory=list)  # at the beginning: what is left of each job
    beside: int = 1  # at the beginning: how many jobs run side by side
    over: bool = False  # whether a job was finished before this part of the run
    # what a round is judged by, in plain values
    metric: dict[str, Any] = field(default_factory=dict)
    # all that a round gave, or the end of a job: in the process that ran it, no other
    gave: Round | None = None

    @property
    def judged_by(self) -> Metric:
        """What a round is judged by."""
        return Metric(**self.metric) if self.metric else ACCURACY

    @cached_property
    def lines(self) -> str:
        """The records as `metrics.jsonl` has them, rendered once for all who listen."""
        return "".join(map(metrics.line, self.records))

    def to_line(self) -> str:
        """Render for a pipe."""
        values = {**vars(self), "records": [], "gave": None, "lines": self.lines}
        return json.dumps(values, default=asdict) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Read back."""
        values = json.loads(line)
        (method, setting, seed), lines = values.pop("job"), values.pop("lines")
        values["records"] = [json.loads(record) for record in lines.split("\n")[:-1]]
        event = cls(job=(method, setting, seed), **values)
        vars(event)["lines"] = lines
        return event


Listener = Callable[[Event], None]


def to_all(*listeners: Listener) -> Listener:
    """Let several listen, each event in this order."""

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell
