"""A run's table as people read it: on a terminal of any width, in LaTeX, CSV or Markdown.

Up to a dozen clients are columns, or rows where the columns do not fit. Of more clients the table
says how their scores spread, and names the worst. Where rows of several kinds of statistics do not
fit together, each kind has a table of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedbn.core.statistics_kinds import RUNNING
from fedbn.results import display_name
from fedbn.results.aggregate import EQUAL, MEANS, Cell, Row, Summary
from fedbn.text import csv_text, short, shown, table

MOST = 12
SCORED_WITH = {
    "running": "scored with the running statistics that the method leaves",
    "local": "scored with the client's own running statistics",
    "exact": "scored with the client's exact statistics",
    "batch": "scored with the client's batch statistics",
}
"""The heading of a table whose rows are all scored with one kind of statistics."""
_WORST = 5
_NAME = 16
_SPREAD = ("median", "worst decile", "best")
_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "×": r"$\times$", "–": "--", "−": "$-$"}
)


class Shown(NamedTuple):
    """A cell: what it says, and whether it is the best of its client."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table without a medium."""

    title: str  # what the numbers are
    columns: tuple[str, ...]  # the names above
    rows: tuple[str, ...]  # the names at the left
    cells: tuple[tuple[Shown, ...], ...]  # a tuple a row
    heading: str = ""  # what stands above the table

    @property
    def turned(self) -> Grid:
        """Rows as columns."""
        cells = tuple(zip(*self.cells, strict=True)) if self.cells else ((),) * len(self.columns)
        return replace(self, columns=self.rows, rows=self.columns, cells=cells)

    @property
    def width(self) -> int:
        """Signs that it takes, two between columns."""
        first = max(map(len, (self.title, *self.rows)))
        columns = zip(self.columns, *([c.text for c in row] for row in self.cells), strict=True)
        return first + sum(2 + max(map(len, column)) for column in columns)


def grid_of(summary: Summary, named: bool = False) -> Grid:
    """Lay a summary out: a row a method, a column a client; `named` as in a paper, FedBN."""
    best = summary.best

    def cell(row: Row, name: str) -> Shown:
        found = row.cells.get(name)
        return Shown(str(found), abs(found.mean - best[name]) < EQUAL) if found else Shown("–")

    labels = [row.key.label for row in summary.rows]
    names = tuple(map(display_name, labels) if named else labels)
    cells = tuple(tuple(cell(row, name) for name in summary.columns) for row in summary.rows)
    return Grid(f"test {summary.metric.title}", summary.columns, names, cells)


def tables_of(summary: Summary, width: int, named: bool = False) -> list[Grid]:
    """Lay a summary out for a line of so many signs, as one table where all of its rows fit.

    Otherwise there is a table for each kind of statistics. The best of a column is that of all.
    """
    whole = readable(summary, width, named)
    kinds = dict.fromkeys(row.key.statistics for row in summary.rows)
    if len(kinds) < 2 or whole.width <= width:
        return [whole]
    grid, found = grid_of(summary, named), []
    for kind in kinds:
        places = [i for i, row in enumerate(summary.rows) if row.key.statistics == kind]
        names = [summary.rows[i].key.name for i in places]
        found.append(
            replace(
                grid,
                rows=tuple(map(display_name, names) if named else names),
                cells=tuple(grid.cells[i] for i in places),
                heading=SCORED_WITH[kind],
            )
        )
    turns = _has_many(summary) or any(one.width > width for one in found)
    return [one.turned if turns else one for one in found]


def condensed(summary: Summary) -> Summary:
    """Put how clients spread in the place of clients, where they are more than a dozen.

    The worst decile is the mean of the worst tenth of the clients, each by its mean over seeds; the
    five worst are those with the worst mean over methods, scored with running statistics.
    """
    clients = [name for name in summary.columns if name not in MEANS]
    if len(clients) <= MOST:
        return summary
    higher = summary.metric.higher
    deciding = [row for row in summary.rows if row.key.statistics == RUNNING] or summary.rows
    scored = [c for c in clients if any(c in row.cells for row in deciding)]

    def overall(client: str) -> float:
        return statistics.fmean(r.cells[client].mean for r in deciding if client in r.cells)

    worst = sorted(scored, key=overall, reverse=not higher)[:_WORST]
    rows = tuple(replace(row, cells=_spread(row, clients, higher, worst)) for row in summary.rows)
    remark = (
        f"{len(clients):,} clients; worst decile: the mean of the worst tenth; then the {_WORST} "
        "worst by name (--clients all: every one)"
    )
    means = [name for name in MEANS if name in summary.columns]
    columns = (*means, *_SPREAD, *worst)
    return replace(summary, columns=columns, rows=rows, remarks=(*summary.remarks, remark))


def _spread(
    row: Row, clients: Sequence[str], higher: bool, worst: Sequence[str]
) -> dict[str, Cell]:
    kept = {name: row.cells[name] for name in (*MEANS, *worst) if name in row.cells}
    values = sorted((row.cells[c].mean for c in clients if c in row.cells), reverse=not higher)
    if not values:
        return kept
    form = next(iter(row.cells.values())).form
    tenth = values[: max(1, round(len(values) / 10))]
    found = (statistics.median(values), statistics.fmean(tenth), values[-1])
    spread = zip(_SPREAD, found, strict=True)
    return {**kept, **{name: Cell(value, None, 1, form) for name, value in spread}}


def readable(summary: Summary, width: int, named: bool = False) -> Grid:
    """Lay a summary out for a line of so many signs: clients as columns where few, and they fit."""
    grid = grid_of(summary, named)
    return grid.turned if _has_many(summary) or grid.width > width else grid


def _has_many(summary: Summary) -> bool:
    """True if clients are too many for a column each."""
    clients = sum(name not in MEANS for name in summary.columns)
    return clients > MOST or _SPREAD[0] in summary.columns


def fitted(grid: Grid, width: int) -> Grid:
    """Shorten names until the table fits: those at the left, then those above."""
    left = max(map(len, (grid.title, *grid.rows)))
    room = max(_NAME, left - max(0, grid.width - width))
    names = tuple(short(name, room) for name in grid.rows)
    grid = replace(grid, title=short(grid.title, room), rows=names)
    if grid.width > width and grid.columns:
        room = max(_NAME // 2, (width - room) // len(grid.columns) - 2)
        grid = replace(grid, columns=tuple(short(name, room) for name in grid.columns))
    return grid


def written(grid: Grid, form: str) -> str:
    """Write a table for another program: as `latex`, `csv` or `markdown`."""
    if form == "latex":
        return _latex(grid)
    header = [grid.title, *grid.columns]
    named = zip(grid.rows, grid.cells, strict=True)
    rows = [[name, *(c.text for c in row)] for name, row in named]
    return table(header, rows) + "\n" if form == "markdown" else csv_text([header, *rows])


def _latex(grid: Grid) -> str:
    rows = [
        [latex(name), *(rf"\textbf{{{latex(c.text)}}}" if c.best else latex(c.text) for c in row)]
        for name, row in zip(grid.rows, grid.cells, strict=True)
    ]
    head, *body = (
        " & ".join(line) + r" \\" for line in [[*map(latex, (grid.title, *grid.columns))], *rows]
    )
    begin = rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}"
    ruled = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([r"% needs \usepackage{booktabs}", *ruled, ""])


def latex(text: str) -> str:
    r"""Make a text one that LaTeX sets as it is.

    Examples:
        >>> latex("50 % ± 1, a_b")
        '50 \\% $\\pm$ 1, a\\_b'
    """
    return shown(text).translate(_LATEX)
