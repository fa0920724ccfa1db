"""Two runs, or two methods of one run: what differs, and which differences are noise.

Configurations and environments are compared key by key, scores by paired tests over seeds; the
whole can be had as values, as cells of a table, and as Markdown.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from fedbn.errors import ConfigError, unknown
from fedbn.results.aggregate import MEAN, Records, Report, Row, ScoreTable, summarize
from fedbn.results.paired_tests import FEWEST_RANKS, LEVEL, Paired, holm, paired
from fedbn.text import counted, flat, harmless, table


@dataclass(frozen=True)
class Change:
    """A key and its two values; None where one side does not have it."""

    key: str
    a: Any
    b: Any

    @property
    def words(self) -> tuple[str, str, str]:
        """The key and both values as one reads them; long hashes are cut."""
        return self.key, _word(self.a), _word(self.b)


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    """List the keys whose values differ.

    Examples:
        >>> changes({"t": {"lr": 0.1, "rounds": 2}}, {"t": {"lr": 0.2, "rounds": 2}})
        (Change(key='t.lr', a=0.1, b=0.2),)
    """
    first, second = dict(flat(a)), dict(flat(b))
    keys = sorted(first.keys() | second.keys())
    found = (Change(key, first.get(key), second.get(key)) for key in keys)
    return tuple(change for change in found if change.a != change.b)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        hashed = len(value) == 64 and set(value) <= set("0123456789abcdef")
        return f"{value[:12]}…" if hashed else value
    return json.dumps(value, ensure_ascii=False, default=str)


_ENVIRONMENT = ("data", "versions", "weights")


@dataclass(frozen=True)
class Side:
    """A run as its files tell it.

    Attributes:
        name: What to call it, its path for instance.
        records: The lines of `metrics.jsonl`.
        config: The resolved configuration.
        environment: `environment.json`.
    """

    name: str
    records: Records
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def scores(self) -> ScoreTable:
        """The records as numbers."""
        return ScoreTable.of(self.records)

    @property
    def report(self) -> Report:
        """Which round counts."""
        found: Report = self.config.get("evaluation", {}).get("report", "last")
        return found


@dataclass(frozen=True)
class Line:
    """One client, or the mean of all, on both sides: mean accuracies and the test."""

    client: str
    a: float
    b: float
    test: Paired
    p: float | None
    verdict: str


@dataclass(frozen=True)
class Pair:
    """A method on both sides, or two methods."""

    a: str
    b: str
    seeds: tuple[int, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Comparison:
    """All that differs between A and B; the verdicts are about B."""

    a: str
    b: str
    configuration: tuple[Change, ...]
    environment: tuple[Change, ...]
    pairs: tuple[Pair, ...]
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give plain values, for JSON."""
        return asdict(self)


def compare(a: Side, b: Side, methods: Sequence[str] = ()) -> Comparison:
    """Compare two runs.

    Args:
        a: The run to start from.
        b: The run to judge.
        methods: Nothing for all that both have; one to look at; or two, A's and B's.

    Raises:
        ConfigError: There is no method, client or seed that both sides have.
    """
    pairs = [_pair(a, b, x, y) for x, y in _matched(a, b, methods)]
    return Comparison(
        a=a.name,
        b=b.name,
        configuration=changes(a.config, b.config),
        environment=changes(*({k: s.environment.get(k, {}) for k in _ENVIRONMENT} for s in (a, b))),
        pairs=tuple(pairs),
        remarks=tuple(dict.fromkeys([*_remarks(a, b), *_doubts(pairs)])),
    )


def _matched(a: Side, b: Side, methods: Sequence[str]) -> list[tuple[Row, Row]]:
    """Pair rows of one method and setting; a method with one setting a side needs no equal one."""
    if len(methods) > 2:
        raise ConfigError(f"--methods names {len(methods)}: legal are one, or two to compare")
    crossed = len(set(methods)) == 2
    rows_a, rows_b = (_rows(side, name) for side, name in zip((a, b), _named(methods), strict=True))
    pairs = [(x, y) for x in rows_a for y in rows_b if crossed or x.method == y.method]
    found = [
        (x, y)
        for x, y in pairs
        if x.setting == y.setting or (_alone(x, rows_a) and _alone(y, rows_b))
    ]
    if not found:
        raise ConfigError(f"no method and setting in common: {_both(a, b, rows_a, rows_b)}")
    return found


def _named(methods: Sequence[str]) -> tuple[str | None, str | None]:
    return (methods[0], methods[-1]) if methods else (None, None)


def _rows(side: Side, name: str | None) -> list[Row]:
    """The rows of a run's table: all, or those of a method, or the one of a method and setting."""
    choose = isinstance(side.config.get("method", {}).get("mu"), list)
    rows = list(summarize(side.scores, side.report, choose_setting=choose).rows)
    if not any(row.cells for row in rows):
        raise ConfigError(f"{side.name}: no test accuracy yet; nothing to compare")
    if name is None:
        return rows
    found = [row for row in rows if name in (row.method, row.label)]
    if not found:
        raise ConfigError(f"{side.name}: {unknown('method', name, [row.label for row in rows])}")
    return found


def _alone(row: Row, rows: Iterable[Row]) -> bool:
    return sum(other.method == row.method for other in rows) == 1


