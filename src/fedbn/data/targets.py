"""What targets mean: classes, several labels, numbers or masks, decided once for all clients.

Arrays, Datasets and npz files give targets in many types. One decision over all clients and parts
follows these rules: a class that one client lacks does no harm, a type that one client has alone is
an error, and where two readings are possible the task that was named decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.federation import Targets
from fedbn.data.arrays import places
from fedbn.errors import DataError
from fedbn.text import listed

StandardTask = Literal["classification", "multilabel", "regression", "segmentation"]
"""The tasks that decide between two readings of targets."""
_FEW = 20  # whole floats up to this value, or half as many different ones, may be classes
_SHOWN = 8
_FULL_SCALE = 255  # foreground of a binary mask that was saved as a picture
_KINDS = {
    "classification": Targets.CLASS,
    "multilabel": Targets.LABELS,
    "regression": Targets.NUMBERS,
    "segmentation": Targets.MASK,
}
_WORDS = {
    "text": "texts",
    "bool": "True and False",
    "int": "whole numbers",
    "float": "floats",
    "bools": "rows of True and False",
    "ints": "rows of whole numbers",
    "floats": "rows of floats",
    "mask": "masks",
    "bool mask": "masks of True and False",
    "float mask": "masks of floats",
}
_AS_NUMBERS = "task.name = 'regression' learns them as numbers"
_NAME_CLASSES = "name all classes, in order (data.classes = [...])"


@dataclass(frozen=True)
class RawTargets:
    """Targets of one part of one client, as they were given.

    Attributes:
        where: The part, for messages, as "client a, train".
        y: Those that are known: (n, ...). All of them, or the first ones of a Dataset.
        shape: The shape of one sample; empty where it is not known.
    """

    where: str
    y: NDArray[Any]
    shape: tuple[int, ...] = ()

    @property
    def form(self) -> str:
        """The type and the arrangement of the targets, a key of `_WORDS`."""
        kind, dims = self.y.dtype.kind, self.y.ndim
        if kind in "US" and (dims == 1 or self.is_column):
            return "text"
        if kind not in "buif":
            raise DataError(
                f"{self.where}: targets of dtype {self.y.dtype} and shape {self.y.shape}; expected "
                "whole numbers, names, True and False, or floats"
            )
        name = {"b": "bool", "f": "float"}.get(kind, "int")
        if dims == 1 or self.is_column:
            return name
        if dims > 2 or (kind != "f" and self.y.shape[1:] == self.shape[1:]):
            return "mask" if name == "int" else f"{name} mask"
        return f"{name}s"

    @property
    def is_column(self) -> bool:
        """True if the targets are one column, (n, 1)."""
        return self.y.ndim == 2 and self.y.shape[1] == 1


@dataclass(frozen=True)
class Meaning:
    """What all targets are, and how they become tensors.

    Attributes:
        kind: What a model learns from them.
        names: The classes, or the names of labels or numbers.
        notes: What a user may want to know of the decision.
    """

    kind: Targets
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def tensor(self, y: NDArray[Any], where: str) -> Tensor:
        """Return targets (n, ...) as a model takes them.

        Whole numbers that are no class, such as negative labels, stay: `findings_in` reports them.
        """
        if self.kind is Targets.CLASS:
            return self._classes(y, where)
        if self.kind is Targets.NUMBERS:
            return torch.from_numpy(y.astype(np.float32).reshape(len(y), -1))
        if self.kind is Targets.LABELS:
            return torch.from_numpy(y.astype(bool).reshape(len(y), -1))
        return torch.from_numpy(y if y.dtype == np.uint8 else y.astype(np.int64))

    def _classes(self, y: NDArray[Any], where: str) -> Tensor:
        if y.ndim == 2:
            y = y[:, 0] if y.shape[1] == 1 else y.argmax(axis=1)
        if y.dtype.kind in "USb":
            return torch.from_numpy(places([str(name) for name in y.tolist()], self.names, where))
        whole = y.astype(np.int64)
        for sample in np.flatnonzero(whole != y)[:1]:
            raise DataError(
                f"{where}: label {y[sample]:g} of sample {sample} is not a whole number; the task "
                f"'classification' learns from whole numbers, {_AS_NUMBERS}"
            )
        return torch.from_numpy(whole)


def meaning_of(
    parts: Sequence[RawTargets],
    names: Sequence[str] | None = None,
    task: str | None = None,
    partial: bool = False,
) -> Meaning:
    """Decide what targets mean, over all parts of all clients.

    Args:
        parts: The targets.
        names: The names of the classes, where they are known.
        task: The task that was named, such as `classification`; None leaves it to the targets.
        partial: True if other clients have the classes that are missing here.

    Returns:
        The meaning that all parts have in common.

    Raises:
        DataError: Types differ between parts, or two readings are possible. The message names both.

    Examples:
        >>> made = meaning_of([RawTargets("client a", np.array([0.0, 1.0, 1.0]))])
        >>> made.kind, made.names
        (<Targets.CLASS: 'a class a sample'>, ('0', '1'))
    """
    known = [part for part in parts if len(part.y)]
    if not known:
        return Meaning(Targets.CLASS, tuple(names or ("0", "1")))
    forms: dict[str, list[RawTargets]] = {}
    for part in known:
        forms.setdefault(part.form, []).append(part)
    wanted = _KINDS.get(task or "")
    kind, notes = _kind(forms, wanted, names), tuple[str, ...]()
    if kind is Targets.CLASS and "float" in forms and wanted is None and names is None:
        notes = (f"labels are the floats 0.0 and 1.0: taken as the classes 0 and 1; {_AS_NUMBERS}",)
    if names is None:
        names = _names(kind, known, partial)
    return Meaning(kind, tuple(map(str, names)), notes)


def _kind(
    forms: Mapping[str, Sequence[RawTargets]],
    wanted: Targets | None,
    names: Sequence[str] | None,
) -> Targets:
    """Return the kind of targets that fits all parts, or raise with the possible readings."""
    known = [part for own in forms.values() for part in own]
    numeric = not forms.keys() & {"text"}
    if wanted is Targets.NUMBERS and numeric and len({part.y.shape[1:] for part in known}) == 1:
        return Targets.NUMBERS
    if len(forms) > 1:
        return _of_mixed(forms, wanted)
    (form, parts) = next(iter(forms.items()))
    if form in ("ints", "floats", "bools"):
        return _of_rows(parts, wanted, form)
    if form.endswith("mask"):
        return _of_masks(parts, form)
    if wanted is Targets.LABELS and form != "text" and _only(parts, {0, 1}):
        return Targets.LABELS
    if form == "int" and wanted is None and (column := [p for p in parts if p.is_column]):
        raise DataError(
            f"{column[0].where}: targets of shape {column[0].y.shape}, one column of whole "
            "numbers. Give y[:, 0] for classes; for regression with one number give floats "
            "(y.astype(float), or task.name = 'regression')"
        )
    if form == "float" and wanted is None:
        return _of_floats(parts, names)
    return Targets.CLASS


def _of_floats(parts: Sequence[RawTargets], names: Sequence[str] | None) -> Targets:
    """Tell classes from numbers where every sample has one float."""
    if names is not None:
        return Targets.CLASS if len(names) > 1 else Targets.NUMBERS
    values = np.unique(np.concatenate([part.y.reshape(-1) for part in parts]))
    if values.tolist() == [0.0, 1.0]:
        return Targets.CLASS
    count = sum(part.y.size for part in parts)
    if not np.isfinite(values).all() or not 1 < len(values) <= count // 2:
        return Targets.NUMBERS
    whole = bool((values % 1 == 0).all())
    few = len(values) <= _FEW // 2 or float(abs(values).max()) <= _FEW
    if whole and few and values[0] >= 0:
        raise DataError(
            f"{_places(parts)}: labels are floats, but all are whole numbers "
            f"({_few(values.astype(int).tolist())}). Give whole numbers for classes "
            f"(y.astype(int), or task.name = 'classification'); {_AS_NUMBERS}"
        )
    if (whole and few) or len(values) == 2:  # such as −1 and 1
        two = f" (for example (y > {values.mean():g}).astype(int))" if len(values) == 2 else ""
        raise DataError(
            f"{_places(parts)}: labels are floats with {len(values)} different values "
            f"({_few(values.tolist())}): classes, or numbers. Give whole numbers from 0 for "
            f"classes{two}; {_AS_NUMBERS}"
        )
    return Targets.NUMBERS


def _of_rows(parts: Sequence[RawTargets], wanted: Targets | None, form: str) -> Targets:
    """Tell classes, labels, numbers and masks apart where every sample has a row of values."""
    binary = form == "bools" or _only(parts, {0, 1})
    one_hot = binary and all(bool((part.y.astype(int).sum(axis=1) == 1).all()) for part in parts)
    if wanted is Targets.LABELS and binary:
        return Targets.LABELS
    if wanted is Targets.CLASS and one_hot:
        return Targets.CLASS
    where, shape = _places(parts), parts[0].y.shape
    if one_hot:
        raise DataError(
            f"{where}: every row of the targets {shape} has exactly one 1: one-hot classes, or "
            "labels that exclude each other. For classes give y.argmax(axis=1) (or task.name = "
            "'classification'); task.name = 'multilabel' learns them as independent labels"
        )
    if form == "bools":
        return Targets.LABELS
    if binary:
        raise DataError(
            f"{where}: the targets {shape} are 0 and 1: labels, or numbers. For several labels a "
            "sample give y.astype(bool) (or task.name = 'multilabel'); for numbers "
            f"{_AS_NUMBERS}"
        )
    if form == "floats":
        return Targets.NUMBERS
    if wanted is Targets.MASK or not parts[0].shape:
        return _of_masks(parts, form)
    raise DataError(
        f"{where}: whole numbers of shape {shape}: {shape[1]} targets a sample. For numbers give "
        "floats (y.astype(float), or task.name = 'regression'); for classes give one whole number "
        "a sample; "
        "masks have the height and width of their pictures"
    )


def _of_masks(parts: Sequence[RawTargets], form: str) -> Targets:
    if form in ("mask", "ints"):
        return Targets.MASK
    raise DataError(
        f"{_places(parts)}: {_WORDS[form]} of shape {parts[0].y.shape}. For a class a place give "
        f"y.astype('uint8'); {_AS_NUMBERS}"
    )


def _of_mixed(forms: Mapping[str, Sequence[RawTargets]], wanted: Targets | None) -> Targets:
    """Accept types that can only mean one thing; raise for all others."""
    kinds = {*forms}
    if kinds == {"int", "float"} and (
        wanted is Targets.CLASS or (wanted is None and _only(forms["float"], {0, 1}))
    ):
        return Targets.CLASS
    rows = kinds <= {"ints", "floats", "bools"}
    if wanted is Targets.LABELS and rows and all(_only(own, {0, 1}) for own in forms.values()):
        return Targets.LABELS
    found = "; ".join(
        f"{_WORDS[form]} ({_few(_values(own))}) at {_names_of(own)}" for form, own in forms.items()
    )
    raise DataError(f"data: targets of different types: {found}. {_ways_out(kinds)}")


def _ways_out(kinds: set[str]) -> str:
    """Return the conversions that give targets of some types one type."""
    if kinds == {"int", "float"}:
        return f"Give whole numbers everywhere for classes (y.astype(int)); {_AS_NUMBERS}"
    if kinds == {"int", "bool"}:
        return "Give all clients one of the two: y.astype(int), or y.astype(bool)"
    if "text" in kinds:
        return "Give the names of the classes at every client, or whole numbers at every client"
    return (
        "Give all clients one type: whole numbers or names (n,) for classes, True and False "
        "(n, labels) for labels, floats (n, numbers) for numbers, whole numbers (n, ...) for masks"
    )


def _names(kind: Targets, parts: Sequence[RawTargets], partial: bool) -> tuple[str, ...]:
    """Return names for the classes, labels or numbers of targets that bring none."""
    first = parts[0].y
    if kind in (Targets.NUMBERS, Targets.LABELS):
        return tuple(map(str, range(first[0].size)))
    one_hot = kind is Targets.CLASS and first.ndim == 2 and not parts[0].is_column
    if first.dtype.kind in "USb" and kind is Targets.CLASS and not one_hot:
        return tuple(sorted({str(v) for part in parts for v in np.unique(part.y).tolist()}))
    if one_hot:
        return tuple(map(str, range(first.shape[1])))
    values = _values(parts)
    if not partial and (kind is Targets.CLASS or len(values) > 1):
        _check_numbering(values, parts, "labels" if kind is Targets.CLASS else "mask values")
    return tuple(map(str, range(max(2, 1 + int(max(values, default=0))))))


def _check_numbering(values: Sequence[int], parts: Sequence[RawTargets], what: str) -> None:
    """Refuse whole numbers that leave out some of 0 to the largest.

    One client may lack a class: the values are those of all clients.
    """
    if not values or min(values) < 0 or any(value % 1 for value in values):
        return  # the conversion names the sample
    lacking = int(max(values)) + 1 - len(values)
    if not lacking:
        return
    own = {part.where: _values([part]) for part in parts}
    shown = _few(values)
    if len({tuple(each) for each in own.values()}) > 1 and what == "mask values":
        each = [f"{_few(v)} at {w.removeprefix('data, ')}" for w, v in own.items()]
        shown += f" ({'; '.join(each[:4])}{'; ...' if len(each) > 4 else ''})"
    numbers = "" if what == "mask values" else f"; {_AS_NUMBERS}"
    if min(values) > 0:
        raise DataError(
            f"data: the {what} of all clients are {shown}, and 0 does not occur. If "
            f"{int(min(values))} is the first class, give y - {int(min(values))}; if 0 is a class "
            f"that no client has, {_NAME_CLASSES}{numbers}"
        )
    if int(max(values)) == _FULL_SCALE and what == "mask values":
        least = 0 if set(values) <= {0, 1, _FULL_SCALE} else _FULL_SCALE // 2
        raise DataError(
            f"data: the mask values of all clients are {shown}. If each mask has one foreground, "
            f"give (y > {least}).astype('uint8') at every client; if every value is a class, "
            f"{_NAME_CLASSES}"
        )
    few = f"[{', '.join(str(int(v)) for v in values)}]" if len(values) <= _SHOWN else "values"
    way_out = f"renumber them alike at every client (numpy.searchsorted({few}, y))"
    raise DataError(
        f"data: the {what} of all clients are {shown}: {lacking} of the numbers from 0 to "
        f"{int(max(values))} do not occur. If these are the classes, {way_out}; if others "
        f"exist, {_NAME_CLASSES}{numbers}"
    )


def _only(parts: Sequence[RawTargets], legal: set[int]) -> bool:
    return all(bool(np.isin(part.y, [*legal]).all()) for part in parts)


def _values(parts: Sequence[RawTargets]) -> list[Any]:
    """Return the distinct values of some targets, sorted."""
    found = [
        np.flatnonzero(np.bincount(part.y.reshape(-1)))
        if part.y.dtype == np.uint8
        else np.unique(part.y)
        for part in parts
    ]
    return list(np.unique(np.concatenate(found)).tolist())


def _few(values: Sequence[Any]) -> str:
    """Return the first of some values, and the last one where some are left out."""
    shown = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    if len(shown) <= _SHOWN:
        return ", ".join(shown)
    return f"{', '.join(shown[: _SHOWN - 2])}, ..., {shown[-1]} ({len(shown)} values)"


def _places(parts: Sequence[RawTargets]) -> str:
    return parts[0].where if len(parts) == 1 else "data"


def _names_of(parts: Sequence[RawTargets]) -> str:
    return listed([part.where.removeprefix("data, ") for part in parts], 3)
