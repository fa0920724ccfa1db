"""The first section: the numbers to remember, and the summary table."""

from __future__ import annotations

from fedbn.results.report.contents import RunContents
from fedbn.results.report.parts import Cell, Part, Section, Text, Tile, Tiles, remark, table
from fedbn.results.report.scores import Scores
from fedbn.results.report.series import Duel, reached
from fedbn.results.report.words import bytes_said, counted, points_said
from fedbn.results.summary import MEAN, Row, Summary

_MOST_COLUMNS, _MOST_ROWS, _AT_AN_END = 9, 40, 10


def glance(scores: Scores) -> list[Part]:
    """The numbers to remember."""
    tiles = []
    ranked = [row for row in scores.summary.rows if MEAN in row.cells]
    if ranked:
        best = max(ranked, key=lambda row: row.cells[MEAN].mean)
        detail = f"best of {counted(len(ranked), 'method')}, mean of clients"
        tiles.append(Tile(f"{best.cells[MEAN]} %", f"test accuracy of {best.label}", detail))
    fight = scores.duel
    if fight and fight.mean:
        better = sum(gain.mean > 0 for gain in fight.gains)
        detail = f"better for {better:,} of {counted(len(fight.gains), 'client')}"
        tiles.append(
            Tile(f"{points_said(fight.mean.mean)} points", f"{fight.new} over {fight.old}", detail)
        )
        tiles += _speed(scores, fight)
    tiles += _kept(scores.run, fight.new if fight else None)
    return [Tiles(tuple(tiles))] if tiles else []


def _speed(scores: Scores, fight: Duel) -> list[Tile]:
    curves = {curve.label: curve for curve in scores.curves.get(MEAN, [])}
    if fight.old not in curves or fight.new not in curves:
        return []
    old = curves[fight.old]
    at = reached([curves[fight.new]], old.mean[-1])[fight.new]
    if at is None or at > old.rounds[-1]:
        return []
    label = f"{fight.new} is where {fight.old} ends"
    return [Tile(f"round {at}", label, f"{fight.old} took {counted(old.rounds[-1], 'round')}")]


def _kept(run: RunContents, method: str | None) -> list[Tile]:
    for exchange in run.exchanges:
        if exchange.method == (method or "fedbn") and exchange.local and exchange.kept:
            share = 100 * exchange.kept / (exchange.kept + exchange.shared[1])
            detail = counted(exchange.local[0], "entry", "entries")
            detail = f"{bytes_said(exchange.kept)} in {detail}"
            return [Tile(f"{share:.2g} %", "of the model never leaves a client", detail)]
    return []


def results(scores: Scores) -> Section:
    """The summary table."""
    summary = scores.summary
    seeds = ", ".join(map(str, summary.seeds[:20])) + (" …" if len(summary.seeds) > 20 else "")
    over = "mean ± standard deviation over seeds" if len(summary.seeds) > 1 else "seed"
    when = "the round best on validation data" if scores.report == "best" else "the last round"
    if not any(row.cells for row in summary.rows):
        return Section("results", "Results", "", (remark("No client has been scored yet."),))
    lead = f"Test accuracy in per cent at {when}, {over} {seeds}. The best is marked."
    parts = [*glance(scores), *_tables(summary), *map(Text, summary.remarks)]
    return Section("results", "Results", lead, tuple(parts))


def _tables(summary: Summary) -> list[Part]:
    best = {
        c: max((r.cells[c].mean for r in summary.rows if c in r.cells), default=None)
        for c in summary.columns
    }

    def cell(row: Row, name: str) -> Cell:
        found = row.cells.get(name)
        return Cell("–") if found is None else Cell(str(found), found.mean == best[name])

    columns, rows = summary.columns, summary.rows
    if len(columns) <= _MOST_COLUMNS:
        body = [[Cell(row.label), *(cell(row, c) for c in columns)] for row in rows]
        return [table("Test accuracy, %", ["method", *columns], body)]
    names, said = _some_clients(summary)
    body = [[Cell(name), *(cell(row, name) for row in rows)] for name in (MEAN, *names)]
    header = ["client", *(row.label for row in rows)]
    return [*([Text(said)] if said else []), table("Test accuracy, %", header, body)]


def _some_clients(summary: Summary) -> tuple[list[str], str]:
    """All clients, or of very many those at both ends."""
    names = [c for c in summary.columns if c != MEAN]
    if len(names) <= _MOST_ROWS:
        return names, ""
    last = summary.rows[-1]
    ordered = (
        sorted((c for c in names if c in last.cells), key=lambda name: last.cells[name].mean)
        or names
    )
    said = (
        f"Of {len(names):,} clients, the {_AT_AN_END} with the lowest and the {_AT_AN_END} with "
        f"the highest accuracy under {last.label}; metrics.jsonl has all."
    )
    return [*ordered[:_AT_AN_END], *ordered[-_AT_AN_END:]], said
