"""`fedbn federation add-site`: one site more, also while a run is under way."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbn.cli.federation._common import Fed, folder_of
from fedbn.cli.output import emit


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("add-site", epilog="Example: fedbn federation add-site FED mgh")(add_site)


def add_site(fed: Fed, site: Annotated[str, typer.Argument(help="The new site's name.")]) -> None:
    """Add a site; a run that is under way takes it in at its next round."""
    folder = folder_of(fed)
    from fedbn.flower import server_app
    from fedbn.flower.internals_server import set_environment

    set_environment(folder)
    emit(f"{server_app.add_site(folder, site)}: hand this to {site}, then delete it here")
