"""What the commands about data have in common: which data is meant, and plain tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from fedbn.cli.output import printable, stdout_console

if TYPE_CHECKING:
    from fedbn.core.federation import Client
    from fedbn.experiments.schema import DataSection


SETTING = "An option of the data set, as `fedbn run` takes it; data. may be left out."


def section_of(data: str, settings: Sequence[str] | None) -> DataSection:
    """Understand a data set's name or a path, and `--set key=value`.

    A registered name is that data set, even where a folder of that name lies here: `./digits` is
    the folder.
    """
    import fedbn.datasets
    from fedbn import registry
    from fedbn.experiments import configuration

    named = data in registry.names(fedbn.datasets) or not configuration.looks_like_path(data)
    dotted = [s if s.startswith("data.") else f"data.{s}" for s in settings or ()]
    flags = {"data.name" if named else "data.path": data}
    raw = configuration.request(None, flags, dotted, "--set")
    return configuration.checked(raw, "--set").data


def say(text: str) -> None:
    """Print a message on stderr, on one line."""
    print(printable(text), file=sys.stderr, flush=True)


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], numbers: bool = False
) -> None:
    """Print a table on stdout; names may hold anything.

    Args:
        titles: Of the columns.
        rows: A row a line.
        numbers: Whether all columns but the first are numbers, put to the right.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        side: Literal["right", "left"] = "right" if numbers and place else "left"
        table.add_column(Text(printable(title)), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    stdout_console().print(table)


def subjects(client: Client) -> list[int]:
    """Count the groups of samples, in training and in test; empty where there are none."""
    splits = (client.train, client.tests[client.domain])
    return [len(split.groups.unique()) for split in splits if split.groups is not None]
