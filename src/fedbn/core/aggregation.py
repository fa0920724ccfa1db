"""Aggregation: how the server makes one shared state from the updates of a round.

An aggregator is a value, such as `mean()` or `median()`. For each round it begins an aggregation,
which takes one update at a time, in the order of the federation, and finishes with the new shared
state. A mean streams: it keeps no update. Median and Krum collect all updates first. Integer
entries (counters of BatchNorm) are never averaged: they take the maximum.

Server optimizers (Reddi et al. 2020) take a step along what the clients agreed on. The aggregated
state minus the shared state before the round is a pseudo-gradient. Only trainable entries take
such a step: an adaptive step on a running variance can make it negative. Everything else takes the
aggregated value as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedbn.core.packing import Group, Pack
from fedbn.core.state import State
from fedbn.errors import ConfigError

# The columns handled at once by aggregators that sort: bounds their memory next to the updates.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ClientUpdate:
    """The shared part of a client's update, and its weight in a mean."""

    client: str
    shared: Pack
    weight: float = 1.0


class Aggregation(Protocol):
    """The aggregation of one round."""

    def add(self, update: ClientUpdate) -> None:
        """Take the next update, in the order of the federation."""

    def finish(self) -> Pack:
        """Return the new shared state, after the last update."""


@runtime_checkable
class Aggregator(Protocol):
    """A way to make one shared state from the updates of a round.

    An aggregator may have a number `fewest`. Plans with fewer clients per round raise an error, and
    a round that is left with fewer usable updates ends the run.
    """

    @property
    def label(self) -> str:
        """The aggregator as it is written on the command line."""

    def begin(self, before: Pack, generator: torch.Generator) -> Aggregation:
        """Begin the aggregation of a round.

        Args:
            before: The shared state that the updates started from.
            generator: The only source of random numbers; it depends on the seed and the round.
        """


class CollectingAggregator:
    """Base class of aggregators that need all updates at once; a subclass has `aggregate`."""

    def aggregate(
        self, updates: Sequence[ClientUpdate], before: Pack, generator: torch.Generator
    ) -> Pack:
        """Return the new shared state; there is at least one update."""
        raise TypeError(f"{type(self).__name__} has no method `aggregate`")

    def begin(self, before: Pack, generator: torch.Generator) -> Aggregation:
        """Begin the aggregation of a round."""
        return _Collected(self, before, generator)


class _Collected:
    """An aggregation that keeps all updates until the last one is there."""

    def __init__(self, aggregator: CollectingAggregator, before: Pack, generator: torch.Generator):
        self._aggregator, self._before, self._generator = aggregator, before, generator
        self._updates: list[ClientUpdate] = []

    def add(self, update: ClientUpdate) -> None:
        self._updates.append(update)

    def finish(self) -> Pack:
        if not self._updates:
            return self._before
        return self._aggregator.aggregate(self._updates, self._before, self._generator)


@dataclass(frozen=True)
class Mean:
    r"""The weighted mean \(\sum_k p_k w_k / \sum_k p_k\) of Algorithm 1 and of McMahan et al."""

    label: str = "mean"

    def begin(self, before: Pack, generator: torch.Generator) -> Aggregation:
        """Begin a sum, which is divided once at the end."""
        return _RunningSum(before)


class _RunningSum:
    """The weighted sum of the updates so far, added in the order in which they come."""

    def __init__(self, before: Pack):
        self._before, self._total = before, 0.0
        self._sums: dict[Group, Tensor] = {}

    def add(self, update: ClientUpdate) -> None:
        self._total += update.weight
        for group, vector in update.shared.vectors.items():
            if group not in self._sums:
                # Half precision is summed in float32.
                wide = torch.promote_types(group.dtype, torch.float32)
                first = vector.clone() if group.integer else vector.to(wide, copy=True)
                self._sums[group] = first if group.integer else first.mul_(update.weight)
            elif group.integer:
                torch.maximum(self._sums[group], vector, out=self._sums[group])
            else:
                self._sums[group].add_(vector, alpha=update.weight)

    def finish(self) -> Pack:
        if not self._total:
            return self._before
        for group, vector in self._sums.items():
            if not group.integer:
                vector.div_(self._total)
        mean = {group: vector.to(group.dtype) for group, vector in self._sums.items()}
        return Pack(self._before.layout, mean)


