"""What came out: one number a method and client, mean and standard deviation over seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedbn.core.best import best_round, validation

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
