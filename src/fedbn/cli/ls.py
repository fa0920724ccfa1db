"""`fedbn ls`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbn.cli.output import emit


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example: fedbn ls   ·   fedbn ls --json")(ls)


def ls(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """List methods, parts of methods, models, data sets and experiments."""
    import json as codec

    found = _found()
    if json:
        emit(codec.dumps(found, indent=2))
        return
    for kind, entries in found.items():
        emit(f"{kind}:")
        for name, text in entries.items():
            emit(f"  {name:18} {text}")
    emit("\nYour own method, model or data set: module:callable")


def _found() -> dict[str, dict[str, str]]:
    import fedbn.datasets
    import fedbn.methods
    import fedbn.models
    from fedbn import registry
    from fedbn.experiments.configuration import experiments
    from fedbn.methods import PARTS

    def told(package: object, what: str) -> dict[str, str]:
        names = registry.names(package)  # type: ignore[arg-type]
        return {n: _first_line(registry.find(package, n, what)) for n in names}  # type: ignore[arg-type]

    return {
        "methods": told(fedbn.methods, "method"),
        "parts, as in fedbn+prox(0.1)": {n: _first_line(part) for n, part in PARTS.items()},
        "models": told(fedbn.models, "model"),
        "data sets": told(fedbn.datasets, "data set"),
        "experiments": experiments(),
    }


def _first_line(function: object) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]
