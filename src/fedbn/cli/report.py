"""`fedbn report`: a run, or several, as one page to hand on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedbn import __version__
from fedbn.cli import completion, console
from fedbn.cli.console import check_out, emit, say
from fedbn.errors import ConfigError
from fedbn.report import page
from fedbn.report.contents import RunContents
from fedbn.report.document import html, markdown
from fedbn.report.reading import gather
from fedbn.results.result_table import condensed, readable, written
from fedbn.runs.folder import explained, write_atomically
from fedbn.text import shown

app = console.commands()

_EXAMPLES = console.examples(
    "fedbn report runs/first                   writes runs/first/report.html",
    "fedbn report runs/before runs/after --out both.html",
    "fedbn report runs/first --method fedavg --seed 1 --format md",
    "fedbn report runs/first --out table.tex   its table alone, for a paper",
)

Form = Literal["html", "md", "markdown", "latex", "csv"]
_ENDS: dict[Form, str] = {
    "html": ".html",
    "md": ".md",
    "markdown": ".markdown",
    "latex": ".tex",
    "csv": ".csv",
}


@app.command(epilog=_EXAMPLES)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders.", autocompletion=completion.runs),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file; report.html in the first run unless given."),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option("--format", help="The page: html, md. Its table alone: latex, csv."),
    ] = None,
    method: console.Method = None,
    seed: console.Seed = None,
    setting: console.Setting = None,
    with_samples: console.WithSamples = False,
    trust: console.Trust = None,
) -> None:
    """Write a report that needs nothing beside itself: results, curves, what is shared, examples.

    Method, seed and setting say whose models it looks into; the tables have all.

    Pictures of your own data are left out, as they may show persons: --with-samples
    shows them. What a run does not have (not finished, its data gone) is left out, and said.
    """
    by_end = {end: one for one, end in _ENDS.items()}
    suffix = out.suffix.lower() if out else ""
    if form is None and suffix not in (*by_end, "", ".htm"):
        legal = ", ".join(by_end)
        raise ConfigError(f"--out {out}: expected a name that ends in {legal}, got {suffix}")
    chosen = form or by_end.get(suffix, "html")
    file = out or runs[0] / f"report{_ENDS[chosen]}"
    check_out(file if file.parent.exists() else None)  # before minutes of work
    found = [
        gather(path, method=method, seed=seed, setting=setting, with_samples=with_samples)
        for path in runs
    ]
    content, left_out = _made(found, chosen)
    with explained(file, ConfigError):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)
    say(*left_out)
    emit(shown(f"{file} ({len(content) / 1e6:.2f} MB)"))


def _made(found: list[RunContents], form: Form) -> tuple[bytes, list[str]]:
    if form in ("latex", "csv"):  # of many clients how they spread; as CSV all of them
        some = [run.summary if form == "csv" else condensed(run.summary) for run in found]
        tables = [written(readable(one, sys.maxsize, named=True), form) for one in some]
        notes = [f"{run.path}: {note}" for run in found for note in run.notes]
        return "\n".join(tables).encode(), [*notes, *(text for one in some for text in one.remarks)]
    text = (html if form == "html" else markdown)(page(found), __version__)
    return text.encode(), [line for run in found for line in _said(run)]


def _said(run: RunContents) -> Iterator[str]:
    """What a run's report does not have; parts that miss for one reason share a line."""
    yield from (f"{run.path}: {note}" for note in run.notes)
    for why in dict.fromkeys(run.missing.values()):
        parts = ", ".join(part for part, reason in run.missing.items() if reason == why)
        yield f"{run.path}: without {parts}: {why}"
