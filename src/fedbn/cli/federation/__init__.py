"""`fedbn federation`: the same methods where sites are separate machines."""

from __future__ import annotations

import typer

from fedbn.cli.federation import add_site, check, demo, init, join, run, server, status

group = typer.Typer(
    name="federation",
    help="Sites on separate machines, over Flower: keys, TLS, runs that survive.",
    no_args_is_help=True,
    epilog="First: fedbn federation demo   ·   then: init, server, join at each site, run.",
)


for module in (init, server, join, check, run, status, add_site, demo):
    module.add_to(group)


def add_to(app: typer.Typer) -> None:
    """Register the group of commands."""
    app.add_typer(group)
