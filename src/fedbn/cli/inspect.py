"""`fedbn inspect` and `fedbn audit`: what a model is made of, and which method a project runs."""

from __future__ import annotations

import json as codec
from dataclasses import asdict
from math import prod
from typing import Annotated, Any

import torch
import typer
from rich.text import Text
from torch import nn

import fedbn.datasets
import fedbn.methods
import fedbn.models
from fedbn import exchange_audit, registry
from fedbn.cli import completion, console
from fedbn.cli.console import Json, emit, print_table, print_text
from fedbn.core.federation import Federation, blank_client
from fedbn.core.method import Method
from fedbn.core.pass_tracing import mark
from fedbn.core.plan import materialize, settled
from fedbn.core.rule import Place
from fedbn.core.state import Entry, entries
from fedbn.errors import ConfigError
from fedbn.experiments.schema import ModelSection
from fedbn.experiments.sources import model_builder
from fedbn.methods import parse_method

app = console.commands()

Shape = Annotated[str | None, typer.Option("--input", metavar="C,H,W", help="Shape of one sample.")]
Classes = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Number of classes.")]


@app.command(
    epilog="Examples: fedbn inspect digit_cnn   ·   "
    "fedbn inspect my_module:Net --method silobn --input 1,64,64 --classes 2 --json"
)
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name, or module:callable.", autocompletion=completion.models
        ),
    ],
    method: Annotated[
        str, typer.Option(help="The method.", autocompletion=completion.methods)
    ] = "fedbn",
    input_: Shape = None,
    classes: Classes = None,
    json: Json = False,
) -> None:
    """Show every entry of a model: its kind, its size, and whether the method shares it."""
    built, some = _built(model, input_, classes)
    chosen, found = settled(parse_method(method), built, some), entries(built)
    if chosen.baseline is not None:
        raise ConfigError(f"--method {method}: a baseline has no network, so no entries to inspect")
    chosen.check(found)
    if json:
        emit(codec.dumps(_as_json(model, chosen, found), indent=2))
    else:
        _print_table(chosen, found)


@app.command(
    epilog="Example: fedbn audit my_code:Net --get my_code:get_weights --set my_code:set_weights"
)
def audit(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name, or module:callable.", autocompletion=completion.models
        ),
    ],
    get: Annotated[str, typer.Option(help="module:callable; of a model what leaves the client.")],
    set_: Annotated[str, typer.Option("--set", help="module:callable; takes that into a model.")],
    input_: Shape = None,
    classes: Classes = None,
    json: Json = False,
) -> None:
    """Say which method a project really runs: what leaves, what is overwritten, what is kept."""
    for name in (get, set_):
        if ":" not in name:
            raise ConfigError(f"function {name!r}: expected module:callable")
    given, taken = (
        registry.find(fedbn.methods, name, "function", registry.TYPED) for name in (get, set_)
    )
    sizes = _built(model, input_, classes)[1].input_shape
    inputs = torch.randn(4, *sizes, generator=torch.Generator().manual_seed(0))
    found = exchange_audit.audit(
        lambda: _built(model, input_, classes)[0], given, taken, inputs=inputs
    )
    if json:
        facts = {"method": found.method, "nearest": found.nearest}
        lists = {"missed": found.missed, "extra": found.extra}
        emit(codec.dumps({**facts, **lists, "entries": [*map(asdict, found.entries)]}, indent=2))
        return
    rows = [
        [
            entry.name,
            entry.kind,
            "leaves" if entry.leaves else "stays",
            "overwritten" if entry.overwritten else Text("kept", "bold"),
            *(["missed"] if entry.name in found.missed else []),
            *(["extra"] if entry.name in found.extra else []),
        ]
        for entry in found.entries
    ]
    print_table(["entry", "kind", "sent", "received", "for FedBN"], rows)
    emit()
    print_text(repr(found))


def _built(name: str, shape: str | None, classes: int | None) -> tuple[nn.Module, Federation]:
    known = name in registry.names(fedbn.models)
    example = (registry.facts(fedbn.models, name, "EXAMPLE") if known else None) or {}
    sizes = _shape(shape) if shape else example.get("input_shape", (3, 28, 28))
    count = classes or example.get("classes", 10)
    some = Federation("example", (blank_client("a", "a", sizes),), ("?",) * count)
    section = ModelSection.model_validate({"name": name}, context=registry.TYPED)
    model = model_builder(section, some)()
    materialize(model, some)
    mark(model, some.clients[0].train.batch(slice(0, 2))[0])
    return model, some


def _shape(text: str) -> tuple[int, ...]:
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
            for entry in (*found, *_of_rules(method, found))
        ],
        "totals": _totals(method, found),
        "remarks": method.remarks(found),
    }


def _of_rules(method: Method, found: tuple[Entry, ...]) -> dict[Entry, Place]:
    places: tuple[Place, ...] = ("shared", "local", "server")
    return {entry: place for place in places for entry in method.remembered(found, place)}


def _totals(method: Method, found: tuple[Entry, ...]) -> dict[str, int | float]:
    shared, local = method.shared(found), method.local(found)
    whole = sum(e.bytes for e in found)
    return {
        "entries": len(found),
        "trainable_parameters": sum(prod(e.shape) for e in found if e.trainable and not e.alias_of),
        "shared_entries": len(shared),
        "shared_bytes": sum(e.bytes for e in shared),
        "local_entries": len(local),
        "local_bytes": sum(e.bytes for e in local),
        "bytes_a_round_and_client": 2 * sum(e.bytes for e in shared),
        "of_fedavg": sum(e.bytes for e in shared) / whole if whole else 0.0,
    }


def _print_table(method: Method, found: tuple[Entry, ...]) -> None:
    shared, remembered = set(method.shared(found)), _of_rules(method, found)
    rows = [
        [
            entry.name,
            entry.kind,
            "×".join(map(str, entry.shape)) or "1",
            f"= {entry.alias_of}" if entry.alias_of else f"{entry.bytes:,}",
            "shared" if entry in shared else Text(remembered.get(entry, "local"), "bold"),
        ]
        for entry in (*found, *remembered)
    ]
    print_table(["entry", "kind", "shape", "bytes", method.name], rows, numbers=(3,))
    totals = _totals(method, found)
    emit()
    print_text(
        f"{totals['trainable_parameters']:,} trainable parameters. {method.name} shares "
        f"{totals['shared_entries']} entries ({totals['shared_bytes']:,} bytes) and keeps "
        f"{totals['local_entries']} local ({totals['local_bytes']:,} bytes): "
        f"{totals['bytes_a_round_and_client']:,} bytes a round and client, down and up, "
        f"{totals['of_fedavg']:.3g} times FedAvg's."
    )
    print_text(*method.remarks(found))
