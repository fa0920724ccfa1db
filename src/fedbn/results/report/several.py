"""Several runs side by side: what came out of each, and in what they differ."""

from __future__ import annotations

from collections.abc import Sequence

from fedbn.results.changes import changes
from fedbn.results.report.lines import accuracy_range, looks, panel, sample
from fedbn.results.report.parts import Cell, Figures, Part, Section, Text, table
from fedbn.results.report.scores import Scores
from fedbn.results.style import colours
from fedbn.results.summary import MEAN

_MOST_KEYS, _MOST_PANELS = 60, 12


def comparison(names: Sequence[str], runs: Sequence[Scores]) -> Section:
    """Compare runs: mean accuracy by method, its curves, and the settings that differ."""
    labels = list(dict.fromkeys(row.label for run in runs for row in run.summary.rows))
    parts: list[Part] = [_accuracy(names, runs, labels), *_curves(names, runs)]
    parts += _differences(names, runs)
    lead = (
        "Mean test accuracy of the clients, in per cent. Whether a difference is more than noise, "
        "fedbn compare tells, two runs at a time."
    )
    return Section("comparison", "The runs side by side", lead, tuple(parts))


def _accuracy(names: Sequence[str], runs: Sequence[Scores], labels: Sequence[str]) -> Part:
    means = [{row.label: row.cells.get(MEAN) for row in run.summary.rows} for run in runs]
    rows = []
    for name, run, found in zip(names, runs, means, strict=True):
        cells = []
        for label in labels:
            cell = found.get(label)
            known = [m[label].mean for m in means if m.get(label)]  # type: ignore[union-attr]
            best = cell is not None and cell.mean == max(known) and len(runs) > 1
            cells.append(Cell("–" if cell is None else str(cell), best))
        last = max((r["round"] for r in run.run.records), default=0)
        rows.append([Cell(name), Cell(str(len(run.summary.seeds))), Cell(str(last)), *cells])
    return table("Mean test accuracy, %", ["run", "seeds", "rounds", *labels], rows)


def _curves(names: Sequence[str], runs: Sequence[Scores]) -> list[Part]:
    drawn = [(n, r.curves[MEAN]) for n, r in zip(names, runs, strict=True) if MEAN in r.curves]
    drawn = drawn[:_MOST_PANELS]
    if not drawn:
        return []
    labels = list(dict.fromkeys(curve.label for _, curves in drawn for curve in curves))
    look = looks(labels, colours(labels))
    span = accuracy_range([curve for _, curves in drawn for curve in curves])
    panels = tuple(panel(name, curves, look, span) for name, curves in drawn)
    return [Figures(panels, tuple((sample(look[name]), name) for name in labels))]


def _differences(names: Sequence[str], runs: Sequence[Scores]) -> list[Part]:
    first = runs[0].run.config
    found: dict[str, list[str]] = {}
    for place, run in enumerate(runs[1:], 1):
        for change in changes(first, run.run.config):
            key, a, b = change.words
            row = found.setdefault(key, [a] * len(runs))
            row[place] = b
    if not found:
        return [Text("Their configurations are the same.")]
    rows = [[key, *values] for key, values in sorted(found.items())[:_MOST_KEYS]]
    return [table("Where their configurations differ", ["key", *names], rows)]
