"""Results on stdout: the table, or JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from fedbn.results.summary import Summary


def printable(text: str) -> str:
    """Keep a message on one line, whatever names it quotes."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def stdout_console() -> Console:
    """Make a console for results: wide where nobody looks, plain where NO_COLOR asks for it."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(width=width, highlight=False, color_system=None if plain else "auto")


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
    print(json.dumps(content, indent=2))


def _cell(cell: Any, best: float | None) -> str:
    if cell is None:
        return "–"
    return f"[bold]{cell}[/bold]" if cell.mean == best else str(cell)


def plain(text: str) -> str:
    """Keep a name from being read as rich's markup, and on one line."""
    from rich.markup import escape

    return escape("".join(sign if sign.isprintable() else "?" for sign in text))
