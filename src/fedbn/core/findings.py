"""What must hold of data before anything trains on it.

A rule about data is written once, in `findings_in`: a run stops at the first error, `fedbn data
check` lists them all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedbn.core.consistency import inconsistencies
from fedbn.core.federation import AnySplit, Client, Federation, Split, Targets, targets_of
from fedbn.errors import DataError
from fedbn.text import counted

Severity = Literal["error", "warning", "note"]
_MAX_NAME = 100
_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One thing found in data."""

    # `error` would stop a run, `warning` may spoil its result, `note` is good to know
    severity: Severity
    site: str  # whose data; empty where it concerns several
    file: str  # which file, or which split of data in memory; empty where it concerns several
    text: str  # what is the matter, on one line


class Warned(str):
    """A remark on data that is more than good to know."""

    severity: Severity = "warning"


class Detail(str):
    """A message that asks nobody to do anything: it is logged and not shown."""


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Put errors first; otherwise the order stays."""
    return sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity))


def check_federation(federation: Federation) -> list[str]:
    """Refuse data by its first error, if it has one; return warnings about what is only odd."""
    warnings = []
    for found in findings_in(federation):
        if found.severity == "error":
            client = f"client {found.site}" if found.site else ""
            where = ", ".join(filter(None, (f"data {federation.name}", client, found.file)))
            raise DataError(f"{where}: {found.text}")
        warnings.append(f"client {found.site} has {found.text}" if found.site else found.text)
    return warnings


def check_labels(federation: Federation) -> None:
    """Refuse labels that are no class, before samples are counted or dealt by their class."""
    for client in federation.clients:
        for name, split in client.named_splits():
            for text in _labels_outside(split, len(federation.classes)):
                raise DataError(f"data {federation.name}, client {client.name}, {name}: {text}")


def findings_in(federation: Federation) -> Iterator[Finding]:
    """Report all that must hold of data before anything trains on it, and classes that lack."""
    classes = federation.classes
    if not federation.clients:
        yield Finding("error", "", "", "no clients")
        return
    if len(classes) < (2 if federation.targets in (None, Targets.CLASS, Targets.MASK) else 1):
        yield Finding("error", "", "", f"{len(classes)} class(es); at least 2 are needed")
    for text in _names(federation):
        yield Finding("error", "", "", text)
    for text in similar_classes(classes):
        yield Finding("warning", "", "", text)
    for client in federation.clients:
        for name, split in client.named_splits():
            for text in _faults(split, federation):
                yield Finding("error", client.name, name, text)
        if len(client.train) == 1:
            yield Finding("error", client.name, "", "1 training sample; at least 2 are needed")
        if missing := [name for name, count in class_counts(client, classes).items() if not count]:
            shown = ", ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
            yield Finding("warning", client.name, "train", f"no training sample of class {shown}")
    for text in _useless(federation):
        yield Finding("error", "", "", text)
    for found in inconsistencies(federation):
        yield Finding(found.severity, "", "", found.text)


def _useless(federation: Federation) -> Iterator[str]:
    """Name labels that nobody has, and numbers that never change: there is nothing to learn.

    One client alone cannot tell, and stand-ins have no targets.
    """
    known = [client.train.y for client in federation.clients if client.train.y is not None]
    columns = (Targets.LABELS, Targets.NUMBERS)
    whole = [y for y in known if targets_of(y) in columns and len(y) and y.stride(0)]
    if len(whole) < 2 or len({y.shape[1] for y in whole}) > 1:
        return
    low, high = (
        torch.stack([end(y.double(), dim=0) for y in whole]) for end in (torch.amin, torch.amax)
    )
    for name, least, most in zip(federation.classes, low.amin(0), high.amax(0), strict=False):
        if least == most:
            said = f"it is {float(least) + 0:g} in every training sample"
            if federation.targets is Targets.LABELS:
                said = f"{'every' if least else 'no'} training sample has it"
            yield f"target {name!r}: {said}, so there is nothing to learn; leave it out"


def check_name(name: str, where: str) -> None:
    """Refuse a client's name that cannot be a file's name or a line of a log."""
    for text in _name(name):
        raise DataError(f"{where}: {text}")


def _name(name: str) -> Iterator[str]:
    bad = not name.strip() or name in (".", "..", "all", "mean") or set(name) & set('/\\:*?"<>|')
    if bad or not name.isprintable() or len(name.encode()) > _MAX_NAME:
        yield (
            f"client name {name!r}: legal are 1 to {_MAX_NAME} printable bytes "
            'without / \\ : * ? " < > |, other than "all" and "mean", which tables use'
        )


def _names(federation: Federation) -> Iterator[str]:
    clients = [client.name for client in federation.clients]
    for number, name in enumerate(clients):
        yield from _name(name)
        if name in clients[:number]:
            yield f"two clients are called {name!r}"
    for number, name in enumerate(federation.classes):
        if name in federation.classes[:number]:
            yield f"two classes are called {name!r}; names must differ"


def similar_classes(classes: Sequence[str]) -> list[str]:
    """Point out names that a person may have meant to be one class.

    Examples:
        >>> similar_classes(["cat", "Cat", "dog"])
        ["classes 'cat' and 'Cat' differ in case or the way of writing only: taken as two classes"]
    """
    said = "differ in case or the way of writing only: taken as two classes"
    return [f"classes {first!r} and {name!r} {said}" for first, name in spelled_alike(classes)]


def spelled_alike(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ in case or the way of writing only.

    Examples:
        >>> spelled_alike(["m", "f", "M", "F "])
        [('m', 'M'), ('f', 'F ')]
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        text = unicodedata.normalize("NFKC", name).casefold().strip()
        alike.setdefault(re.sub(r"\A\+?0*(\d+)(\.0*)?\Z", r"\1", text), []).append(name)
    return [(first, name) for first, *others in alike.values() for name in others if name != first]


def _faults(split: AnySplit, federation: Federation) -> Iterator[str]:
    """Report what is wrong with a split; of samples that are read later, what is known now."""
    y, shape = split.target if split.y is None else split.y, federation.input_shape
    if isinstance(split, Split) and len(split.x) != len(split.y):
        yield f"{len(split.x)} samples but {len(split.y)} labels"
        return
    if not len(split):
        yield "no samples"
        return
    if split.shape != shape:
        yield f"samples of shape {split.shape}, but the first client's have {shape}"
    if split.dtype not in (torch.uint8, torch.float32, torch.float64):
        yield f"samples of {split.dtype}; legal are uint8, float32 and float64"
    called = split.sample_name if isinstance(split, Split) else "sample {}".format
    if isinstance(split, Split):
        yield from not_finite(split.x, called)
    kind = targets_of(y)
    if kind is None or kind is not federation.targets:
        yield (
            f"labels are {y.dtype} of shape {tuple(y.shape)}; legal are whole numbers (int64), one "
            "a sample; bool (n, labels); floats (n, numbers); masks (n, ...) of uint8 or int64; "
            "and one kind at all clients"
        )
        return
    if kind is Targets.CLASS:
        yield from _labels_outside(split, len(federation.classes))
    elif kind is Targets.MASK and y.dim() == 2 and len(shape) == 1:
        text = f"targets of shape {tuple(y.shape)}"
        if y.shape[1] == 1:
            yield (
                f"{text}, one column of whole numbers. Give y[:, 0] for classes; for regression "
                "with one number give floats"
            )
        else:
            yield (
                f"{text}, whole numbers. Give one whole number a sample for classes, True and "
                "False for several labels, floats for several numbers"
            )
    elif kind is Targets.MASK:
        if tuple(y.shape[1:]) != shape[1:]:
            yield f"masks of {tuple(y.shape[1:])}, but its samples are {shape[1:]} in size"
        yield from _outside(y.flatten(1).long(), len(federation.classes), "mask value", called)
    elif y.shape[1] != len(federation.classes):
        yield f"{y.shape[1]} targets a sample, but {len(federation.classes)} names of them"
    for text in not_finite(y, called):
        yield f"targets: {text}"


def _labels_outside(split: AnySplit, classes: int) -> Iterator[str]:
    """Report labels of a split that are no class, as far as its labels are known."""
    y = split.target if split.y is None else split.y
    called = split.sample_name if isinstance(split, Split) else "sample {}".format
    if targets_of(y) is Targets.CLASS and len(y):
        yield from _outside(y, classes, "label", called)


def _outside(y: Tensor, classes: int, what: str, called: Callable[[int], str]) -> Iterator[str]:
    """Report labels that are no class."""
    low, high = y.reshape(len(y), -1).amin(dim=1), y.reshape(len(y), -1).amax(dim=1)
    outside = ((low < 0) | (high >= classes)).nonzero().flatten().tolist()
    for first in outside[:1]:
        value = int(low[first]) if low[first] < 0 else int(high[first])
        yield f"{what} {value} of {called(first)}{_more(len(outside))}; expected 0 to {classes - 1}"


def not_finite(x: Tensor, called: Callable[[int], str] = "sample {}".format) -> Iterator[str]:
    """Report samples with NaN or infinity in them; `called` names a sample by its index."""
    if not x.is_floating_point() or bool(torch.isfinite(x.sum())):
        return
    for what, bad in (("NaN", x.isnan()), ("infinity", x.isinf())):
        rows = bad.reshape(len(x), -1).any(dim=1).nonzero().flatten()
        if len(rows):
            yield f"{what} in {called(int(rows[0]))}{_more(len(rows))}"


def _more(count: int) -> str:
    """Say how many samples there are beyond the one that is named."""
    return f" and {counted(count - 1, 'more sample')}" if count > 1 else ""


def class_counts(client: Client, classes: Sequence[str]) -> dict[str, int]:
    """Count a client's training samples of each class, or label, or the places of its masks.

    Labels of no class are left out; of numbers, and of what only reading would tell, nothing is
    counted.
    """
    y, kind = client.train.y, targets_of(client.train.target)
    if y is None or kind is Targets.NUMBERS or kind is None:
        return {}
    y = y.cpu()
    if kind is Targets.LABELS:
        return dict(zip(classes, y.sum(dim=0).tolist(), strict=False))
    known = y[(y >= 0) & (y < len(classes))].long()
    return dict(zip(classes, known.bincount(minlength=len(classes)).tolist(), strict=True))
