"""`fedbn export`: a client's model as a file that runs without fedbn."""

from __future__ import annotations

import json as codec
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from fedbn.cli import console
from fedbn.cli.console import emit, say
from fedbn.text import shown
from fedbn.trained.export import export as exported
from fedbn.trained.opening import open_run

app = console.commands()

_EXAMPLES = console.examples(
    "fedbn export runs/first --client photo",
    "fedbn export runs/first --client photo --format onnx --out photo.onnx",
    "fedbn export runs/first --client photo --method fedavg --seed 1 --fold-bn",
)


@app.command(epilog=_EXAMPLES)
def export(
    run: console.Run,
    client: Annotated[
        str, typer.Option(help="Whose model: a training client's or an adapted site's.")
    ],
    form: Annotated[
        Literal["safetensors", "onnx", "torch-export"],
        typer.Option("--format", help="safetensors (weights), onnx or torch-export (whole)."),
    ] = "safetensors",
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Fold BatchNorm into the layers before it.")
    ] = False,
    out: Annotated[
        str | None,  # not a Path, which would lose the slash at the end of a new folder
        typer.Option(metavar="PATH", help="The file, or a folder/; RUN/exports unless given."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    method: console.Method = None,
    seed: console.Seed = None,
    setting: console.Setting = None,
    trust: console.Trust = None,
    json: console.Json = False,
) -> None:
    """Write a client's model as a file that runs without fedbn, checked, with a model card."""
    trained = open_run(run, method=method, seed=seed, setting=setting, notes=say)
    found = exported(trained, client, form, out=out, fold_bn=fold_bn, force=force)
    if json:
        plain = {**asdict(found), "file": str(found.file), "card": str(found.card)}
        emit(codec.dumps(plain, indent=2, ensure_ascii=False))
        return
    checked = found.agreement
    folded = ", ".join(f"{norm} into {layer}" for norm, layer in found.folded.items())
    text = (
        f"wrote {found.file} ({found.bytes:,} bytes) and {found.card.name}; on {checked.samples} "
        f"{checked.inputs} its outputs are within {checked.worst:.2g} of the model's"
    )
    emit(shown(text + (f"; folded: {folded}" if folded else "")))
