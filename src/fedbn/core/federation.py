"""The data side of a run: clients, each with its own samples, and what they have in common.

What must hold of a federation's data before anything trains on it.

What a check of data finds.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedbn.errors import DataError

Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Split:
    """Samples and labels, in memory.

    Attributes:
        x: The samples, first dimension first. `uint8` images take a quarter of the memory and
            become floats in [−1, 1] batch by batch; floats are taken as they are.
        y: The labels, whole numbers from 0.
        augment: A change of each training batch, drawn from the generator it is given.
        groups: A whole number a sample; samples that share it belong together (the windows of one
            subject), so that groups can be scored and are never divided. None: each on its own.
    """

    x: Tensor
    y: Tensor
    augment: Augment | None = None
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Split({len(self)} samples of {tuple(self.x.shape[1:])}, {self.x.dtype})"

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Take some samples, ready for a model.

        Examples:
            >>> pixels = torch.tensor([[0, 255]], dtype=torch.uint8)
            >>> Split(pixels, torch.tensor([1])).batch(slice(1))
            (tensor([[-1.,  1.]]), tensor([1]))
        """
        x = self.x[index] if isinstance(index, slice) else self.x.index_select(0, index)
        y = self.y[index] if isinstance(index, slice) else self.y.index_select(0, index)
        return (x.float().div_(127.5).sub_(1) if x.dtype == torch.uint8 else x), y

    def take(self, index: Tensor) -> Split:
        """Keep some samples."""
        groups = None if self.groups is None else self.groups[index]
        return replace(self, x=self.x[index], y=self.y[index], groups=groups)

    def to(self, device: torch.device | str) -> Split:
        """Move to a device."""
        groups = None if self.groups is None else self.groups.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), groups=groups)


@dataclass(frozen=True)
class Client:
    """One site. A client is not a domain: several clients may hold data of one.

    Attributes:
        name: Unique in the federation.
        domain: Where its features come from: a scanner, a camera, a style.
        train: What it trains on.
        tests: What it is scored on, by domain; its own domain only, but for pooled data.
        valid: Held out of training for choosing a round or a mu; None where nothing is chosen.
    """

    name: str
    domain: str
    train: Split
    tests: Mapping[str, Split]
    valid: Split | None = None

    @property
    def splits(self) -> tuple[Split, ...]:
        """All its samples: training, tests, validation."""
        return (self.train, *self.tests.values(), *([self.valid] if self.valid else []))

    def change(self, split: Callable[[Split], Split]) -> Client:
        """Change every split."""
        return replace(
            self,
            train=split(self.train),
            tests={domain: split(test) for domain, test in self.tests.items()},
            valid=split(self.valid) if self.valid else None,
        )


@dataclass(frozen=True)
class Federation:
    """All clients of a run.

    Attributes:
        name: What the data is called.
        clients: In the fixed order in which everything is summed and shown.
        classes: The names of the classes; a label is an index into them.
        remarks: What every picture and table must say of the data ("rendered, not the original").
        preparation: How a further sample is made ready, in plain values for the reader of such
            files (the columns of a table); empty where its shape says enough.
        stand_ins: Domains whose data stands in for an original: no number of others compares.
    """

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = field(default=())
    preparation: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = field(default=())

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.clients[0].train.x.shape[1:])

    def to(self, device: torch.device | str) -> Federation:
        """Move all data to a device."""
        return replace(self, clients=tuple(c.change(lambda s: s.to(device)) for c in self.clients))

    def pooled(self) -> Federation:
        """Bring all training data to one client `all`, scored on every domain (Centralized).

        Examples:
            >>> part = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
            >>> both = [Client(n, n, part, {n: part}) for n in ("a", "b")]
            >>> one = Federation("f", tuple(both), ("x", "y")).pooled().clients[0]
            >>> one.name, len(one.train), list(one.tests)
            ('all', 4, ['a', 'b'])
        """
        tests: dict[str, list[Split]] = {}
        for client in self.clients:
            for domain, test in client.tests.items():
                # Clients of one domain hold the same test set: score it once.
                if not any(test.x is known.x for known in tests.setdefault(domain, [])):
                    tests[domain].append(test)
        valid = [c.valid for c in self.clients if c.valid is not None]
        whole = Client(
            name="all",
            domain="all",
            train=_concatenated([c.train for c in self.clients]),
            tests={domain: _concatenated(parts) for domain, parts in tests.items()},
            valid=_concatenated(valid) if valid else None,
        )
        return replace(self, clients=(whole,))

    def fingerprint(self) -> dict[str, str]:
        """Hash each client's data, so that a resumed run can tell whether it changed."""
        return {client.name: _hash(client) for client in self.clients}


def _concatenated(parts: list[Split]) -> Split:
    if len(parts) == 1:
        return parts[0]
    alike = len({part.x.dtype for part in parts}) == 1
    x = torch.cat([part.x if alike else part.batch(slice(None))[0] for part in parts])
    y = torch.cat([part.y for part in parts])
    return Split(x, y, parts[0].augment, _concatenated_groups([part.groups for part in parts]))


