"""States as a few flat vectors, so that copying, averaging and checking are single passes.

A `StateLayout` says where each entry lies; a `Pack` is the memory itself. The tensors in
`Pack.state` are views: writing to one writes to the vector, and the other way round.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedbn.core.state import Entry, State
from fedbn.errors import ModelError

# Entries begin on 64-byte borders, so a kernel sees the same alignment in every copy of a model
# and gives the same bits.
_ALIGN = 64
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class Group(NamedTuple):
    """The entries that share a vector: one dtype, and trainable or not."""

    dtype: torch.dtype
    trainable: bool

    @property
    def integer(self) -> bool:
        """Whether the entries cannot be averaged."""
        return not self.dtype.is_floating_point

    @property
    def label(self) -> str:
        """A name for files: 'float32.trainable'."""
        kind = "trainable" if self.trainable else "buffer"
        return f"{str(self.dtype).removeprefix('torch.')}.{kind}"


@dataclass(frozen=True)
class StateLayout:
    """Where each entry of a state lies. Aliases have no place of their own."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> StateLayout:
        """Lay out the entries that are not aliases, in the order given."""
        return cls(tuple(entry for entry in entries if entry.alias_of is None))

    @cached_property
    def places(self) -> dict[str, tuple[Group, int]]:
        """Group and offset of each entry."""
        return self._measured[0]

    @cached_property
    def sizes(self) -> dict[Group, int]:
        """Length of each group's vector."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[dict[str, tuple[Group, int]], dict[Group, int]]:
        places: dict[str, tuple[Group, int]] = {}
        sizes: dict[Group, int] = {}
        for entry in self.entries:
            group = Group(entry.dtype, entry.trainable)
            offset = sizes.get(group, 0)
            places[entry.name] = (group, offset)
            step = _ALIGN // entry.dtype.itemsize
            sizes[group] = offset + -(-math.prod(entry.shape) // step) * step
        return places, sizes

    def zeros(self, device: torch.device | str = "cpu") -> Pack:
        """Make a pack of zeros."""
        vectors = _memory(self.sizes)
        return Pack(self, {group: vector.to(device) for group, vector in vectors.items()})

    def pack(self, state: Mapping[str, Tensor], where: str = "the state") -> Pack:
        """Copy a state into a new pack; names, shapes and dtypes must be exactly the layout's.

        Examples:
            >>> from torch import nn
            >>> from fedbn.core.state import entries
            >>> layer = nn.Linear(2, 1)
            >>> StateLayout.of(entries(layer)).pack(layer.state_dict()).state["bias"].shape
            torch.Size([1])
        """
        if fault := self.mismatch(state):
            raise ModelError(f"{where} does not fit the model: {fault}")
        packed = self.zeros()
        for name, view in packed.state.items():
            view.copy_(state[name])
        return packed

    def mismatch(self, state: Mapping[str, Tensor]) -> str | None:
        """Say how a state differs from the layout, or None where it fits exactly."""
        names = {entry.name for entry in self.entries}
        if missing := sorted(names - state.keys()):
            return f"missing {', '.join(missing[:5])}"
        if extra := sorted(state.keys() - names):
            return f"not expected {', '.join(extra[:5])}"
        for entry in self.entries:
            value = state[entry.name]
            if tuple(value.shape) != entry.shape:
                return f"{entry.name} has shape {tuple(value.shape)}, expected {entry.shape}"
            if value.dtype != entry.dtype:
                return f"{entry.name} is {value.dtype}, expected {entry.dtype}"
        return None


@dataclass(frozen=True)
class Pack:
    """A state in memory: one vector a group."""

    layout: StateLayout
    vectors: dict[Group, Tensor]

    @cached_property
    def state(self) -> State:
        """The entries by name, as views of the vectors."""
        found = {}
        for entry in self.layout.entries:
            group, begin = self.layout.places[entry.name]
            end = begin + math.prod(entry.shape)
            found[entry.name] = self.vectors[group][begin:end].view(entry.shape)
        return found

    def copy_(self, other: Pack) -> None:
        """Take over another pack's values."""
        for group, vector in self.vectors.items():
            vector.copy_(other.vectors[group])

    def clone(self) -> Pack:
        """Copy into memory of its own."""
        copied = self.layout.zeros()
        copied.copy_(self)
        return copied

    def unusable(self) -> str | None:
        """Name the first entry with a NaN or an infinity, or None where all is finite."""
        for group, vector in self.vectors.items():
            # A sum is one pass without a temporary; it is finite unless an entry is not
            # (or the sum overflows, which the slow look below tells apart).
            if group.integer or bool(torch.isfinite(vector.sum())):
                continue
            for name, (owner, _) in self.layout.places.items():
                if owner == group and not bool(torch.isfinite(self.state[name]).all()):
                    return name
        return None


def _memory(sizes: Mapping[Group, int]) -> dict[Group, Tensor]:
    """Make zeros for a pack, on pages of its own.

    In the heap a client's small part would be put into the hole that a gradient of many megabytes
    left, and the next gradient would need a new one: tens of megabytes a client.
    """
    found = {group: torch.zeros(0, dtype=group.dtype) for group in sizes}
    room = {g: -(-n * g.dtype.itemsize // _ALIGN) * _ALIGN for g, n in sizes.items() if n}
    pages, offset = mmap.mmap(-1, sum(room.values()), **_PRIVATE) if room else b"", 0
    for group, size in room.items():
        found[group] = torch.frombuffer(pages, dtype=group.dtype, count=sizes[group], offset=offset)
        offset += size
    return found
