"""`fedbn federation run`: start a run, or continue it."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbn.cli.federation._common import Fed, Settings, experiment_of, folder_of


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog="Example: fedbn federation run FED my_experiment.toml")(run)


def run(
    fed: Fed,
    experiment: Annotated[str, typer.Argument(help="FILE.toml, or a name from `fedbn ls`.")],
    settings: Settings = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; the same again continues it.")
    ] = None,
    min_sites: Annotated[
        int | None, typer.Option(help="How many sites must be here to begin. [default: all]")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for sites.")] = 300.0,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds a round may take.")] = 3600.0,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Start a run, or continue it after a stop or a crash."""
    folder = folder_of(fed)
    from fedbn.cli.federation._running import Running
    from fedbn.flower.messaging import Limits

    file, raw = experiment_of(experiment, settings)
    limits = Limits(wait=wait, round=deadline)
    Running(folder, raw, name or file.stem, str(file), limits, min_sites).go(json)
