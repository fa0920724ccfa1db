"""What commands have in common: their options, results on stdout, remarks on stderr."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbn import registry
from fedbn.cli import completion
from fedbn.errors import ConfigError
from fedbn.text import shown


def _trust(modules: list[str] | None) -> list[str] | None:
    registry.trust(modules or ())
    return modules


Run = Annotated[Path, typer.Argument(help="The run folder.", autocompletion=completion.runs)]

Method = Annotated[
    str | None,
    typer.Option(
        help="Which method of the run; fedbn if it is there, else the first.",
        autocompletion=completion.methods_of_run,
    ),
]

Seed = Annotated[int | None, typer.Option(help="Which seed; the first unless given.")]

Setting = Annotated[
    str | None, typer.Option(help="Which setting of a sweep; the first unless given.")
]

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
]

Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1024,
        envvar="FEDBN_WORKERS",
        help="Cores to use, 0 for what the configuration says, or all; changes no result.",
    ),
]

Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        callback=_trust,
        help="A module whose code the files may name, as module:callable; may be repeated.",
    ),
]

Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER", help="tensorboard, mlflow or module:callable; may be repeated."
    ),
]

WithSamples = Annotated[
    bool,
    typer.Option(
        "--with-samples",
        help="Show pictures of samples of your own data, too; they may show persons.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program.")]

Form = Literal["text", "latex", "csv", "markdown"]  # how a table of results is written
Which = Literal["some", "all"]  # whose lines a table has


@dataclass(frozen=True)
class Showing:
    """How a run's results are shown."""

    as_json: bool = False
    form: Form = "text"
    clients: Which = "some"


TableForm = Annotated[
    Form, typer.Option("--format", help="The table as text, LaTeX, CSV or Markdown, on stdout.")
]

Clients = Annotated[
    Which, typer.Option(help="all: a line for every client, where some of many would do.")
]

BUT_FIRST = range(1, sys.maxsize)  # columns

_kept: list[TextIO] = []  # stdout, while a command has it for itself


def commands() -> typer.Typer:
    """What the commands of a module are registered with."""
    return typer.Typer(add_completion=False, rich_markup_mode="rich")


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


@contextmanager
def results_apart() -> Iterator[None]:
    """Keep stdout for results: what a user's own model or data prints goes to stderr."""
    _kept.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _kept.pop()


def say(*texts: str) -> None:
    """Print remarks on stderr: on a line each, or wrapped between words where a person looks."""
    for line in map(shown, texts):
        if sys.stderr.isatty():
            wide = shutil.get_terminal_size().columns
            line = textwrap.fill(line, wide, break_long_words=False, break_on_hyphens=False)
        print(line, file=sys.stderr, flush=True)


def emit(text: str = "", end: str = "\n") -> None:
    """Print a result."""
    print(text, end=end, file=_stdout())


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], numbers: Container[int] = ()
) -> None:
    """Print a table on stdout; names may hold anything, and a cell that is a `Text` has a style.

    `numbers` are the places of the columns that are put to the right.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        side: Literal["right", "left"] = "right" if place in numbers else "left"
        table.add_column(Text(shown(title)), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(c if isinstance(c, Text) else Text(shown(str(c))) for c in row))
    _console().print(table)


def print_text(*texts: str, style: str = "") -> None:
    """Print sentences on stdout, wrapped where a person looks; they may quote anything."""
    for text in texts:
        _console().print(Text(shown(text), style))


def width() -> int:
    """The signs that fit on a line of results."""
    return _console().width


def _console() -> Console:
    """Make a console for results: wide where nobody looks, plain where NO_COLOR asks for it."""
    stream = _stdout()
    width = None if stream.isatty() else 10_000
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, width=width, highlight=False, color_system=colours)


def _stdout() -> TextIO:
    return _kept[-1] if _kept else sys.stdout


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"--out {out}: a folder; give a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: no such folder {out.parent}")
    if not os.access(out.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ConfigError(f"cannot write {out}: Permission denied")
