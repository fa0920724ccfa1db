"""How a configuration differs from the paper's, in words for every table and picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedbn.experiments.loading import checked
from fedbn.experiments.schema import Experiment

# What changes no result, or is told in another way.
_UNSAID = ("workers", "engine", "format", "evaluation.every", "training.device", "quick",
           "methods", "seeds", "training.rounds", "training.epochs", "data.path")  # fmt: skip
_OPTIONS = "reproduce.options."


def departures(paper: Mapping[str, Any], used: Mapping[str, Any]) -> list[str]:
    """List what was cut or changed.

    Examples:
        >>> departures({"seeds": [0, 1], "training": {"epochs": 300}},
        ...            {"seeds": [0], "training": {"epochs": 10, "lr": 0.1}})
        ['10 of 300 epochs', '1 of 2 seeds', 'lr 0.1 (paper scale: 0.01)']
    """
    theirs, ours = checked(paper, "paper"), checked(used)
    return [
        *_length(theirs, ours),
        *_seeds(theirs, ours),
        *_methods(theirs, ours),
        *_values(_flat(theirs), _flat(ours)),
    ]


def _length(theirs: Experiment, ours: Experiment) -> Iterator[str]:
    swept = "local_epochs" in ours.sweep.get("training", {})
    a, b = (_epochs(experiment) for experiment in (theirs, ours))
    if ours.training.epochs is None and swept:
        yield f"{ours.training.rounds} rounds a setting (paper scale: {a} epochs)"
    elif a != b:
        unit = "rounds" if ours.training.local_steps else "epochs"
        yield f"{b} of {a} {unit}" if b < a else f"{b} {unit} (paper scale: {a})"


def _epochs(experiment: Experiment) -> int:
    training = experiment.training
    return training.epochs or training.rounds * training.local_epochs


def _seeds(theirs: Experiment, ours: Experiment) -> Iterator[str]:
    a, b = len(theirs.seeds), len(ours.seeds)
    if a != b:
        yield f"{b} of {a} seeds" if b < a else f"{b} seeds (paper scale: {a})"


def _methods(theirs: Experiment, ours: Experiment) -> Iterator[str]:
    if left := [method for method in theirs.methods if method not in ours.methods]:
        yield f"without {', '.join(left)}"
    if more := [method for method in ours.methods if method not in theirs.methods]:
        yield f"with {', '.join(more)}"


def _values(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    other = {s for s in ("data", "model") if theirs.get(f"{s}.name") != ours.get(f"{s}.name")}
    for section in sorted(other):
        yield f"{section} {ours.get(f'{section}.name')} in place of {theirs.get(f'{section}.name')}"
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
    return dict(_leaves({**raw, "reproduce": {"options": options}}))


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _leaves(each, f"{above}{key}.")
        else:
            yield f"{above}{key}", each


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return str(value.get("name", dict(value)))
    return "as it is by default" if value is None else str(value)
