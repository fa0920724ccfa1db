"""`fedbn compare`: what differs between two runs, or methods, and which differences are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedbn.cli import completion, console
from fedbn.cli.console import emit, print_table, print_text
from fedbn.core.statistics_kinds import STATISTICS_KINDS
from fedbn.errors import ConfigError
from fedbn.experiments.merging import Part, Rows
from fedbn.results import comparison
from fedbn.results.comparison import (
    Comparison,
    Side,
    by_statistics,
    gain_rows,
    gain_titles,
    score_rows,
    score_titles,
)
from fedbn.results.result_table import Grid, Shown, written
from fedbn.results.sample_comparison import SampledSide, compare_samples
from fedbn.runs.folder import RunFolder
from fedbn.runs.messages import grouped, read_warnings
from fedbn.text import shown

app = console.commands()

_EXAMPLES = console.examples(
    "fedbn compare runs/before runs/after",
    "fedbn compare runs/first                          every pair of its methods",
    "fedbn compare runs/first --methods fedavg,fedbn   what FedBN gains",
    "fedbn compare runs/first --methods 'fedavg, local statistics,fedbn'",
    "fedbn compare runs/first --over samples           would other test samples turn it?",
    "fedbn compare runs/before runs/after --format md > difference.md",
)

Over = Literal["seeds", "samples"]
Form = Literal["text", "md", "markdown", "latex", "csv", "json"]


@app.command(epilog=_EXAMPLES)
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Two run folders, A and B; or one.", autocompletion=completion.runs),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A[,B...]",
            help="Which methods: of one run every pair of them, B judged against A; labels too.",
            autocompletion=completion.listed_methods_of_run,
        ),
    ] = None,
    over: Annotated[
        Over, typer.Option(help="What the tests are over: seeds, or test samples (accuracy).")
    ] = "seeds",
    form: Annotated[Form, typer.Option("--format", help="How it is written.")] = "text",
    trust: console.Trust = None,
) -> None:
    """Compare two runs, or the methods of one run, by paired tests over seeds or test samples.

    Over seeds, splits that a run sweeps over (data.split_seed) are repetitions too.
    Over samples, the tests pair test samples; with three seeds or more, seeds too.
    Rows are compared with each kind of BatchNorm statistics that both were scored with.
    Intervals hold for all lines of clients at once, and apart from these for all means at once.
    """
    names = _split(methods or "")
    if len(runs) > 2:
        raise ConfigError(f"{len(runs)} runs: legal are two, or one")
    parts = [Part.read(RunFolder(run)) for run in runs]
    said = [
        f"{part.folder.path} is not finished, and is compared as it is: "
        f"{'; '.join(part.unfinished)}"
        for part in parts
        if part.unfinished
    ]
    if over == "samples":
        sampled = [SampledSide(*_files(one), one.outcomes(), one.data()) for one in parts]
        found = compare_samples(sampled[0], sampled[-1], names)
    else:
        sides = [Side(*_files(part)) for part in parts]
        found = comparison.compare(sides[0], sides[-1], names)
    found = replace(found, remarks=(*said, *found.remarks))
    if form == "text":
        _print(comparison.with_ends_only(found))
    else:
        emit(_rendered(found, form), end="")


def _files(part: Part) -> tuple[str, Rows, Mapping[str, Any], Mapping[str, Any], tuple[str, ...]]:
    """Return what the files of a run tell."""
    records = [row for rows in part.jobs.values() for row in rows]
    warnings = grouped(read_warnings(part.folder))
    config = part.folder.read_request()
    return str(part.folder.path), records, config, part.environment, warnings


def _split(text: str) -> list[str]:
    """Cut at commas that stand in no brackets and before no statistics.

    Examples:
        >>> _split("fedavg, exact statistics,fedbn+adam(lr=0.1,eps=1e-8)")
        ['fedavg, exact statistics', 'fedbn+adam(lr=0.1,eps=1e-8)']
    """
    kinds = "|".join(STATISTICS_KINDS)
    parts = re.split(rf",(?![^(]*\))(?!\s*(?:{kinds}) statistics)", text)
    return [
        re.sub(r",\s*(?=\w+ statistics$)", ", ", part.strip()) for part in parts if part.strip()
    ]


def _rendered(found: Comparison, form: Form) -> str:
    if form in ("md", "markdown"):
        return comparison.markdown(found)
    if form != "json":
        rows = [row for pair in found.pairs for row in score_rows(pair, found.metric, named=True)]
        cells = tuple(tuple(Shown(text) for text in row[1:]) for row in rows)
        head, *titles = score_titles(found.metric, found.over)
        return written(Grid(head, tuple(titles), tuple(row[0] for row in rows), cells), form)
    return json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n"


def _print(found: Comparison) -> None:
    if found.a != found.b:
        emit(f"A  {shown(found.a)}\nB  {shown(found.b)}\n")
    changes = {"configuration": found.configuration, "environment": found.environment}
    for title, some in changes.items():
        if some:
            print_table((title, "A", "B"), [change.words for change in some])
            emit()
    for heading, pairs in by_statistics(found).items():
        headed = bool(heading)
        rows = [row for pair in pairs for row in score_rows(pair, found.metric, headed=headed)]
        if headed:
            emit(heading)
        print_table(score_titles(found.metric, found.over), rows, numbers=range(2, 8))
        emit()
    if gained := gain_rows(found):
        print_table(gain_titles(found), gained)
        emit()
    print_text(comparison.explanation(found), *found.remarks)
