"""What came out: one number a method and client, mean and standard deviation over seeds.

Numbers behind figures and tables: final accuracy a domain, and curves over epochs.

Numbers for drawings, from records: curves over rounds, gains, and rounds until an accuracy.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fedbn.core.best_round import best_round, validation

Record = Mapping[str, Any]
MEAN = "mean"


@dataclass(frozen=True)
class Cell:
    """Mean and sample standard deviation over seeds, in per cent."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Row:
    """One line of the table: a method, or a method in one setting."""

    method: str
    setting: str
    cells: dict[str, Cell]

    @property
    def label(self) -> str:
        """The method, and the setting where there are several."""
        return self.method if self.setting == "default" else f"{self.method} ({self.setting})"


@dataclass(frozen=True)
class Summary:
    """The table of a run: a row a method, a column a client, and the mean."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    remarks: tuple[str, ...] = ()


def summarize(
    records: Sequence[Record],
    report: Literal["last", "best"] = "last",
    choose_setting: bool = False,
) -> Summary:
    """Summarise test accuracy.

    Args:
        records: The lines of `metrics.jsonl`.
        report: The last round, or the one with the best mean validation accuracy.
        choose_setting: Keep, of each method, the setting best on validation data (a mu by grid).
    """
    runs = _by_run(records)
    columns = _columns(records)
    cells: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (method, setting, _), own in runs.items():
        for column, value in _scores(own, report).items():
            cells[method, setting][column].append(100 * value)
    remarks: list[str] = []
    kept = list(cells)
    if choose_setting:
        kept = _chosen(runs, kept, report, remarks)
    rows = tuple(Row(m, s, {c: _cell(v) for c, v in cells[m, s].items()}) for m, s in kept)
    seeds = tuple(dict.fromkeys(record["seed"] for record in records))
    return Summary((*columns, MEAN), rows, seeds, tuple(remarks))


def scores_by_seed(
    records: Iterable[Record], report: Literal["last", "best"] = "last"
) -> dict[tuple[str, str], dict[int, dict[str, float]]]:
    """Test accuracy in per cent: of a method and setting, of a seed, of a column.

    Args:
        records: The lines of `metrics.jsonl`.
        report: The last round, or the one with the best mean validation accuracy.
    """
    found: dict[tuple[str, str], dict[int, dict[str, float]]] = defaultdict(dict)
    for (method, setting, seed), own in _by_run(records).items():
        scores = _scores(own, report)
        found[method, setting][seed] = {column: 100 * v for column, v in scores.items()}
    return dict(found)


def _by_run(records: Iterable[Record]) -> dict[tuple[str, str, int], list[Record]]:
    runs: dict[tuple[str, str, int], list[Record]] = defaultdict(list)
    for record in records:
        runs[record["method"], record["setting"], record["seed"]].append(record)
    return runs


def _columns(records: Iterable[Record]) -> tuple[str, ...]:
    """Clients in the federation's order; pooled data is shown in the columns of its domains."""
    tests = [r for r in records if r["split"] == "test"]
    clients = dict.fromkeys(r["client"] for r in tests if not _pooled(r))
    domains = dict.fromkeys(r["domain"] for r in tests if _pooled(r))
    return tuple(clients) if clients else tuple(domains)


def _pooled(record: Record) -> bool:
    return bool(record["client"] == "all" and record["domain"] != "all")


def _scores(own: Sequence[Record], report: str) -> dict[str, float]:
    """Test accuracy a column, and their mean, at the round reported."""
    tests = [r for r in own if (r["split"], r["metric"]) == ("test", "accuracy")]
    tests = [r for r in tests if r["value"] is not None]
    if not tests:
        return {}
    round = best_round(validation(own)) if report == "best" else tests[-1]["round"]
    at = {
        (r["domain"] if _pooled(r) else r["client"]): r["value"]
        for r in tests
        if r["round"] == round
    }
    unscored = {r["client"] for r in own if r["client"] != "all"} - at.keys()
    if unscored or not at:
        return at  # a mean without one of the clients would not be that of the others
    return {**at, MEAN: statistics.fmean(at.values())}


