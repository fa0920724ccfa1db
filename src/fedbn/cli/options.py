"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbn import registry

Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1024,
        envvar="FEDBN_WORKERS",
        help="Cores to use, 0 for what the configuration says, or all; changes no result.",
    ),
]


def _trust(modules: list[str] | None) -> list[str] | None:
    registry.trust(modules or ())
    return modules


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
