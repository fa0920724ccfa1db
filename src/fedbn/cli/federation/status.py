"""`fedbn federation status`: who is connected, and how far runs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fedbn.cli.federation._common import Fed, folder_of
from fedbn.cli.output import emit

if TYPE_CHECKING:
    from fedbn.flower.federation_folder import FederationFolder


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog="Example: fedbn federation status FED")(status)


def status(fed: Fed) -> None:
    """Show which sites are connected, and how far each run is."""
    folder = folder_of(fed)
    info = folder.read()
    up, connected = _connected(folder)
    emit(f"server: {'up' if up else 'not up'}, port {info.port}")
    for site in info.sites:
        emit(f"site {site}: {'connected' if site in connected else 'not connected'}")
    _print_runs(folder)


def _connected(folder: FederationFolder) -> tuple[bool, set[str | None]]:
    """Whether the server is up, and the sites whose nodes gave a sign of life."""
    import time

    from fedbn.flower.internals_server import Control, set_environment

    set_environment(folder)
    keys = folder.keys()
    with Control(folder) as control:
        up = control.reachable()
        nodes = control.nodes() if up else []
    return up, {keys.get(n.public_key) for n in nodes if n.online_until > time.time()}


def _print_runs(folder: FederationFolder) -> None:
    from fedbn.runs import checkpoints

    for place in sorted(folder.runs.glob("*/checkpoints/*/*/seed-*")):
        name, _, method, setting, seed = place.relative_to(folder.runs).parts
        emit(f"run {name}: {method} {setting} {seed}: {checkpoints.whole_round(place)} rounds")
