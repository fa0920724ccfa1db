"""The configuration an item is run with, and in words how it differs from the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedbn.datasets
from fedbn import registry
from fedbn.data.digit_domains import digits_folder
from fedbn.data.digit_files import DIGIT_DOMAINS, find_source
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import (
    Raw,
    allow_typed,
    changed,
    checked,
    held_by,
    held_in,
    overridden,
    scaled,
)
from fedbn.experiments.merging import Merged, put_together
from fedbn.experiments.schema import Experiment
from fedbn.paper.items import Entry
from fedbn.registry import Held
from fedbn.runs.folder import RunFolder
from fedbn.text import flat

# What changes no result, or is told in another way.
_UNSAID = ("workers", "engine", "format", "evaluation.every", "training.device", "quick",
           "methods", "seeds", "training.rounds", "training.epochs", "data.path")  # fmt: skip
_OPTIONS = "reproduce.options."
_UNNAMED = {"data": "digits_mini", "model": "that fits the data"}


def departures(paper: Mapping[str, Any], used: Mapping[str, Any]) -> tuple[list[str], bool]:
    """List what was cut or changed; is that more than how many seeds and methods there are?

    Examples:
        >>> departures({"seeds": [0, 1], "training": {"epochs": 300}},
        ...            {"seeds": [0], "training": {"epochs": 10, "lr": 0.1}})
        (['10 of 300 epochs', '1 of 2 seeds', 'lr 0.1 (paper scale: 0.01)'], True)
    """
    theirs, ours = checked(paper, "paper"), checked(used)
    length, values = [*_length(theirs, ours)], [*_values(_flat(theirs), _flat(ours))]
    return [*length, *_lists(theirs, ours), *values], bool(length or values)


def _length(theirs: Experiment, ours: Experiment) -> Iterator[str]:
    swept = "local_epochs" in ours.sweep.get("training", {})
    a, b = (t.epochs or t.rounds * t.local_epochs for t in (theirs.training, ours.training))
    if ours.training.epochs is None and swept:
        yield f"{ours.training.rounds} rounds a setting (paper scale: {a} epochs)"
    elif a != b:
        unit = "rounds" if ours.training.local_steps else "epochs"
        yield f"{b} of {a} {unit}" if b < a else f"{b} {unit} (paper scale: {a})"


def _lists(theirs: Experiment, ours: Experiment) -> Iterator[str]:
    a, b = len(theirs.seeds), len(ours.seeds)
    if a != b:
        yield f"{b} of {a} seeds" if b < a else f"{b} seeds (paper scale: {a})"
    if left := [method for method in theirs.methods if method not in ours.methods]:
        yield f"without {', '.join(left)}"
    if more := [method for method in ours.methods if method not in theirs.methods]:
        yield f"with {', '.join(more)}"


def _values(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    other = {s for s in ("data", "model") if theirs.get(f"{s}.name") != ours.get(f"{s}.name")}
    for section in sorted(other):
        named = (each.get(f"{section}.name") or _UNNAMED[section] for each in (ours, theirs))
        yield f"{section} {' in place of '.join(named)}"
    for key in dict.fromkeys([*theirs, *ours]):
        a, b = theirs.get(key), ours.get(key)
        if a == b or key.startswith(_UNSAID) or key.partition(".")[0] in other:
            continue
        name = key.removeprefix(_OPTIONS).removeprefix("sweep.").rpartition(".")[2]
        now = "not varied" if b is None and key.startswith("sweep.") else _shown(b)
        yield f"{name} {now}" + ("" if a is None else f" (paper scale: {_shown(a)})")


def _flat(experiment: Experiment) -> dict[str, Any]:
    raw = experiment.model_dump(exclude={"reproduce"})
    options = experiment.reproduce.options if experiment.reproduce else {}
    leaves = flat({**raw, "reproduce": {"options": options}})
    return {key: value for key, value in leaves if value != {}}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return str(value.get("name", dict(value)))
    return "as it is by default" if value is None else str(value)


ORIGINALS = "originals"
_OF_THE_FILE = ("reproduce", "quick")


@dataclass(frozen=True)
class Asked:
    """What is run: the configuration after scale, stand-ins and overrides; as in `Request`."""

    raw: Raw
    changes: tuple[str, ...]
    comparable: bool
    cut: bool
    held: Held


def asked(entry: Entry, scale: str, flags: Mapping[str, Any], settings: Iterable[str]) -> Asked:
    """Apply the scale, then what takes the place of missing data, then the user's overrides.

    Data that is not there is replaced at quick scale only: at the paper's scale it is the point.
    """
    where, settings = str(entry.file), list(settings)
    for key in (setting.split("=")[0].strip() for setting in settings):
        if key.split(".")[0] in _OF_THE_FILE and not key.startswith("reproduce.options."):
            raise ConfigError(
                f"--set {key}: belongs to the item's file. Copy {where}, change it there, and run "
                f"`fedbn reproduce COPY.toml`"
            )
    held = held_in(entry.file)
    allow_typed(flags, settings, where)
    checked(entry.raw, where, held)
    raw = scaled(dict(entry.raw), scale)
    without: Mapping[str, Any] = entry.how.get("without", {})
    for need in missing(overridden(raw, flags, settings, where)):
        if scale == "quick" and need in without:
            raw = changed(raw, without[need])
    if ORIGINALS in without and _data(raw) == "digits":
        sources = [find_source(digits_folder(), domain) for domain in DIGIT_DOMAINS]
        if not all(source is not None and not source.split for source in sources):
            raw = changed(raw, without[ORIGINALS])  # not there whole, or cut to equal size
    final = overridden(raw, flags, settings, where)
    final.pop("quick", None)
    checked(final, where, held)
    return _asked(entry, final, held)


def _asked(entry: Entry, used: Raw, held: Held) -> Asked:
    paper = entry.paper or entry.raw
    own = () if entry.paper else (f"settings of {entry.file.name}, not the paper's",)
    comparable = entry.paper is not None and _data(used) == _data(entry.paper)
    changes, cut = departures(paper, used)
    return Asked(used, (*own, *changes), comparable, cut, held)


def missing(raw: Mapping[str, Any]) -> list[str]:
    """Name the data sets that a configuration needs and that are not there."""
    data = raw.get("data", {})
    needs = [*raw.get("reproduce", {}).get("needs", ())]
    if "path" not in data:
        needs.insert(0, _data(raw))
    return [name for name in dict.fromkeys(needs) if not is_there(name)]


def is_there(name: str) -> bool:
    """Tell whether a registered data set's files are there; a user's own is taken to be."""
    if name not in registry.names(fedbn.datasets):
        return True  # a user's own, or a name that is refused where it is used
    return fedbn.datasets.info_of(name).is_there()


def _data(raw: Mapping[str, Any]) -> str:
    return str(raw.get("data", {}).get("name", _UNNAMED["data"]))


def shown_runs(
    entry: Entry, runs: Sequence[Path], overrides: Sequence[object] = ()
) -> tuple[Asked, Merged]:
    """Take the configuration of runs in place of the file's; what differs is said."""
    if overrides:
        raise ConfigError("--from shows a run as it is: --seed and --set change nothing of it")
    if entry.by != "trained":
        raise ConfigError(f"{entry.name} is not made from one run: --from does not apply")
    found = put_together([RunFolder(run) for run in runs])
    raw = {**found.raw, "reproduce": dict(entry.how)}
    folder = found.parts[0].folder
    held = held_by(folder)
    checked(raw, str(folder.config), held)
    return _asked(entry, raw, held), found
