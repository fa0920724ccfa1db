"""A run as its files tell it: its records, and the table that is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedbn.core.metric import UNEVEN, Metric, first_metric
from fedbn.core.statistics_kinds import STATISTICS_KINDS
from fedbn.results import statistics_remarks
from fedbn.results.aggregate import (
    MEAN,
    WEIGHTED,
    Cell,
    Key,
    Records,
    Report,
    Scores,
    ScoreTable,
    Summary,
    duel,
    summarize,
    weighted_by_size,
)
from fedbn.text import flat

_SIZES = 12  # clients whose numbers of test samples are all stated


@dataclass(frozen=True)
class RunFiles:
    """A run as its files tell it."""

    path: str  # its folder, or what else to call it
    records: Records  # the lines of `metrics.jsonl`
    config: Mapping[str, Any] = field(default_factory=dict)  # the resolved configuration
    environment: Mapping[str, Any] = field(default_factory=dict)  # `environment.json`
    warnings: tuple[str, ...] = ()  # all that the run gave, each once

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration by dotted keys; it may be incomplete."""
        return dict(flat(self.config))

    @property
    def report(self) -> Report:
        """Which round counts."""
        return "best" if self.settings.get("evaluation.report") == "best" else "last"

    @cached_property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return first_metric(self.environment)

    @cached_property
    def table(self) -> ScoreTable:
        """The records as numbers."""
        return ScoreTable.of(self.records, self.metric)

    @cached_property
    def test_sizes(self) -> dict[str, int]:
        """The number of test samples of each column, as far as the run recorded it."""
        inputs = self.environment.get("inputs") or {}
        known = (facts["sizes"] for facts in inputs.values() if facts.get("sizes"))
        sizes: Mapping[str, tuple[int, int]] = next(known, {})
        return {name: sizes[name][1] for name in self.table.columns if name in sizes}

    @property
    def uneven(self) -> bool:
        """True if the numbers of test samples of clients differ by more than a factor of ten."""
        sizes = self.test_sizes
        known = sizes.keys() >= {*self.table.columns}
        return bool(sizes) and known and max(sizes.values()) > UNEVEN * min(sizes.values())

    @cached_property
    def scores(self) -> dict[Key, Scores]:
        """The metric on test data by method and setting; with the weighted mean where `uneven`."""
        found = self.table.scores(self.report)
        if not self.uneven:
            return found
        return {
            key: {**own, WEIGHTED: weighted} if weighted else own
            for key, own in found.items()
            for weighted in [weighted_by_size(own, self.test_sizes)]
        }

    @cached_property
    def summary(self) -> Summary:
        """The table of results."""
        choose = isinstance(self.settings.get("method.mu"), list)
        found = summarize(self.table, self.report, choose_setting=choose)
        found = replace(found, remarks=(*found.remarks, *self._said_of_statistics(found)))
        if not self.uneven:
            return found
        form = self.metric.form
        rows = []
        for row in found.rows:
            values = self.scores[row.key].get(WEIGHTED, {}).values()
            cells = {WEIGHTED: Cell.of(values, form)} if values else {}
            rows.append(replace(row, cells={**row.cells, **cells}))
        columns, remarks = (*found.columns, WEIGHTED), (*found.remarks, self._sizes_told())
        return replace(found, columns=columns, rows=tuple(rows), remarks=remarks)

    def _said_of_statistics(self, found: Summary) -> Iterator[str]:
        keys = [row.key for row in found.rows]
        duels = (duel(self.table, found, self.report, kind) for kind in STATISTICS_KINDS)
        yield from statistics_remarks.gain(filter(None, duels), self.metric)
        yield from statistics_remarks.reasons(self.table, self.report, self.warnings)
        yield from statistics_remarks.fewer_seeds(self.table, keys)
        yield from statistics_remarks.differences(keys, self.scores, self.metric)
        yield from statistics_remarks.same_training(self.table, self.report)
        yield from statistics_remarks.meanings(key.statistics for key in keys)

    def _sizes_told(self) -> str:
        ordered = sorted(self.test_sizes.items(), key=lambda item: item[1])
        ends = ordered if len(ordered) <= _SIZES else [*ordered[:3], *ordered[-3:]]
        sizes = ", ".join(f"{name} {size:,}" for name, size in ends)
        some = "" if ends is ordered else f" (the smallest and the largest of {len(ordered):,})"
        return (
            f"test samples: {sizes}{some}; in {MEAN!r} every client counts as much, in "
            f"{WEIGHTED!r} every sample"
        )