def _concatenated_groups(parts: list[Tensor | None]) -> Tensor | None:
    """Join groups so that those of different parts stay apart; None unless all parts have them."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    renumbered, begin = [], 0
    for part in known:
        renumbered.append(part - part.min() + begin)
        begin = int(renumbered[-1].max()) + 1
    return torch.cat(renumbered)


def _hash(client: Client) -> str:
    digest = hashlib.sha256()
    for part in client.splits:
        for tensor in (part.x, part.y, *([] if part.groups is None else [part.groups])):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


_MAX_NAME = 100


def check_federation(federation: Federation) -> list[str]:
    """Refuse data that cannot be trained on; return warnings about what is only odd.

    Raises:
        DataError: Naming the client, the split and the first offending sample.
    """
    where = f"data {federation.name}"
    if not federation.clients:
        raise DataError(f"{where}: no clients")
    if len(federation.classes) < 2:
        raise DataError(f"{where}: {len(federation.classes)} class(es); at least 2 are needed")
    _check_names(federation, where)
    _check_classes(federation.classes, where)
    warnings = similar_classes(federation.classes)
    for client in federation.clients:
        for name, split in _splits(client):
            _check_split(split, f"{where}, client {client.name}, {name}", federation)
        if len(client.train) < 2:
            raise DataError(
                f"{where}, client {client.name}: 1 training sample; at least 2 are needed"
            )
        warnings += _warnings(client, federation.classes)
    return warnings


def check_name(name: str, where: str) -> None:
    """Refuse a client's name that cannot be a file's name or a line of a log."""
    bad = (
        not name.strip() or name in (".", "..", "all") or any(sign in name for sign in '/\\:*?"<>|')
    )
    if bad or not name.isprintable() or len(name.encode()) > _MAX_NAME:
        raise DataError(
            f"{where}: client name {name!r}: legal are 1 to {_MAX_NAME} printable bytes "
            'without / \\ : * ? " < > |, other than "all" (the name of pooled data)'
        )


def _check_names(federation: Federation, where: str) -> None:
    seen: set[str] = set()
    for client in federation.clients:
        check_name(client.name, where)
        if client.name in seen:
            raise DataError(f"{where}: two clients are called {client.name!r}")
        seen.add(client.name)


def _check_classes(classes: tuple[str, ...], where: str) -> None:
    twice = [name for number, name in enumerate(classes) if name in classes[:number]]
    if twice:
        raise DataError(f"{where}: two classes are called {twice[0]!r}; names must differ")


def similar_classes(classes: Sequence[str]) -> list[str]:
    """Point out names that a person may have meant to be one class.

    Examples:
        >>> similar_classes(["cat", "Cat", "dog"])
        ["classes 'cat' and 'Cat' differ in case or spelling of signs only: taken as two classes"]
    """
    first: dict[str, str] = {}
    pairs = [
        (first.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), name), name)
        for name in classes
    ]
    return [
        f"classes {known!r} and {name!r} differ in case or spelling of signs only: "
        "taken as two classes"
        for known, name in pairs
        if known != name
    ]


def _splits(client: Client) -> Iterator[tuple[str, Split]]:
    yield "train", client.train
    for domain, test in client.tests.items():
        yield ("test" if domain == client.domain else f"test {domain}"), test
    if client.valid is not None:
        yield "valid", client.valid


def _check_split(split: Split, where: str, federation: Federation) -> None:
    if len(split.x) != len(split.y):
        raise DataError(f"{where}: {len(split.x)} samples but {len(split.y)} labels")
    if not len(split):
        raise DataError(f"{where}: no samples")
    if tuple(split.x.shape[1:]) != federation.input_shape:
        raise DataError(
            f"{where}: samples of shape {tuple(split.x.shape[1:])}, but the first client's have "
            f"{federation.input_shape}"
        )
    _check_values(split, where)
    _check_labels(split, where, len(federation.classes))


def _check_values(split: Split, where: str) -> None:
    x = split.x
    if x.dtype not in (torch.uint8, torch.float32, torch.float64):
        raise DataError(f"{where}: samples of {x.dtype}; legal are uint8, float32 and float64")
    if x.dtype == torch.uint8 or bool(torch.isfinite(x.sum())):
        return
    rows = (~torch.isfinite(x.reshape(len(x), -1))).any(dim=1).nonzero().flatten()
    if len(rows):
        first = int(rows[0])
        what = "NaN" if bool(x[first].isnan().any()) else "infinity"
        raise DataError(f"{where}: {what} in sample {first} ({len(rows)} such samples)")


def _check_labels(split: Split, where: str, classes: int) -> None:
    if split.y.dtype != torch.int64 or split.y.dim() != 1:
        raise DataError(
            f"{where}: labels are {split.y.dtype} of shape {tuple(split.y.shape)}; "
            "legal are whole numbers (int64), one a sample"
        )
    outside = ((split.y < 0) | (split.y >= classes)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise DataError(
            f"{where}: label {int(split.y[first])} of sample {first}: legal are 0 to {classes - 1}"
        )


def _warnings(client: Client, classes: tuple[str, ...]) -> Iterator[str]:
    counts = torch.bincount(client.train.y.cpu(), minlength=len(classes))
    missing = [classes[i] for i in (counts == 0).nonzero().flatten().tolist()]
    if missing:
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        yield f"client {client.name} has no training sample of class {shown}"


Severity = Literal["error", "warning", "note"]
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One thing found in data.

    Attributes:
        severity: `error` would stop a run, `warning` may spoil its result, `note` is good to know.
        site: Whose data; empty where it concerns several.
        file: Which file, or which split of data in memory; empty where it concerns several.
        text: What is the matter, on one line.
    """

    severity: Severity
    site: str
    file: str
    text: str


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Put errors first; otherwise the order stays."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])
