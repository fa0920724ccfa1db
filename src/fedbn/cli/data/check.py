"""`fedbn data check`: read everything and report what is wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.data._common import SETTING, print_table, say, section_of
from fedbn.cli.output import emit

if TYPE_CHECKING:
    from fedbn.core.federation import Finding
    from fedbn.experiments.schema import DataSection


_EXAMPLES = """[bold]Examples[/bold]

fedbn data check digits_mini

fedbn data check my_pictures/

fedbn data check patients.csv --set label=outcome --set site=hospital

fedbn data check office_caltech10 --json"""


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog=_EXAMPLES)(check)


def check(
    data: Annotated[str, typer.Argument(help="A data set's name, or the path of your own data.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SETTING)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """Read all data and report faults, each with its severity, site and file.

    An error would stop a run: only then the exit code is 4.
    A warning may spoil its result; a note is good to know.
    """
    import json as codec

    from fedbn.errors import DataError

    found = _findings(section_of(data, set_))
    counts = Counter(finding.severity for finding in found)
    if json:
        emit(codec.dumps({"data": data, "findings": [asdict(f) for f in found]}, indent=2))
    else:
        if found:
            rows = ([f.severity, f.site or "–", f.file or "–", f.text] for f in found)
            print_table(("severity", "site", "file", "finding"), rows)
            emit()
        told = (
            (counts["error"], "error"),
            (counts["warning"], "warning"),
            (counts["note"], "note"),
        )
        emit(", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in told))
    if counts["error"]:
        raise typer.Exit(DataError.exit_code)


def _findings(section: DataSection) -> list[Finding]:
    from fedbn.core.federation import in_order

    own = section.path and section.name in (None, "arrays", "folders", "tables")
    return in_order(_own(section) if own else _registered(section))


def _own(section: DataSection) -> list[Finding]:
    """Look at a user's files one by one; where they are fine, read them as a run would."""
    from fedbn.data.checks import examine_path
    from fedbn.datasets.own_files import arrays, tables
    from fedbn.experiments.sources import data_name

    options = {key: value for key, value in section.options.items() if key != "path"}
    files = examine_path(str(section.path), options, {"arrays": arrays, "tables": tables})
    if _stopped(files):
        return files
    kind, sentence = data_name(section)
    say(sentence or "")
    if kind == "tables" and "label" not in options:
        return files  # which has a note that says so
    read = [f for f in _read(section) if f.severity == "error" or _is_remark(f)]
    return [*files, *(f for f in read if f not in files)]


def _registered(section: DataSection) -> list[Finding]:
    """Read a data set as a run would; of a benchmark of pictures, look at all its files too."""
    from fedbn.data.benchmarks import PicturesInfo
    from fedbn.data.checks import examine_benchmark
    from fedbn.data.storage import data_root
    from fedbn.datasets import info_of
    from fedbn.experiments.sources import data_name

    found = _read(section)
    name, _ = data_name(section)
    info = None if ":" in name else info_of(name)
    if not isinstance(info, PicturesInfo) or info.benchmark is None:
        return found
    files = examine_benchmark(info.benchmark, Path(section.path or data_root() / name))
    if _stopped(files) and _stopped(found):
        return files
    # Pictures that no client takes stop nobody.
    return [
        *found,
        *(replace(f, severity="warning") if f.severity == "error" else f for f in files),
    ]


def _read(section: DataSection) -> list[Finding]:
    from fedbn.core.federation import Finding
    from fedbn.data.checks import examine
    from fedbn.errors import DataError
    from fedbn.experiments.sources import data_name, load_federation

    try:
        return examine(load_federation(section))
    except DataError as error:
        return [Finding("error", "", data_name(section)[0], str(error))]


def _is_remark(finding: Finding) -> bool:
    """Tell whether it is about all of the data, as a run would say it."""
    return finding.severity == "note" and not finding.site


def _stopped(found: list[Finding]) -> bool:
    return any(finding.severity == "error" for finding in found)
