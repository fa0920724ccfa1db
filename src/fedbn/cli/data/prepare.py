"""`fedbn data prepare`: get a data set's files and bring them into the form that training reads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.data._common import SETTING, print_table, say, section_of, subjects
from fedbn.cli.output import emit

if TYPE_CHECKING:
    from fedbn.core.federation import Federation


_EXAMPLES = """[bold]Examples[/bold]

fedbn data prepare digits                    downloads MNIST, SVHN and USPS

fedbn data prepare digits --from ~/Downloads       takes over what you have

fedbn data prepare digits --set domains='["mnist","usps"]'

fedbn data prepare synth_digits              renders them once, keeps them"""


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog=_EXAMPLES)(prepare)


def prepare(
    name: Annotated[str, typer.Argument(help="A data set's name from `fedbn data ls`.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Take files from here; download nothing."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SETTING)
    ] = None,
) -> None:
    """Get a data set's files, check them, read them once and keep what was prepared.

    Files go to the folder that FEDBN_DATA names.
    Where nothing can be downloaded, a line says what to get and where to put it.
    """
    from fedbn.cli.data._downloading import make_listener
    from fedbn.data.preparation import provide
    from fedbn.datasets import info_of
    from fedbn.experiments.sources import load_federation

    _refuse_own(name)
    section = section_of(name, set_)
    begun = time.monotonic()
    if ":" not in name:
        provide(name, info_of(name), section.options, source, make_listener())
    got = time.monotonic()
    federation = load_federation(section)
    _print(federation, got - begun, time.monotonic() - got)


def _refuse_own(name: str) -> None:
    import fedbn.datasets
    from fedbn import registry
    from fedbn.datasets import info_of
    from fedbn.errors import ConfigError, unknown

    def needs_a_path(known: str) -> bool:
        return info_of(known).source == "data.path"

    names = registry.names(fedbn.datasets)
    if ":" not in name and (name not in names or needs_a_path(name)):
        legal = [known for known in names if not needs_a_path(known)]
        more = "; your own data needs no preparing, try `fedbn data check PATH`"
        raise ConfigError(unknown("data set", name, legal) + more)


def _print(federation: Federation, getting: float, reading: float) -> None:
    for remark in federation.remarks:
        say(remark)
    counted = [subjects(client) for client in federation.clients]
    more = ["subjects", "test subjects"] if any(counted) else []
    rows = (
        [client.name, len(client.train), len(client.tests[client.domain]), *counts]
        for client, counts in zip(federation.clients, counted, strict=True)
    )
    print_table([federation.name, "training", "test", *more], rows, numbers=True)
    shape = "×".join(map(str, federation.input_shape))
    emit(
        f"\n{len(federation.clients)} client(s), {len(federation.classes)} classes, samples of "
        f"{shape}; {getting:.1f} s to get, {reading:.1f} s to read"
    )
