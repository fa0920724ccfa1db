"""`fedbn data show`: a picture of the data, counts, and how far clients are apart."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbn.cli.data._common import SETTING, print_table, say, section_of, subjects
from fedbn.cli.output import emit

if TYPE_CHECKING:
    from fedbn.core.federation import Federation


_EXAMPLES = """[bold]Examples[/bold]

fedbn data show digits_mini                  draws data-digits_mini.png

fedbn data show digits --set percent=1 --out digits.svg

fedbn data show my_pictures/ --set size=64

fedbn data show patients.csv --set label=outcome --set site=hospital --json"""


_WIDE = 20
_DRAWN = (".png", ".svg")


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog=_EXAMPLES)(show)


def show(
    data: Annotated[str, typer.Argument(help="A data set's name, or the path of your own data.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The picture, .png or .svg; data-NAME.png unless given."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SETTING)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; draw only where --out is given.")
    ] = False,
) -> None:
    """Draw examples and histograms of every client; print counts and distances.

    Distance 0 means alike; 1, as far apart as samples are from the mean of all.
    The diagonal compares two halves of one client: what chance alone gives.
    """
    from fedbn.data.survey import survey
    from fedbn.experiments.sources import data_name, load_federation

    _check_suffix(out)
    section = section_of(data, set_)
    sentence = data_name(section)[1]
    if sentence:
        say(sentence)
    federation = load_federation(section)
    found = survey(federation)
    if out or not json:
        _draw(found, out or Path(f"data-{_file_name(federation.name)}.png"))
    if json:
        _print_json(found)
    else:
        _print(found, federation)


def _check_suffix(out: Path | None) -> None:
    from fedbn.errors import ConfigError

    if out is not None and out.suffix.lower() not in _DRAWN:
        raise ConfigError(f"--out {out}: legal are names that end in {' or '.join(_DRAWN)}")


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def _draw(found: dict[str, Any], file: Path) -> None:
    from fedbn.errors import ConfigError
    from fedbn.results.data_figure import draw_data

    try:
        draw_data(found, file)
    except OSError as error:
        raise ConfigError(f"--out {file}: cannot be written ({error.strerror})") from error
    say(f"picture: {file}")


def _print_json(found: dict[str, Any]) -> None:
    import json

    plain = {key: value for key, value in found.items() if key != "examples"}
    plain["distances"] = [[None if math.isnan(d) else d for d in r] for r in found["distances"]]
    emit(json.dumps(plain, indent=2))


def _print(found: dict[str, Any], federation: Federation) -> None:
    for remark in found["remarks"]:
        say(remark)
    for part, title in (("train", "training samples"), ("test", "test samples")):
        _print_counts(title, found["clients"], found["classes"], found[part])
        emit()
    counted = {client.name: subjects(client) for client in federation.clients}
    if any(counted.values()):
        rows = ([name, *counts] for name, counts in counted.items())
        print_table(["subjects", "training", "test"], rows, numbers=True)
        emit()
    apart = [
        [name, *(f"{d:.2f}" for d in row)]
        for name, row in zip(found["clients"], found["distances"], strict=True)
    ]
    print_table(["Fréchet distance", *found["clients"]], apart, numbers=True)


def _print_counts(
    title: str, clients: list[str], classes: list[str], counts: list[list[int]]
) -> None:
    """Print a row a client; or a row a class, where there are many."""
    if len(classes) <= _WIDE:
        rows = [[name, *row, sum(row)] for name, row in zip(clients, counts, strict=True)]
        print_table([title, *classes, "all"], rows, numbers=True)
        return
    columns = zip(*counts, strict=True)
    by_class = [[name, *column] for name, column in zip(classes, columns, strict=True)]
    total = ["all", *map(sum, counts)]
    print_table([title, *clients], [*by_class, total], numbers=True)