def mean_of(packs: Iterable[Pack]) -> Pack:
    """Return the uniform mean of packs of one layout; integer entries take the maximum."""
    found: _RunningSum | None = None
    for pack in packs:
        found = found or _RunningSum(pack)
        found.add(ClientUpdate("", pack))
    assert found is not None, "the mean of no packs"
    return found.finish()


@dataclass(frozen=True)
class Sorted(CollectingAggregator):
    """Aggregators that look at each coordinate's sorted values: the median and the trimmed mean.

    They ignore weights: a client must not gain influence over a robust aggregator by a number.
    """

    label: str
    fraction: float
    fewest: int = 1

    def aggregate(
        self, updates: Sequence[ClientUpdate], before: Pack, generator: torch.Generator
    ) -> Pack:
        """Sort each coordinate, cut `fraction` of both ends, average the rest."""
        packs = [update.shared for update in updates]
        # 0.29 of 100 updates is 28.999999999999996 in floats, and means 29.
        cut = min(int(self.fraction * len(packs) + 1e-9), (len(packs) - 1) // 2)
        vectors = {group: torch.zeros_like(vector) for group, vector in before.vectors.items()}
        for group, out in vectors.items():
            wide = torch.promote_types(group.dtype, torch.float32)
            for begin in range(0, len(out), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                rows = torch.stack([pack.vectors[group][part] for pack in packs])
                if group.integer:
                    out[part] = rows.amax(dim=0)
                else:
                    kept = rows.sort(dim=0).values[cut : len(rows) - cut]
                    out[part] = kept.mean(dim=0, dtype=wide)
        return Pack(before.layout, vectors)


@dataclass(frozen=True)
class Krum(CollectingAggregator):
    """Krum and multi-Krum (Blanchard et al. 2017): the updates with the closest neighbours."""

    # how many clients may be hostile; None means as many as the theory allows, (n − 3) / 2
    f: int | None = None
    keep: int | None = 1  # how many of the best updates are averaged; None means n − f (multi-Krum)

    def __post_init__(self) -> None:
        if self.f is not None and (not isinstance(self.f, int) or self.f < 0):
            raise ConfigError(f"f = {self.f!r} of Krum: legal are whole numbers >= 0")

    @property
    def fewest(self) -> int:
        """With fewer clients the rule promises nothing: 2 f + 3."""
        return 2 * (self.f or 0) + 3

    @property
    def label(self) -> str:
        """As on the command line."""
        name = "krum" if self.keep == 1 else "multikrum"
        return name if self.f is None else f"{name}({self.f})"

    def aggregate(
        self, updates: Sequence[ClientUpdate], before: Pack, generator: torch.Generator
    ) -> Pack:
        """Average the `keep` updates whose distances to their nearest neighbours sum to least."""
        packs = [update.shared for update in updates]
        if len(packs) < 2:
            return packs[0]
        f = max((len(packs) - 3) // 2, 0) if self.f is None else self.f
        neighbours = max(len(packs) - f - 2, 1)
        scores = _distances(packs).sort(dim=1).values[:, 1 : neighbours + 1].sum(dim=1)
        keep = max(len(packs) - f, 1) if self.keep is None else self.keep
        best = scores.argsort(stable=True)[:keep].sort().values.tolist()
        return mean_of(packs[i] for i in best)


def mean() -> Mean:
    """Build the mean, weighted as `training.weighting` says."""
    return Mean()


def median() -> Sorted:
    """Build the coordinate-wise median; the mean of the two middle values for an even count."""
    return Sorted("median", 0.5)


def trimmed_mean(fraction: float = 0.2) -> Sorted:
    """Build the mean without the smallest and the largest `fraction` of each coordinate."""
    if not 0 <= fraction < 0.5:
        raise ConfigError(f"fraction = {fraction!r} of the trimmed mean: legal is 0 <= x < 0.5")
    fewest = math.ceil(1 / fraction - 1e-9) if fraction else 1
    return Sorted(f"trimmed({fraction:g})", float(fraction), fewest)


def krum(f: int | None = None) -> Krum:
    """Build Krum, tolerant of `f` hostile clients."""
    return Krum(f, keep=1)


def multi_krum(f: int | None = None) -> Krum:
    """Build multi-Krum: the mean of the n − f best updates."""
    return Krum(f, keep=None)


def _distances(packs: list[Pack]) -> Tensor:
    """Squared distances between all pairs, over the trainable entries (all floats if none is)."""
    groups = [g for g in packs[0].vectors if not g.integer]
    groups = [g for g in groups if g.trainable] or groups
    table = torch.zeros(len(packs), len(packs), dtype=torch.float64)
    for i, a in enumerate(packs):
        for j, b in enumerate(packs[:i]):
            square = sum(
                float((a.vectors[g] - b.vectors[g]).double().square().sum()) for g in groups
            )
            table[i, j] = table[j, i] = square
    return table


@dataclass(frozen=True)
class ServerOptimizer:
    r"""A step \(w \leftarrow w + \eta\, m / (\sqrt{v} + \tau)\), or \(w + \eta\, m\) without v."""

    name: str  # the word for it on the command line
    lr: float  # the server's learning rate, eta
    beta1: float  # the share of the old momentum that is kept
    beta2: float = 0.99  # the share of the old second moment that is kept
    tau: float = 1e-3  # the degree of adaptivity

    def __post_init__(self) -> None:
        legal = {
            "lr": 0 < self.lr < math.inf,
            "beta1": 0 <= self.beta1 < 1,
            "beta2": 0 <= self.beta2 < 1,
            "tau": 0 < self.tau < math.inf,
        }
        for name in (name for name, fine in legal.items() if not fine):
            raise ConfigError(
                f"{name} = {getattr(self, name)!r} of the server's {self.name}: "
                "legal are lr > 0, tau > 0 and 0 <= beta < 1"
            )

    @property
    def label(self) -> str:
        """As on the command line."""
        values = {
            "momentum": (self.lr, self.beta1),
            "adagrad": (self.lr, self.beta1, self.tau),
        }.get(self.name, (self.lr, self.beta1, self.beta2, self.tau))
        return f"{self.name}({', '.join(f'{value:g}' for value in values)})"

    def step(self, before: Pack, combined: Pack, memory: State) -> tuple[Pack, State]:
        """Move from `before` towards `combined`; returns the new shared part and memory."""
        vectors = dict(combined.vectors)
        kept: State = {}
        for group in (g for g in before.vectors if g.trainable and not g.integer):
            delta = combined.vectors[group] - before.vectors[group]
            move, moments = self._move(delta, memory, group.label)
            kept |= moments
            vectors[group] = before.vectors[group].add(move, alpha=self.lr)
        return Pack(combined.layout, vectors), kept

    def _move(self, delta: Tensor, memory: State, key: str) -> tuple[Tensor, State]:
        first = memory.get(f"m.{key}", torch.zeros_like(delta))
        if self.name not in _SECOND_MOMENT:
            first = self.beta1 * first + delta
            return first, {f"m.{key}": first}
        first = self.beta1 * first + (1 - self.beta1) * delta
        second = memory.get(f"v.{key}", torch.full_like(delta, self.tau**2))
        second = _SECOND_MOMENT[self.name](second, delta.square(), self.beta2)
        return first / (second.sqrt() + self.tau), {f"m.{key}": first, f"v.{key}": second}


# v after a round, from v before it and the squared pseudo-gradient.
_SECOND_MOMENT: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "adam": lambda v, square, beta: beta * v + (1 - beta) * square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * torch.sign(v - square),
    "adagrad": lambda v, square, _: v + square,
}


def server_momentum(lr: float = 1.0, beta: float = 0.9) -> ServerOptimizer:
    """Build FedAvgM: plain momentum on the server."""
    return ServerOptimizer("momentum", lr, beta)


def server_adam(
    lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> ServerOptimizer:
    """Build FedAdam."""
    return ServerOptimizer("adam", lr, beta1, beta2, tau)


def server_yogi(
    lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> ServerOptimizer:
    """Build FedYogi."""
    return ServerOptimizer("yogi", lr, beta1, beta2, tau)


def server_adagrad(lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> ServerOptimizer:
    """Build FedAdagrad."""
    return ServerOptimizer("adagrad", lr, beta1, 0.0, tau)
