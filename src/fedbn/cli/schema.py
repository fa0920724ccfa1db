"""`fedbn schema`: the configuration as a JSON schema."""

from __future__ import annotations

import typer

from fedbn.cli.output import emit


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example: fedbn schema > fedbn.schema.json")(schema)


def schema() -> None:
    """Print the JSON schema of the configuration, for editors and for reading."""
    import json

    from fedbn.experiments.schema import Experiment

    emit(json.dumps(Experiment.model_json_schema(), indent=2))
