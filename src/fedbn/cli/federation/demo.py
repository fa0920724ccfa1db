"""`fedbn federation demo`: all of it on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedbn.cli.federation._common import require, say


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog="Example: fedbn federation demo")(demo)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the federation's folder here. [default: thrown away]")
    ] = None,
) -> None:
    """Show all of it on this machine: server, two sites, TLS, keys, three rounds of FedBN."""
    require()
    from fedbn.cli.federation._running import Running
    from fedbn.flower import server_app as example
    from fedbn.flower.messaging import Limits

    with tempfile.TemporaryDirectory(prefix="fedbn-") as temporary:
        folder = example.make(out or Path(temporary) / "fed")
        say(f"made a federation of {', '.join(example.SITES)} in {folder.path}")
        with example.running(folder):
            say("server and sites are up: TLS, one key a site, loopback only")
            limits = Limits(wait=120.0, round=300.0)
            Running(folder, example.RAW, "demo", "demo", limits).go(as_json=False)
