"""What the commands about federations have in common."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbn.cli.output import printable

if TYPE_CHECKING:
    from fedbn.flower.federation_folder import FederationFolder


Fed = Annotated[Path, typer.Argument(metavar="FED", help="The federation's folder.")]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration."),
]


def folder_of(path: Path) -> FederationFolder:
    """The federation's folder, as an object."""
    require()
    from fedbn.flower.federation_folder import FederationFolder

    return FederationFolder(path.resolve())


def require() -> None:
    """Refuse to go on without Flower."""
    from fedbn.flower import require_flower

    require_flower()


def experiment_of(name: str, settings: list[str] | None) -> tuple[Path, dict[str, Any]]:
    """Find an experiment; gives its file and what it says, with absolute paths."""
    from fedbn.experiments import configuration

    file = configuration.find(name)
    raw = configuration.with_settings(configuration.read_toml(file), settings or [])
    return file, configuration.with_absolute_paths(raw)


def data_section(data: str) -> dict[str, str]:
    """Understand a site's data: a path, or a data set's name."""
    from fedbn.experiments.configuration import looks_like_path

    return {"path": str(Path(data).resolve())} if looks_like_path(data) else {"name": data}


def say(text: str) -> None:
    """Print a message on stderr, on one line."""
    print(printable(text), file=sys.stderr, flush=True)
