"""The data side of a run: clients, each with samples of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from fedbn.errors import DataError

Augment = Callable[[Tensor, torch.Generator], Tensor]


class Targets(Enum):
    """The kinds of targets that a task may learn from, and what a message calls them."""

    CLASS = "a class a sample"
    LABELS = "several labels a sample"
    NUMBERS = "numbers"
    MASK = "masks"


def targets_of(y: Tensor) -> Targets | None:
    """Tell the kind of targets by their type and shape; None where they are none.

    Examples:
        >>> targets_of(torch.tensor([0, 1])), targets_of(torch.zeros(2, 1))
        (<Targets.CLASS: 'a class a sample'>, <Targets.NUMBERS: 'numbers'>)
    """
    if y.dtype == torch.bool:
        return Targets.LABELS if y.dim() == 2 else None
    if y.is_floating_point():
        return Targets.NUMBERS if y.dim() == 2 else None
    if y.dim() > 1 and y.dtype in (torch.uint8, torch.int64):
        return Targets.MASK
    return Targets.CLASS if y.dim() == 1 and y.dtype == torch.int64 else None


@dataclass(frozen=True)
class Origin:
    """Where samples come from, so that a message names them as the user counts them.

    Attributes:
        rows: The number of each sample in what was given.
        where: The file or table; empty for arrays.

    Examples:
        >>> Origin(torch.tensor([4, 9]), "a.csv").name(1), Origin(torch.tensor([4])).name(0)
        ('row 9 of a.csv', 'sample 4')
    """

    rows: Tensor
    where: str = ""

    def name(self, index: int) -> str:
        """Return what a message calls a sample."""
        row = int(self.rows[index])
        return f"row {row} of {self.where}" if self.where else f"sample {row}"


@dataclass(frozen=True)
class Split:
    """Samples and targets, in memory.

    Attributes:
        x: The samples, first dimension first. `uint8` images take a quarter of the memory and
            become floats in [−1, 1] batch by batch; floats are taken as they are.
        y: The targets: classes (n,), whole numbers from 0; labels (n, labels), true or false;
            numbers (n, targets), floats; or masks (n, ...), a class a place, `uint8` or `int64`.
        augment: A change of each training batch, drawn from the generator it is given.
        groups: A whole number a sample; samples that share it belong together (the windows of one
            subject), so that groups can be scored and are never divided. None: each on its own.
        device: Where batches go; the samples stay where they are.
        origin: Where each sample comes from, for messages and records. None: all of the data.
        files: What each sample was read from, where that was a file and no table.
    """

    x: Tensor
    y: Tensor
    augment: Augment | None = None
    groups: Tensor | None = None
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    origin: Origin | None = None
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Split({len(self)} samples of {self.shape}, {self.x.dtype})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The type of samples before they are scaled."""
        return self.x.dtype

    @property
    def target(self) -> Tensor:
        """One target, (1, ...), or none, (0, ...): its type and shape are those of all."""
        return self.y[:1]

    @property
    def source(self) -> object:
        """The same object for splits of the same samples."""
        return self.x

    def raw(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Take some samples as they are."""
        if isinstance(index, slice):
            return self.x[index], self.y[index]
        index = index.to(self.y.device)
        return self.x.index_select(0, index), self.y.index_select(0, index)

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Take some samples, ready for a model.

        Examples:
            >>> pixels = torch.tensor([[0, 255]], dtype=torch.uint8)
            >>> Split(pixels, torch.tensor([1])).batch(slice(1))
            (tensor([[-1.,  1.]]), tensor([1]))
        """
        x, y = self.raw(index)
        if isinstance(index, slice) and x.dtype != torch.uint8:
            x = x.clone()  # a model may write into its input, and this is the data itself
        return scaled(x.to(self.device)), widened(y.to(self.device))

    def stream(
        self, order: Iterable[Tensor | slice], seed: int = 0, per_pass: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Take batches in an order."""
        return map(self.batch, order)

    def take(self, index: Tensor) -> Split:
        """Keep some samples."""
        groups = None if self.groups is None else self.groups[index]
        places = torch.arange(len(self))[index]
        origin = Origin(places)
        if self.origin is not None:
            origin = replace(self.origin, rows=self.origin.rows[places])
        files = tuple(self.files[place] for place in places.tolist()) if self.files else ()
        x, y = self.x[index], self.y[index]
        return replace(self, x=x, y=y, groups=groups, origin=origin, files=files)

    def sample_name(self, index: int) -> str:
        """Return what a message calls a sample: by its row in the file, where that is known."""
        return f"sample {index}" if self.origin is None else self.origin.name(index)

    def to(self, device: torch.device | str) -> Split:
        """Let batches go to a device."""
        return replace(self, device=torch.device(device))

    def plain(self) -> Split:
        """Without augmentation."""
        return replace(self, augment=None)

    def joined(self, others: Sequence[Split], groups: Tensor | None) -> Split:
        """Add the samples of others behind these."""
        parts = [self, *others]
        alike = len({part.x.dtype for part in parts}) == 1
        x = torch.cat([part.x if alike else part.batch(slice(None))[0] for part in parts])
        y = torch.cat([part.y for part in parts])
        return replace(self, x=x, y=y, groups=groups, origin=None, files=())

    def content(self) -> Iterator[bytes | memoryview]:
        """All that tells whether the data changed."""
        for tensor in (self.x, self.y, *([] if self.groups is None else [self.groups])):
            yield f"{tensor.dtype}{tuple(tensor.shape)}".encode()
            yield tensor.cpu().contiguous().numpy().data

    def extent(self) -> tuple[float, float]:
        """The least and the largest value."""
        return float(self.x.min()), float(self.x.max())


def scaled(x: Tensor) -> Tensor:
    """Bring `uint8` to floats in [−1, 1]; floats are taken as they are."""
    return x.float().div_(127.5).sub_(1) if x.dtype == torch.uint8 else x


def widened(y: Tensor) -> Tensor:
    """Bring masks of `uint8` to the whole numbers that torch's losses take."""
    return y.long() if y.dtype == torch.uint8 else y


class AnySplit(Protocol):
    """What everybody asks of a client's samples: in memory (`Split`), or read when needed."""

    @property
    def y(self) -> Tensor | None:
        """All targets; None where only reading all samples would tell."""

    @property
    def target(self) -> Tensor:
        """One target, (1, ...), or none, (0, ...): its type and shape are those of all."""

    @property
    def augment(self) -> Augment | None:
        """A change of each training batch."""

    @property
    def groups(self) -> Tensor | None:
        """A whole number a sample; samples that share it belong together."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of samples before they are scaled."""

    @property
    def device(self) -> torch.device:
        """Where batches are."""

    @property
    def source(self) -> object:
        """The same object for splits of the same samples."""

    def __len__(self) -> int: ...

    def raw(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Take some samples as they are."""

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Take some samples, ready for a model."""

    def stream(
        self, order: Iterable[Tensor | slice], seed: int = 0, per_pass: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Take batches of indices in an order, loading ahead where they are read.

        The seed decides what transforms draw; `per_pass` batches are a pass, 0 where there is one.
        """

    def take(self, index: Tensor) -> Self:
        """Keep some samples."""

    def to(self, device: torch.device | str) -> Self:
        """Move to a device."""

    def plain(self) -> Self:
        """Without augmentation."""

    def joined(self, others: Sequence[Any], groups: Tensor | None) -> Self:
        """Add the samples of others behind these."""

    def content(self) -> Iterator[bytes | memoryview]:
        """All that tells whether the data changed, or a fixed sample of it."""

    def extent(self) -> tuple[float, float]:
        """The least and the largest value, or those of a fixed sample."""


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
    train: AnySplit
    tests: Mapping[str, AnySplit]
    valid: AnySplit | None = None

    @property
    def splits(self) -> tuple[AnySplit, ...]:
        """All its samples: training, tests, validation."""
        return tuple(split for _, split in self.named_splits())

    def named_splits(self) -> Iterator[tuple[str, AnySplit]]:
        """Its splits, each with what a message calls it."""
        yield "train", self.train
        for domain, test in self.tests.items():
            yield ("test" if domain == self.domain else f"test {domain}"), test
        if self.valid is not None:
            yield "valid", self.valid

    def change(self, split: Callable[[AnySplit], AnySplit]) -> Client:
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
        classes: The names of the classes; a label is an index into them. Where samples have
            several labels or numbers, the names of these.
        remarks: What every picture and table must say of the data ("rendered, not the original").
        preparation: How a further sample is made ready, in plain values for the reader of such
            files (the columns of a table); empty where its shape says enough.
        stand_ins: Domains whose data stands in for an original: no number of others compares.
        settled: Options that were left open and depend on this machine, as they were chosen: a
            run's configuration keeps them.
    """

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = field(default=())
    preparation: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = field(default=())
    settled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.clients[0].train.shape

    @property
    def targets(self) -> Targets | None:
        """The kind of its targets."""
        return targets_of(self.clients[0].train.target)

    @property
    def target(self) -> Target:
        """The type and the shape of one target."""
        y = self.clients[0].train.target
        return str(y.dtype).removeprefix("torch."), tuple(y.shape[1:])

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
        valid = [c.valid for c in self.clients if c.valid is not None]
        whole = Client(
            name="all",
            domain="all",
            train=concatenated([c.train for c in self.clients]),
            tests=self.domain_tests(),
            valid=concatenated(valid) if valid else None,
        )
        return replace(self, clients=(whole,))

    def domain_tests(self) -> dict[str, AnySplit]:
        """The test data of each domain, once: clients of one domain may hold the same."""
        tests: dict[str, list[AnySplit]] = {}
        for client in self.clients:
            for domain, test in client.tests.items():
                if not any(test.source is one.source for one in tests.setdefault(domain, [])):
                    tests[domain].append(test)
        return {domain: concatenated(parts) for domain, parts in tests.items()}

    def fingerprint(self) -> dict[str, str]:
        """Hash each client's data, so that a resumed run can tell whether it changed."""
        found = {}
        for client in self.clients:
            digest = hashlib.sha256()
            for piece in (piece for part in client.splits for piece in part.content()):
                digest.update(piece)
            found[client.name] = digest.hexdigest()
        return found


Target = tuple[str, tuple[int, ...]]
"""The type and the shape of one target, as `("uint8", (64, 64))`."""
A_CLASS: Target = ("int64", ())


def blank_client(
    name: str,
    domain: str,
    input_shape: Sequence[int],
    examples: int = 2,
    dtype: torch.dtype = torch.float32,
    target: Target = A_CLASS,
) -> Client:
    """Make a client for whom no data is here; it takes no memory: one zero, seen many times."""
    x = torch.zeros((), dtype=dtype).expand(examples, *input_shape)
    blank = Split(x, blank_targets(target, examples))
    return Client(name, domain, blank, {domain: blank})


def blank_targets(target: Target, examples: int) -> Tensor:
    """Make targets that say nothing."""
    return torch.zeros((), dtype=getattr(torch, target[0])).expand(examples, *target[1])


def concatenated(parts: Sequence[AnySplit]) -> AnySplit:
    """Put samples behind each other; groups stay apart, and there are none unless all have some."""
    if len(parts) == 1:
        return parts[0]
    if len({id(part.augment) for part in parts}) > 1:
        raise DataError("clients augment their pictures differently: they cannot be pooled")
    known = [part.groups for part in parts if part.groups is not None]
    renumbered, begin = [], 0
    for groups in known:
        renumbered.append(groups - groups.min() + begin)
        begin = int(renumbered[-1].max()) + 1
    return parts[0].joined(parts[1:], torch.cat(renumbered) if len(known) == len(parts) else None)


_READ = 256


def in_floats(split: AnySplit) -> AnySplit:
    """Scale what is in memory now, not batch by batch."""
    return replace(split, x=scaled(split.x)) if isinstance(split, Split) else split


def all_targets(split: AnySplit, read: bool = False) -> Tensor:
    """The targets of all samples; read, where they are not known or where that is asked for."""
    if split.y is not None and not read:
        return split.y
    parts = [slice(begin, begin + _READ) for begin in range(0, len(split), _READ)]
    return torch.cat([y for _, y in split.stream(parts)])


def merged_slices(start: int, stop: int, size: int, least: int) -> list[slice]:
    """Cut a range into pieces of a size; a last piece below `least` joins the one before it.

    Examples:
        >>> merged_slices(0, 10, 4, least=4)
        [slice(0, 4, None), slice(4, 10, None)]
        >>> merged_slices(0, 3, 4, least=4)
        [slice(0, 3, None)]
    """
    begins = list(range(start, stop, size))
    if len(begins) > 1 and stop - begins[-1] < least:
        begins.pop()
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], stop], strict=True)]
