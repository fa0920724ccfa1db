"""`fedbn federation join`: be a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbn.cli.federation._common import data_section, require, say
from fedbn.cli.options import Trust


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog="Example: fedbn federation join nyu.fedbn --data my_data/")(join)


def join(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="This site's bundle.")],
    data: Annotated[str, typer.Option(help="A data set's name, or the path of the site's data.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps BatchNorm. [default: beside BUNDLE]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, at this site. [default: as the experiment]")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="This site's copy of the experiment's model.weights.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to try to reach the server.")] = 60.0,
    trust: Trust = None,
    release_affine: Annotated[
        bool, typer.Option("--release-affine", help="Give BatchNorm's affine away at the end.")
    ] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Be a site, until Ctrl-C: train when the server asks; data and BatchNorm stay here."""
    require()
    from fedbn.cli.stopping import Stopper
    from fedbn.flower import preflight, site_app
    from fedbn.flower.credentials import read_bundle
    from fedbn.flower.site_job import SiteOptions

    given = read_bundle(bundle)
    fine, text = preflight.private(bundle)
    if not fine:
        say(f"warning: {text}")
    home = (folder or bundle.resolve().with_suffix("")).resolve()
    options = SiteOptions(
        given.site,
        data_section(data),
        home / "local",
        given.federation,
        release_affine=release_affine,
        device=device,
        weights=weights,
    )
    _follow(parent)
    with Stopper() as stop:
        site_app.join(given, options, home, wait=wait, stop=stop, say=say)


def _follow(parent: int | None) -> None:
    """End with the process that started this one, however that one ends."""
    if parent is not None:
        from fedbn.flower.internals_node import follow

        follow(parent)
