"""A comparison in words: the cells of its tables, and the whole as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from fedbn.markdown import harmless, table
from fedbn.results.changes import Change
from fedbn.results.compare import Comparison, Line, Pair

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
