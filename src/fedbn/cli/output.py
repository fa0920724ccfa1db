"""Results on stdout: the table, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from fedbn.results.aggregate import Summary


_kept: list[TextIO] = []  # stdout, while a command has it for itself


def printable(text: str) -> str:
    """Keep a message on one line, whatever names it quotes."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


@contextmanager
def results_apart() -> Iterator[None]:
    """Keep stdout for results: what a user's own model or data prints goes to stderr."""
    _kept.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _kept.pop()


def emit(text: str = "", end: str = "\n") -> None:
    """Print a result."""
    print(text, end=end, file=_stdout())


def stdout_console() -> Console:
    """Make a console for results: wide where nobody looks, plain where NO_COLOR asks for it."""
    from rich.console import Console

    stream = _stdout()
    width = None if stream.isatty() else 10_000
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, width=width, highlight=False, color_system=colours)


def _stdout() -> TextIO:
    return _kept[-1] if _kept else sys.stdout


def print_summary(summary: Summary) -> None:
    """Print the table: a row a method, a column a client, the best of each column in bold."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("test accuracy, %")
    for column in summary.columns:
        table.add_column(plain(column), justify="right")
    best = {
        c: max((r.cells[c].mean for r in summary.rows if c in r.cells), default=None)
        for c in summary.columns
    }
    for row in summary.rows:
        cells = [_cell(row.cells.get(c), best[c]) for c in summary.columns]
        table.add_row(plain(row.label), *cells)
    console = stdout_console()
    console.print(table)
    for remark in summary.remarks:
        console.print(plain(remark))


def print_json(summary: Summary, folder: str) -> None:
    """Print the same for a program."""
    rows: list[dict[str, Any]] = [
        {
            "method": row.method,
            "setting": row.setting,
            "accuracy": {c: {"mean": cell.mean, "std": cell.std} for c, cell in row.cells.items()},
        }
        for row in summary.rows
    ]
    content = {"folder": folder, "seeds": summary.seeds, "rows": rows, "remarks": summary.remarks}
    emit(json.dumps(content, indent=2))


def _cell(cell: Any, best: float | None) -> str:
    if cell is None:
        return "–"
    return f"[bold]{cell}[/bold]" if cell.mean == best else str(cell)


def plain(text: str) -> str:
    """Keep a name from being read as rich's markup, and on one line."""
    from rich.markup import escape

    return escape("".join(sign if sign.isprintable() else "?" for sign in text))
