"""One item as a folder: tables as CSV, Markdown and LaTeX (booktabs), figures, and a README."""

from __future__ import annotations

import importlib
import json
import math
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fedbn import __version__, text
from fedbn.errors import ConfigError, unknown
from fedbn.paper.items import Cell, Entry, Outcome, Request, Table
from fedbn.results.result_table import latex
from fedbn.runs.folder import explained, to_json, write_atomically

PAPER, DIFFERENCE, INTERVAL = "paper", "ours − paper", "95 % interval"
_APART = "Intervals of ours − paper hold both spreads (Welch; the paper's five trials)."
_CUT = "The protocol was cut, or a client has other data: no interval of the difference."


def lines(table: Table) -> Iterator[list[str]]:
    """Give the lines of a table: ours, and below them what else is known of a row's cells."""
    for row in table.rows:
        cells, digits = [cell or _NOTHING for cell in row.cells], table.digits
        yield [*row.label, *(_number(c.ours, c.std, digits) or "–" for c in cells)]
        below = (
            (INTERVAL, [_range(cell.interval, digits, table.signed) for cell in cells]),
            (PAPER, [_number(cell.paper, cell.paper_std, digits) for cell in cells]),
            (DIFFERENCE, [_signed(cell.difference, digits) for cell in cells]),
            (INTERVAL, [_range(cell.apart, digits) for cell in cells]),
        )
        for name, values in below:
            if any(values):
                blank = [""] * (len(row.label) - 1)
                yield [*blank, name, *(value or "–" for value in values)]


def notes(table: Table) -> str:
    """What stands below a table."""
    cells = [cell for row in table.rows for cell in row.cells if cell]
    said = {
        _APART: any(cell.apart for cell in cells),
        _CUT: any(cell.cut and cell.paper_std is not None for cell in cells),
    }
    return " ".join([*filter(None, [table.note]), *(text for text, true in said.items() if true)])


def to_markdown(table: Table) -> str:
    """Write a table for a page or an issue."""
    drawn = text.table([*table.head, *table.columns], lines(table))
    return f"**{table.title}**\n\n{drawn}\n\n{text.harmless(notes(table))}\n"


def to_latex(table: Table) -> str:
    """Write a table for a paper; needs the package booktabs."""
    head = " & ".join(latex(part) for part in (*table.head, *table.columns))
    body = "\n".join(f"{' & '.join(map(latex, line))} \\\\" for line in lines(table))
    shape = "l" * len(table.head) + "c" * len(table.columns)
    return (
        f"\\begin{{table}}[t]\n\\centering\n\\begin{{tabular}}{{{shape}}}\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        f"\\caption{{{latex(table.title)}. {latex(notes(table))}}}\n"
        f"\\label{{tab:{table.name}}}\n\\end{{table}}\n"
    )


def to_csv(table: Table) -> str:
    """Write one line a cell, with all that is known of it, for a program."""
    lines = [[*table.head, "column", "ours", "std", "seeds", "low", "high", "paper", "paper_std",
              "difference", "difference_low", "difference_high"]]  # fmt: skip
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None:
                low, high = cell.interval or (None, None)
                ours = (cell.ours, cell.std, cell.seeds, low, high, cell.paper, cell.paper_std)
                apart = (cell.difference, *(cell.apart or (None, None)))
                numbers = ["" if value is None else f"{value:.6g}" for value in (*ours, *apart)]
                lines.append([*row.label, column, *numbers])
    return text.csv_text(lines)


_NOTHING = Cell(math.nan)


def _range(interval: tuple[float, float] | None, digits: int, signed: bool = True) -> str | None:
    write = _signed if signed else partial(_number, std=None)
    return interval and " to ".join(str(write(end, digits=digits)) for end in interval)


def _number(mean: float | None, std: float | None, digits: int) -> str | None:
    if mean is None or math.isnan(mean):
        return None
    shown = f"{mean:.{digits}f}" + ("" if std is None else f" ({std:.{digits}f})")
    return shown.replace("-", "−")


