"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1024,
        envvar="FEDBN_WORKERS",
        help="Cores to use, 0 for what the configuration says, or all; changes no result.",
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER", help="tensorboard, mlflow or module:callable; may be repeated."
    ),
]
