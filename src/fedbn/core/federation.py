"""The data side of a run: clients, each with its own samples, and what they have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

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
