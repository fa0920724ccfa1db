"""`fedbn inspect`: what a method exchanges of a model, entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbn.cli.output import emit, stdout_console

if TYPE_CHECKING:
    from torch import nn

    from fedbn.core.method import Method
    from fedbn.core.state import Entry


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog="Examples: fedbn inspect digit_cnn   ·   "
        "fedbn inspect my_module:Net --method silobn --input 1,64,64 --classes 2 --json"
    )(inspect)


def inspect(
    model: Annotated[str, typer.Argument(help="A model's name, or module:callable.")],
    method: Annotated[str, typer.Option(help="The method.")] = "fedbn",
    input_: Annotated[
        str | None, typer.Option("--input", metavar="C,H,W", help="Shape of one sample.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Number of classes.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """Show every entry of a model: its kind, its size, and whether the method shares it."""
    from fedbn.core.state import entries
    from fedbn.methods import parse_method

    chosen = parse_method(method)
    found = entries(_built(model, input_, classes))
    chosen.check(found)
    if json:
        import json as codec

        emit(codec.dumps(_as_json(model, chosen, found), indent=2))
    else:
        _print_table(chosen, found)


def _built(name: str, shape: str | None, classes: int | None) -> nn.Module:
    import torch

    import fedbn.models
    from fedbn import registry
    from fedbn.core.federation import Client, Federation, Split
    from fedbn.core.plan import materialize
    from fedbn.experiments.schema import ModelSection
    from fedbn.experiments.sources import model_builder

    known = name in registry.names(fedbn.models)
    example = (registry.facts(fedbn.models, name, "EXAMPLE") if known else None) or {}
    sizes = _shape(shape) if shape else example.get("input_shape", (3, 28, 28))
    count = classes or example.get("classes", 10)
    blank = Split(torch.zeros(()).expand(2, *sizes), torch.zeros(2, dtype=torch.int64))
    some = Federation("example", (Client("a", "a", blank, {"a": blank}),), ("?",) * count)
    model = model_builder(ModelSection(name=name), some)()
    materialize(model, some)
    return model


def _shape(text: str) -> tuple[int, ...]:
    from fedbn.errors import ConfigError

    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(p.isdecimal() and len(p) < 7 and int(p) > 0 for p in parts) or len(parts) > 5:
        raise ConfigError(
            f"--input {text[:60]!r}: expected up to 5 whole numbers from 1 to 999999, as 3,28,28"
        )
    return tuple(int(part) for part in parts)


def _as_json(model: str, method: Method, found: tuple[Entry, ...]) -> dict[str, Any]:
    shared, local = method.shared(found), method.local(found)
    return {
        "model": model,
        "method": method.name,
        "shared": [entry.name for entry in shared],
        "local": [entry.name for entry in local],
        "entries": [
            {
                "name": entry.name,
                "kind": str(entry.kind),
                "shape": list(entry.shape),
                "dtype": str(entry.dtype).removeprefix("torch."),
                "bytes": entry.bytes,
                "shared": entry in shared,
                "alias_of": entry.alias_of,
            }
            for entry in found
        ],
        "totals": _totals(method, found),
        "remarks": method.remarks(found),
    }


def _totals(method: Method, found: tuple[Entry, ...]) -> dict[str, int]:
    from math import prod

    shared, local = method.shared(found), method.local(found)
    return {
        "entries": len(found),
        "trainable_parameters": sum(prod(e.shape) for e in found if e.trainable and not e.alias_of),
        "shared_entries": len(shared),
        "shared_bytes": sum(e.bytes for e in shared),
        "local_entries": len(local),
        "local_bytes": sum(e.bytes for e in local),
        "bytes_a_round_and_client": 2 * sum(e.bytes for e in shared),
    }


def _print_table(method: Method, found: tuple[Entry, ...]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("entry", "kind", "shape", "bytes", method.name):
        table.add_column(escape(title), justify="right" if title == "bytes" else "left")
    shared = set(method.shared(found))
    for entry in found:
        kept = "shared" if entry in shared else "[bold]local[/bold]"
        size = f"= {entry.alias_of}" if entry.alias_of else f"{entry.bytes:,}"
        shape = "×".join(map(str, entry.shape)) or "1"
        table.add_row(escape(entry.name), str(entry.kind), shape, escape(size), kept)
    console = stdout_console()
    console.print(table)
    totals = _totals(method, found)
    console.print(
        f"\n{totals['trainable_parameters']:,} trainable parameters. {method.name} shares "
        f"{totals['shared_entries']} entries ({totals['shared_bytes']:,} bytes) and keeps "
        f"{totals['local_entries']} local ({totals['local_bytes']:,} bytes): "
        f"{totals['bytes_a_round_and_client']:,} bytes a round and client, down and up."
    )
    for text in method.remarks(found):
        console.print(escape(text))
