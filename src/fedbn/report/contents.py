"""What a report is made of: plain values that `report.reading` collects, and a run's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedbn.core.metric import PERCENT, Metric
from fedbn.core.state import Entry
from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS
from fedbn.errors import ConfigError
from fedbn.results import aggregate, comparison
from fedbn.results.run_files import RunFiles
from fedbn.text import points_said

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Exchange:
    """What a method exchanges in its rounds, and what stays with a client: entries and bytes.

    `local` is None where only the sites know; `pooled`: the data travels instead, to one place.
    """

    method: str
    shared: tuple[int, int]
    local: tuple[int, int] | None
    clients: int
    rounds: int
    pooled: bool = False

    @property
    def kept(self) -> int:
        """Bytes that stay with a client, as far as they are known."""
        return self.local[1] if self.local else 0

    @property
    def per_round(self) -> int:
        """Bytes over the network in a round: down to every client and up again."""
        return 0 if self.pooled else 2 * self.shared[1] * self.clients


@dataclass(frozen=True)
class Layer:
    """The statistics of a BatchNorm layer: a row a client, a column a channel."""

    name: str
    clients: tuple[str, ...]
    mean: Array
    variance: Array

    @property
    def title(self) -> str:
        """Its name; a bare number, as in `nn.Sequential`, needs a word beside it."""
        return f"module {self.name}" if self.name.isdecimal() else self.name


@dataclass(frozen=True)
class Confusion:
    """How often a client's model took a class (row) for another (column), on one domain."""

    client: str
    domain: str
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    """One picture with its class and what the model took it for."""

    pixels: NDArray[np.uint8]
    true: str
    predicted: str
    probability: float

    @property
    def right(self) -> bool:
        """Whether both are the same."""
        return self.true == self.predicted


@dataclass(frozen=True)
class Gallery:
    """Test pictures of a domain: some at random, and the surest mistakes."""

    client: str
    domain: str
    drawn: tuple[Example, ...]
    mistakes: tuple[Example, ...]


@dataclass(frozen=True)
class Facts:
    """What only the trained models tell; of one method, seed and setting.

    `layers` is empty where clients share BatchNorm statistics, `galleries` where samples are no
    pictures; `confusions` are of some clients where there are many.
    """

    method: str
    setting: str
    seed: int
    round: int
    remarks: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    clients: int = 0
    entries: tuple[tuple[Entry, bool], ...] = ()  # and whether it is shared
    layers: tuple[Layer, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    galleries: tuple[Gallery, ...] = ()


MOST_LABELS = 10


@dataclass(frozen=True)
class RunContents(RunFiles):
    """One run folder: its files, and what its models tell, where they can be had.

    `missing` says of sections why they cannot be shown, `notes` what else a reader should know.
    """

    exchanges: tuple[Exchange, ...] = ()
    facts: Facts | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    name: str = ""

    @property
    def drawable(self) -> tuple[aggregate.Row, ...]:
        """The rows that have a learning curve."""
        drawn = {*self.table.drawn}
        return tuple(row for row in self.summary.rows if row.key in drawn)

    @property
    def rows(self) -> tuple[aggregate.Row, ...]:
        """The rows that can be drawn in one figure."""
        return self.drawable[:MOST_LABELS]

    def curves(
        self, column: str, measure: aggregate.Measure | None = None
    ) -> list[aggregate.Curve]:
        """A number over rounds, of a client or on average, a curve a row."""
        return self.table.curves(column, measure, [row.key for row in self.rows])

    @property
    def duel(self) -> aggregate.Duel | None:
        """FedBN against FedAvg, both scored with running statistics."""
        return self.duels.get(RUNNING)

    @cached_property
    def duels(self) -> Mapping[str, aggregate.Duel]:
        """FedBN against FedAvg, by the kind of statistics that both are scored with.

        Splits of the data count as repetitions, like seeds.
        """
        found: dict[str, aggregate.Duel] = {}
        for kind in STATISTICS_KINDS:
            one = aggregate.duel(self.table, self.summary, self.report, kind)
            if one is None:
                continue
            labels = {row.key.label: row.key for row in self.summary.rows}
            new, old = (comparison.without_splits(labels[name]) for name in (one.new, one.old))
            if (new.label, old.label) == (one.new, one.old):
                found[kind] = one
            elif whole := self._side.duel(new, old):
                found[kind] = whole
        return found

    @cached_property
    def _side(self) -> comparison.Side:
        return comparison.Side(self.path, self.records, self.config, self.environment)

    @property
    def test(self) -> comparison.Pair | None:
        """The paired test of the two methods of `duel`, by the rules of `fedbn compare`."""
        return self.tests.get(RUNNING)

    @cached_property
    def tests(self) -> Mapping[str, comparison.Pair]:
        """The paired tests of `duels`, adjusted for all of their lines."""
        if self.duel is None:
            return {}
        names = [self.duel.old, self.duel.new]
        with suppress(ConfigError):  # they have no seed in common
            pairs = comparison.compare(self._side, self._side, names).pairs
            return {pair.statistics: pair for pair in pairs}
        return {}


def gain_said(gain: float, metric: Metric) -> str:
    """Say a gain with its sign."""
    return points_said(gain) if metric.unit == PERCENT else f"{gain:+.3g}".replace("-", "−")
