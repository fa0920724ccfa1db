"""`fedbn data ls`: which data sets there are, and which are here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from fedbn.cli.data._common import print_table, say
from fedbn.cli.output import emit


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command(epilog="Example: fedbn data ls   ·   fedbn data ls --json")(ls)


def ls(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """List data sets: clients, classes, shape, whether they are here, origin and licence."""
    import json as codec

    from fedbn.data.storage import data_root

    found = _found()
    if json:
        emit(codec.dumps({"root": str(data_root()), "data": found}, indent=2, ensure_ascii=False))
        return
    titles = ("name", "clients", "classes", "shape", "here", "from", "licence")
    print_table(titles, (_row(each) for each in found))
    say(f"Files are looked for in {data_root()}, or wherever FEDBN_DATA says.")
    say("`fedbn data prepare NAME` gets them; for your own data give a path in place of a name.")


def _found() -> list[dict[str, Any]]:
    import fedbn.datasets
    from fedbn import registry
    from fedbn.datasets import info_of

    infos = {name: info_of(name) for name in registry.names(fedbn.datasets)}
    return [
        {
            "name": name,
            **{key: value for key, value in asdict(info).items() if key != "benchmark"},
            "here": info.is_there() and info.is_installed(),
            "installed": info.is_installed(),
        }
        for name, info in infos.items()
    ]


def _row(facts: dict[str, Any]) -> list[object]:
    own = facts["source"] == "data.path"
    here = "yours" if own else "yes" if facts["here"] else "no"
    if not facts["installed"]:
        here = f"needs fedbn[{facts['extra']}]"
    source = "your own files" if own else facts["source"]
    classes = facts["classes"] or "any"
    return [
        facts["name"],
        facts["clients"],
        classes,
        facts["shape"],
        here,
        source,
        facts["licence"],
    ]
