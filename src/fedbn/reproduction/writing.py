"""Tables as CSV, Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from fedbn import markdown
from fedbn.reproduction.item import Cell, Row, Table

PAPER, DIFFERENCE = "paper", "ours − paper"
_TEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"−": "$-$", "±": r"$\pm$", "✓": r"$\ast$"})
_NOTE = "✓: within two of the paper's standard deviations."


def lines(table: Table) -> Iterator[list[str]]:
    """Give the lines of a table: ours and, where there is one, the paper's and the difference."""
    for row in table.rows:
        yield [*row.label, *(_ours(cell, table.digits) for cell in row.cells)]
        if any(cell and cell.paper is not None for cell in row.cells):
            blank = [""] * (len(row.label) - 1)
            yield [*blank, PAPER, *(_paper(cell, table.digits) for cell in row.cells)]
            yield [*blank, DIFFERENCE, *(_difference(cell, table.digits) for cell in row.cells)]


def notes(table: Table) -> str:
    """What stands below a table."""
    judged = any(c and c.within is not None for row in table.rows for c in row.cells)
    return " ".join(part for part in (table.note, _NOTE if judged else "") if part)


def to_markdown(table: Table) -> str:
    """Write a table for a page or an issue."""
    drawn = markdown.table([*table.head, *table.columns], lines(table))
    return f"**{table.title}**\n\n{drawn}\n\n{markdown.harmless(notes(table))}\n"


def to_latex(table: Table) -> str:
    """Write a table for a paper; needs the package booktabs."""
    head = " & ".join(_tex(part) for part in (*table.head, *table.columns))
    body = "\n".join(f"{' & '.join(map(_tex, line))} \\\\" for line in lines(table))
    shape = "l" * len(table.head) + "c" * len(table.columns)
    return (
        f"\\begin{{table}}[t]\n\\centering\n\\begin{{tabular}}{{{shape}}}\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        f"\\caption{{{_tex(table.title)}. {_tex(notes(table))}}}\n"
        f"\\label{{tab:{table.name}}}\n\\end{{table}}\n"
    )


def to_csv(table: Table) -> str:
    """Write one line a cell, with all that is known of it, for a program."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.head, "column", "ours", "std", "paper", "paper_std", "difference",
                     "within_two_std"])  # fmt: skip
    for row in table.rows:
        writer.writerows(_csv_lines(row, table))
    return text.getvalue()


def _csv_lines(row: Row, table: Table) -> Iterator[list[object]]:
    for column, cell in zip(table.columns, row.cells, strict=True):
        if cell is not None:
            numbers = (cell.ours, cell.std, cell.paper, cell.paper_std, cell.difference)
            shown = ["" if value is None else f"{value:.6g}" for value in numbers]
            within = "" if cell.within is None else str(cell.within).lower()
            yield [*map(_safe, row.label), _safe(column), *shown, within]


def _safe(text: str) -> str:
    """Keep a spreadsheet from reading a name as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _ours(cell: Cell | None, digits: int) -> str:
    return "–" if cell is None else _number(cell.ours, cell.std, digits)


def _paper(cell: Cell | None, digits: int) -> str:
    if cell is None or cell.paper is None:
        return "–"
    return _number(cell.paper, cell.paper_std, digits)


def _difference(cell: Cell | None, digits: int) -> str:
    if cell is None or cell.difference is None:
        return "–"
    return f"{cell.difference:+.{digits}f}".replace("-", "−") + (" ✓" if cell.within else "")


def _number(mean: float, std: float | None, digits: int) -> str:
    shown = f"{mean:.{digits}f}" + ("" if std is None else f" ({std:.{digits}f})")
    return shown.replace("-", "−")


def _tex(text: str) -> str:
    return text.replace("\\", "/").translate(_TEX)
