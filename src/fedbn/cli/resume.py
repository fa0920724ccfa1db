"""`fedbn resume`: go on with a run that was stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedbn.cli.options import Log, Trust, Workers


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example: fedbn resume runs/run-20260101-120000")(resume)


def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    workers: Workers = None,
    log: Log = None,
    trust: Trust = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Continue a run after Ctrl-C, a reboot or a crash; the result is as if nothing happened."""
    from fedbn.cli.launching import launch
    from fedbn.experiments.configuration import held_experiment
    from fedbn.runs.folder import RunFolder

    folder = RunFolder(run)
    experiment = held_experiment(folder)
    if not launch(folder, experiment, as_json=json, workers=workers or 0, log=log or []):
        print(f"{folder.path} was finished already; nothing to do", file=sys.stderr)
