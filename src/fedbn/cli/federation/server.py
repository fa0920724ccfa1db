"""`fedbn federation server`: what sites connect to."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbn.cli.federation._common import Fed, folder_of, say


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog="Example: fedbn federation server FED")(server)


def server(
    fed: Fed,
    bind: Annotated[str, typer.Option(help="The address to listen at.")] = "0.0.0.0",
) -> None:
    """Run the server that sites connect to, until Ctrl-C."""
    folder = folder_of(fed)
    from fedbn.cli.stopping import Stopper
    from fedbn.flower import server_app

    with Stopper() as stop, server_app.server(folder, bind) as child:
        info = folder.read()
        say(f"ready at port {info.port} for {', '.join(info.sites)}")
        server_app.watch(child, stop)
