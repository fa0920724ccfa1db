"""Numbers for drawings, from records: curves over rounds, gains, and rounds until an accuracy."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedbn.results.summary import MEAN, Record, Row, Summary, scores_by_seed

Key = tuple[str, str]  # method and setting
_Values = dict[Key, dict[int, list[float]]]  # round -> values over seeds


@dataclass(frozen=True)
class Curve:
    """A number over rounds: its mean over seeds, and their standard deviation (0 for one seed)."""

    label: str
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Gain:
    """How much better a client fares with one method than with another, seed by seed, in points."""

    client: str
    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def std(self) -> float:
        """The sample standard deviation over seeds; 0 for one seed."""
        values = list(self.by_seed.values())
        return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Duel:
    """A method against another: who, and the gain of every client."""

    new: str
    old: str
    gains: tuple[Gain, ...]
    mean: Gain | None


def accuracy_curves(records: Iterable[Record], rows: Sequence[Row]) -> dict[str, list[Curve]]:
    """Test accuracy in per cent over rounds: of the mean first, then of each client."""
    panels: dict[str, _Values] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    at: dict[tuple[Key, int, int], list[float]] = defaultdict(list)
    for r in records:
        if r["split"] == "test" and r["metric"] == "accuracy" and r["value"] is not None:
            key, value = (r["method"], r["setting"]), 100 * r["value"]
            panels[column(r)][key][r["round"]].append(value)
            at[key, r["seed"], r["round"]].append(value)
    means = _complete_means(at)
    found = {MEAN: _curves(means, rows), **{c: _curves(v, rows) for c, v in panels.items()}}
    return {name: curves for name, curves in found.items() if curves}


def loss_curves(records: Iterable[Record], rows: Sequence[Row], metric: str) -> list[Curve]:
    """The mean loss of the clients on their training data, over rounds.

    Args:
        records: The lines of `metrics.jsonl`.
        rows: Which methods and settings.
        metric: `training_loss`, seen while training; or `loss`, scored after a round.
    """
    at: dict[tuple[Key, int, int], list[float]] = defaultdict(list)
    for r in records:
        if r["split"] == "train" and r["metric"] == metric and r["value"] is not None:
            at[(r["method"], r["setting"]), r["seed"], r["round"]].append(r["value"])
    means: _Values = defaultdict(lambda: defaultdict(list))
    for (key, _, round), values in at.items():
        means[key][round].append(statistics.fmean(values))
    return _curves(means, rows)


def column(record: Record) -> str:
    """Where a record belongs: to its client, or to its domain for pooled data."""
    return str(record["domain"] if record["client"] == "all" else record["client"])


def duel(
    records: Sequence[Record], summary: Summary, report: Literal["last", "best"] = "last"
) -> Duel | None:
    """Compare FedBN with FedAvg, or what comes nearest to both; None where one is not there."""
    new, old = (_row(summary, name) for name in ("fedbn", "fedavg"))
    if new is None or old is None:
        return None
    scores = scores_by_seed(records, report)
    a, b = (scores[row.method, row.setting] for row in (new, old))
    apart: dict[str, dict[int, float]] = defaultdict(dict)
    for seed in (seed for seed in a if seed in b):
        for name in a[seed].keys() & b[seed].keys():
            apart[name][seed] = a[seed][name] - b[seed][name]
    gains = {name: Gain(name, apart[name]) for name in summary.columns if name in apart}
    mean = gains.pop(MEAN, None)
    return Duel(new.label, old.label, tuple(gains.values()), mean) if gains else None


def reached(curves: Iterable[Curve], target: float) -> dict[str, int | None]:
    """The first round at which each curve is at a target; None where it never is.

    Examples:
        >>> reached([Curve("fedbn", (1, 2), (50.0, 90.0), (0, 0))], 80)
        {'fedbn': 2}
    """
    return {
        c.label: next((r for r, m in zip(c.rounds, c.mean, strict=True) if m >= target), None)
        for c in curves
    }


def _row(summary: Summary, name: str) -> Row | None:
    exact = [row for row in summary.rows if row.method == name]
    near = [row for row in summary.rows if row.method.startswith(f"{name}+")]
    return next(iter([*exact, *near]), None)


def _complete_means(at: Mapping[tuple[Key, int, int], Sequence[float]]) -> _Values:
    """Means over clients, of rounds that scored all of them: another mean is not comparable."""
    most: dict[tuple[Key, int], int] = defaultdict(int)
    for (key, seed, _), values in at.items():
        most[key, seed] = max(most[key, seed], len(values))
    means: _Values = defaultdict(lambda: defaultdict(list))
    for (key, seed, round), values in at.items():
        if len(values) == most[key, seed]:
            means[key][round].append(statistics.fmean(values))
    return means


def _curves(
    values: Mapping[Key, Mapping[int, Sequence[float]]], rows: Sequence[Row]
) -> list[Curve]:
    return [
        _curve(row.label, values[row.method, row.setting])
        for row in rows
        if (row.method, row.setting) in values
    ]


def _curve(label: str, by_round: Mapping[int, Sequence[float]]) -> Curve:
    rounds = tuple(sorted(by_round))
    found = [by_round[round] for round in rounds]
    std = tuple(statistics.stdev(v) if len(v) > 1 else 0.0 for v in found)
    return Curve(label, rounds, tuple(map(statistics.fmean, found)), std)