def _chosen(
    runs: Mapping[tuple[str, str, int], Sequence[Record]],
    rows: Sequence[tuple[str, str]],
    report: str,
    remarks: list[str],
) -> list[tuple[str, str]]:
    """Of each method, the setting with the highest validation accuracy over all seeds."""
    kept = []
    for method in dict.fromkeys(method for method, _ in rows):
        own = [setting for m, setting in rows if m == method]
        score = {setting: _valid_score(runs, method, setting, report) for setting in own}
        best = max(own, key=lambda setting: score[setting])
        kept.append((method, best))
        if len(own) > 1:
            remarks.append(f"{method}: {best} chosen on validation data from {', '.join(own)}")
    return kept


def _valid_score(
    runs: Mapping[tuple[str, str, int], Sequence[Record]], method: str, setting: str, report: str
) -> float:
    found = []
    for (m, s, _), own in runs.items():
        if (m, s) == (method, setting):
            scores = validation(own)
            round = best_round(scores) if report == "best" else max(scores, default=0)
            found.append(statistics.fmean(scores.get(round, [0.0])))
    return statistics.fmean(found)


def _cell(values: Sequence[float]) -> Cell:
    std = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), std, len(values))


Scores = dict[tuple[str, str], dict[str, dict[int, float]]]
"""Accuracy in per cent: of a method and setting, of a domain, of a seed."""


class Line(NamedTuple):
    """A line with its spread: mean and standard deviation over seeds."""

    x: list[float]
    mean: list[float]
    std: list[float]


def domain_scores(records: Sequence[Record], report: Literal["last", "best"] = "last") -> Scores:
    """Final test accuracy of each domain, the mean over its clients, and `mean` over domains."""
    domains = {r["client"]: r["domain"] for r in records if r["split"] == "test"}
    found: Scores = {}
    for key, by_seed in scores_by_seed(records, report).items():
        mine: dict[str, dict[int, float]] = defaultdict(dict)
        for seed, by_client in by_seed.items():
            parts: dict[str, list[float]] = defaultdict(list)
            for client, value in by_client.items():
                if client != MEAN:
                    parts[domains.get(client, client)].append(value)
            scores = {domain: statistics.fmean(values) for domain, values in parts.items()}
            if scores:
                mine[MEAN][seed] = statistics.fmean(scores.values())
            for domain, value in scores.items():
                mine[domain][seed] = value
        found[key] = {d: mine[d] for d in [*(d for d in mine if d != MEAN), MEAN] if d in mine}
    return found


def curves(
    records: Iterable[Record], metric: str, split: str, epochs: Mapping[str, int]
) -> dict[tuple[str, str, str], Line]:
    """Curves over epochs by method, setting and domain, with `mean` over domains.

    Args:
        records: The lines of `metrics.jsonl`.
        metric: `training_loss` or `accuracy`.
        split: `train` or `test`.
        epochs: Local epochs a round, by setting.
    """
    values: dict[tuple[str, str, str], dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for r in records:
        if r["metric"] == metric and r["split"] == split and r["value"] is not None:
            for domain in (r["domain"], MEAN):
                values[r["method"], r["setting"], domain][r["round"]][r["seed"]].append(r["value"])
    return {key: _line(by_round, epochs.get(key[1], 1)) for key, by_round in values.items()}


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _line(by_round: Mapping[int, Mapping[int, Sequence[float]]], epochs: int) -> Line:
    line = Line([], [], [])
    for round in sorted(by_round):
        seeds = [statistics.fmean(parts) for parts in by_round[round].values()]
        line.x.append(round * epochs)
        line.mean.append(statistics.fmean(seeds))
        line.std.append(spread(seeds))
    return line


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
