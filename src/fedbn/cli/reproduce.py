"""`fedbn reproduce`: the paper's tables and figures, one name each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbn.cli.options import Trust, Workers

_EXAMPLES = """[bold]Examples[/bold]

fedbn reproduce --list

fedbn reproduce digits-methods --scale quick

fedbn reproduce abide --scale paper --workers 2        interrupted? the same command goes on

fedbn reproduce office --from runs/my-run              shows a run of your own, trains nothing

fedbn reproduce all --scale quick --out reproduction/"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=_EXAMPLES)(reproduce)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="An item of --list, FILE.toml with [reproduce], or all.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Name all items: place, needs, cost.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="quick (minutes, settings cut) or paper (the paper's settings).")
    ] = "quick",
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Show this run; train nothing.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for what comes out; with all, the one above.")
    ] = None,
    workers: Workers = None,
    trust: Trust = None,
) -> None:
    """Get a table or figure of the paper, with the paper's numbers beside ours."""
    from fedbn.cli import reproducing
    from fedbn.errors import ConfigError

    if list_:
        reproducing.print_list()
    elif name is None:
        raise ConfigError("reproduce: no item; `fedbn reproduce --list` names them")
    else:
        order = reproducing.Order(scale, seed or [], set_ or [], from_, out, workers or 0)
        reproducing.reproduce_all(name, order)