def _signed(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:+.{digits}f}".replace("-", "−")


RESULT, TIME, README = "result.json", "seconds.json", "README.md"
ITEMS = {
    "data_view": "fedbn.paper.small_items",
    "gain_decomposition": "fedbn.paper.gain_decomposition",
    "leak": "fedbn.paper.leak",
    "methods": "fedbn.paper.methods_table",
    "shift_map": "fedbn.paper.shift_map",
    "synthetic": "fedbn.paper.small_items",
    "toy_surface": "fedbn.paper.toy",
    "trained": "fedbn.paper.trained_items",
    "unseen_domain": "fedbn.paper.unseen_domain",
}
"""The items that `reproduce.by` can name, each a function of its module."""


def produce(entry: Entry, request: Request, command: str) -> Outcome:
    """Reproduce an item and write its folder.

    An interrupted item leaves its run folders, from which the same command goes on, and the
    seconds spent so far.
    """
    made = [path for path in (request.folder, *request.folder.parents) if not path.exists()]
    with explained(request.folder, ConfigError):
        request.folder.mkdir(parents=True, exist_ok=True)
    begun, finished = time.monotonic(), (request.folder / RESULT).exists()
    before = _seconds(request.folder)
    outcome: Outcome | None = None
    try:
        with explained(request.folder):
            if entry.by not in ITEMS:
                raise ConfigError(f"{entry.file}: reproduce.by: {unknown('item', entry.by, ITEMS)}")
            outcome = getattr(importlib.import_module(ITEMS[entry.by]), entry.by)(request)
    finally:
        spent = before if finished else before + time.monotonic() - begun
        if outcome or any(request.folder.iterdir()):
            write_atomically(request.folder / TIME, to_json({"seconds": round(spent, 1)}))
        else:  # leave nothing of an item that failed before it wrote anything
            with suppress(OSError):
                for path in made:
                    path.rmdir()
    for table in outcome.tables:
        for suffix, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
            write_atomically(request.folder / f"{table.name}.{suffix}", write(table).encode())
    facts = _facts(entry, request, outcome, command, spent)
    write_atomically(request.folder / README, _readme(entry, facts, outcome).encode())
    write_atomically(request.folder / RESULT, to_json(facts))
    return outcome


def _facts(
    entry: Entry, request: Request, outcome: Outcome, command: str, seconds: float
) -> dict[str, Any]:
    own = ("reproduce", "quick")
    settings = {key: value for key, value in request.experiment.items() if key not in own}
    return {
        "name": entry.name,
        "title": entry.title,
        "place": entry.how.get("place", ""),
        "scale": request.scale,
        "command": command,
        "run": None if request.source is None else str(request.source),
        "settings": json.loads(json.dumps(settings)),
        "changes": list(request.changes),
        "remarks": list(outcome.remarks),
        "seconds": round(seconds, 1),
        "versions": {"fedbn": __version__, "python": platform.python_version()},
        "tables": [asdict(table) for table in outcome.tables],
        "figures": [figure.name for figure in outcome.figures],
    }


def _readme(entry: Entry, facts: Mapping[str, Any], outcome: Outcome) -> str:
    """A page that a person reads first."""
    changes = "; ".join(facts["changes"]) or "none"
    parts = [
        f"# {entry.name}",
        text.harmless(entry.title),
        f"In the paper: {text.harmless(facts['place'])}.",
        f"```bash\n{facts['command']}\n```",
        f"- scale: {facts['scale']}; seconds: {facts['seconds']:.0f}\n"
        f"- changes against the paper's settings: {text.harmless(changes)}",
        *(f"- {text.harmless(remark)}" for remark in outcome.remarks),
        *(to_markdown(table) for table in outcome.tables),
        *(f"![{f.stem}]({f.name})" for f in outcome.figures if f.suffix == ".png"),
    ]
    return "\n\n".join(parts) + "\n"


def _seconds(folder: Path) -> float:
    try:
        return float(json.loads((folder / TIME).read_bytes())["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
