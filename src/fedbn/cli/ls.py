"""`fedbn ls`: what there is to choose from, read from the sources, because torch takes seconds."""

from __future__ import annotations

import ast
import json as codec

from fedbn import registry
from fedbn.cli import console
from fedbn.cli.console import Json, emit, print_table, print_text
from fedbn.experiments.configuration import experiments

app = console.commands()


@app.command(epilog="Example: fedbn ls   ·   fedbn ls --json")
def ls(json: Json = False) -> None:
    """List methods, parts of methods, models, data sets and experiments."""
    found = {
        "methods": _methods(),
        "parts, as in fedbn+prox(0.1)": _parts(),
        "models": registry.described("fedbn.models"),
        "data sets": registry.described("fedbn.datasets"),
        "experiments": experiments(),
    }
    if json:
        emit(codec.dumps(found, indent=2))
        return
    for kind, names in found.items():
        print_table((kind, ""), names.items())
        emit()
    print_text(
        "Methods add up: fedbn+scaffold. Your own method, model or data set: module:callable"
    )


def _methods() -> dict[str, str]:
    """What each method is, what it shares and what is remembered for it."""
    about = registry.said("fedbn.methods", "ABOUT")
    return {
        name: text
        if name not in about
        else f"{text} Shared: {about[name][0]}. Remembered: {about[name][1]}."
        for name, text in registry.described("fedbn.methods").items()
    }


def _parts() -> dict[str, str]:
    """What may be added to a method: the table `PARTS`, whose functions are imported there."""
    homes: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in registry.source("fedbn.methods").body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant)
                above, _, function = ast.unparse(value).rpartition(".")
                home = f"{homes[above]}.{above}" if above else homes[function]
                found[str(key.value)] = registry.first_lines(home)[function]
    return found