def _pair(a: Side, b: Side, row_a: Row, row_b: Row) -> Pair:
    scores = [side.scores.scores(side.report)[row.key] for side, row in ((a, row_a), (b, row_b))]
    known = [side.scores.histories[row.key] for side, row in ((a, row_a), (b, row_b))]
    seeds = [seed for seed in known[0] if seed in known[1]]
    if not seeds:
        raise ConfigError(f"{row_a.label}: no seed in common: {_both(a, b, *known)}")
    clients = [client for client in row_a.cells if client in row_b.cells]
    if not set(clients) - {MEAN}:
        raise ConfigError(f"no client in common: {_both(a, b, row_a.cells, row_b.cells)}")
    tests = {client: _tested(*(own[client] for own in scores)) for client in clients}
    found = {client: test for client, test in tests.items() if test}
    return Pair(row_a.label, row_b.label, tuple(seeds), _lines(found))


def _tested(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float, Paired] | None:
    both = [seed for seed in a if seed in b]
    if not both:
        return None
    first, second = ([own[seed] for seed in both] for own in (a, b))
    return statistics.fmean(first), statistics.fmean(second), paired(first, second)


def _lines(tests: Mapping[str, tuple[float, float, Paired]]) -> tuple[Line, ...]:
    """The clients are one family of tests; their mean is a question of its own."""
    clients = [client for client in tests if client != MEAN]
    corrected = dict(zip(clients, holm([tests[c][2].p for c in clients]), strict=True))
    found = []
    for client, (a, b, test) in tests.items():
        p = corrected.get(client, test.p)
        found.append(Line(client, a, b, test, p, test.verdict(p)))
    return tuple(found)


def _remarks(a: Side, b: Side) -> list[str]:
    found = []
    data = [side.environment.get("data", {}) for side in (a, b)]
    if other := [c for c in data[0] if c in data[1] and data[0][c] != data[1][c]]:
        found.append(f"not the same data: {', '.join(other)}; a difference there may be the data's")
    lasts = [_last_round(side) for side in (a, b)]
    if lasts[0] != lasts[1]:
        found.append(f"A was scored after round {lasts[0]}, B after round {lasts[1]}")
    return found


def _last_round(side: Side) -> int:
    return max((r["round"] for r in side.records if r["split"] == "test"), default=0)


def _doubts(pairs: Iterable[Pair]) -> list[str]:
    found = []
    for pair in pairs:
        few = len(pair.seeds)
        if few < FEWEST_RANKS:
            found.append(
                f"{counted(few, 'seed')} in common: a true difference smaller "
                "than its interval is called noise; more seeds tell more"
            )
        found += [
            f"{pair.b}, {line.client}: by ranks it could be noise (Wilcoxon p = {ranks:.2g})"
            for line in pair.lines
            if line.verdict in ("better", "worse") and (ranks := line.test.ranks or 0) >= LEVEL
        ]
    return found


def _both(a: Side, b: Side, has_a: Iterable[Any], has_b: Iterable[Any]) -> str:
    words = [", ".join(str(getattr(x, "label", x)) for x in has) for has in (has_a, has_b)]
    return f"{a.name} has {words[0]}; {b.name} has {words[1]}"


SCORES = ("method", "client", "A, %", "B, %", "B − A", "95 % interval", "p", "verdict on B")


def score_rows(pair: Pair) -> Iterator[tuple[str, ...]]:
    """The cells of a pair's lines; the method is named once."""
    label = pair.b if pair.a == pair.b else f"{pair.a} → {pair.b}"
    for line in pair.lines:
        yield (label, *_cells(line))
        label = ""


def markdown(found: Comparison) -> str:
    """Write a comparison as Markdown."""
    parts = [f"# Comparison\n\nA: {harmless(found.a)}\n\nB: {harmless(found.b)}"]
    for title, some in (
        ("Configuration", found.configuration),
        ("Environment", found.environment),
    ):
        if some:
            parts.append(f"## {title}\n\n{_changes(some)}")
    rows = [row for pair in found.pairs for row in score_rows(pair)]
    parts.append(f"## Test accuracy\n\n{table(SCORES, rows)}")
    parts.append(harmless(explanation(found)))
    parts += [f"- {harmless(text)}" for text in found.remarks]
    return "\n\n".join(parts) + "\n"


def explanation(found: Comparison) -> str:
    """Say how the numbers were made."""
    seeds = sorted({seed for pair in found.pairs for seed in pair.seeds})
    return (
        f"Means over seeds {', '.join(map(str, seeds))}; paired t-tests over seeds; p of clients "
        "corrected by Holm; better and worse mean p < 0.05."
    )


def _changes(some: tuple[Change, ...]) -> str:
    return table(("key", "A", "B"), (change.words for change in some))


def _cells(line: Line) -> tuple[str, ...]:
    low, high = line.test.low, line.test.high
    interval = "–" if low is None or high is None else f"{_signed(low)} to {_signed(high)}"
    p = "–" if line.p is None else f"{line.p:.2g}" if line.p >= 0.001 else "< 0.001"
    difference = _signed(line.test.difference)
    return line.client, f"{line.a:.1f}", f"{line.b:.1f}", difference, interval, p, line.verdict


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
