"""`fedbn federation init`: keys, certificates, one file a site."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbn.cli.federation._common import Fed, folder_of, say
from fedbn.cli.output import emit

_STEPS = """# This federation, step by step

1. Hand each file of `bundles/` to its site, by a way you trust, then delete it here.
2. Here: `fedbn federation check {fed}`, then `fedbn federation server {fed}` (port {port}, TCP).
3. At each site: `pip install 'fedbn[flower]'`, then
   `fedbn federation check SITE.fedbn --data PATH`, then
   `fedbn federation join SITE.fedbn --data PATH`.
4. Here: `fedbn federation check {fed} --experiment EXPERIMENT.toml` asks every site that is
   connected for its model, classes and versions, and compares them.
5. Here: `fedbn federation run {fed} EXPERIMENT.toml`. The same command continues a run.

`ca.key`, `server.key`, `operator.secret` and the bundles are private; whoever has
`operator.secret` may start runs. Keep a copy of `ca.key` elsewhere: without it the server's
certificate cannot be renewed.
"""


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    example = "Example: fedbn federation init FED --sites nyu,usm --host server.example"
    group.command(epilog=example)(init)


def init(
    fed: Fed,
    sites: Annotated[str, typer.Option(help="The sites' names, as nyu,usm,um.")],
    host: Annotated[str, typer.Option(help="The server's name or address, as sites reach it.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 9092,
) -> None:
    """Make a federation: authority, certificate, one key and one bundle a site."""
    folder = folder_of(fed)
    names = [name.strip() for name in sites.split(",") if name.strip()]
    folder.create(fed.resolve().name, names, host, port)
    (fed / "README.md").write_text(_STEPS.format(fed=fed, port=port), encoding="utf-8")
    for site in names:
        emit(f"{folder.bundle(site)}: hand this to {site}, then delete it here")
    say(f"next: fedbn federation server {fed}")
