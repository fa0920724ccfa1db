"""`fedbn compare`: what differs between two runs, and which differences are noise."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.output import emit, plain, stdout_console

if TYPE_CHECKING:
    from fedbn.results.comparison import Comparison, Side


_EXAMPLES = """[bold]Examples[/bold]

fedbn compare runs/before runs/after

fedbn compare runs/first --methods fedavg,fedbn      what FedBN gains over FedAvg

fedbn compare runs/before runs/after --format md > difference.md"""


class Form(StrEnum):
    """How the comparison is written."""

    TEXT = "text"
    MD = "md"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=_EXAMPLES)(compare)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two run folders, A and B; or one.")],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A[,B]", help="One method to look at; or two, B judged against A; labels too."
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="text, md or json.")] = Form.TEXT,
) -> None:
    """Compare two runs, or two methods of one run, by a paired test over their seeds."""
    from fedbn.errors import ConfigError
    from fedbn.results.comparison import compare as compared

    names = _split(methods or "")
    if len(runs) > 2:
        raise ConfigError(f"{len(runs)} runs: legal are two, or one with --methods A,B")
    if len(runs) == 1 and len(set(names)) != 2:
        raise ConfigError("one run: name two of its methods, as --methods fedavg,fedbn")
    sides = [_side(path) for path in runs]
    found = compared(sides[0], sides[-1], names)
    if form is Form.TEXT:
        _print(found)
    else:
        emit(_rendered(found, form), end="")


def _split(text: str) -> list[str]:
    """Cut at commas that stand in no brackets: fedavg,fedbn+adam(lr=0.1,eps=1e-8)."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def _side(path: Path) -> Side:
    from fedbn.experiments.configuration import held_experiment
    from fedbn.results.comparison import Side
    from fedbn.runs import metrics
    from fedbn.runs.folder import RunFolder

    folder = RunFolder(path)
    held_experiment(folder)
    config = folder.read_request()
    return Side(str(path), metrics.read(folder.metrics), config, folder.read_environment())


def _rendered(found: Comparison, form: Form) -> str:
    import json

    from fedbn.results.comparison import markdown

    if form is Form.MD:
        return markdown(found)
    return json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n"


def _print(found: Comparison) -> None:
    from fedbn.results.comparison import SCORES, explanation, score_rows

    console = stdout_console()
    if found.a != found.b:
        console.print(f"A  {plain(found.a)}\nB  {plain(found.b)}\n")
    for title, some in (
        ("configuration", found.configuration),
        ("environment", found.environment),
    ):
        if some:
            console.print(_table((title, "A", "B"), [change.words for change in some]), "")
    rows = [row for pair in found.pairs for row in score_rows(pair)]
    console.print(_table(SCORES, rows, numbers=slice(2, 7)), "")
    for text in (explanation(found), *found.remarks):
        console.print(plain(text))


def _table(
    header: tuple[str, ...], rows: list[tuple[str, ...]], numbers: slice = slice(0, 0)
) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    right = set(header[numbers])
    for title in header:
        table.add_column(title, justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*map(plain, row))
    return table
