"""`fedbn data`: list, prepare, show and check data sets, and a user's own data."""

from __future__ import annotations

import typer

from fedbn.cli.data import check, ls, prepare, show


def _help(context: typer.Context) -> None:
    """Print the help where no command is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def add_to(app: typer.Typer) -> None:
    """Register the group of commands."""
    group = typer.Typer(
        name="data",
        invoke_without_command=True,
        callback=_help,
        help="List, prepare, show and check data: the paper's, and your own.",
        epilog="Examples: fedbn data ls   ·   fedbn data prepare digits   ·   "
        "fedbn data show digits_mini --out digits.png   ·   fedbn data check my_pictures/",
    )
    for module in (ls, prepare, show, check):
        module.add_to(group)
    app.add_typer(group)
