"""Values that a shell completes: methods, models, data sets, run folders, clients and items.

Completion runs at every press of the Tab key, so nothing here imports torch. The functions return
an empty list where they know nothing. The shell then completes file names.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from fedbn import registry
from fedbn.errors import FedbnError
from fedbn.experiments import configuration

Completions = list[tuple[str, str]]

# zsh evaluates the text that a completion prints, and bash splits it. A run folder may come from
# somebody else, so a name that a shell would have to quote is not offered.
_PLAIN = re.compile(r"[\w./+@%,-]+")


def methods(incomplete: str) -> Completions:
    """Return the registered methods; after a `+`, the parts that can be added."""
    return _methods(incomplete, registry.described("fedbn.methods"))


def methods_of_run(context: typer.Context, incomplete: str) -> Completions:
    """Return the methods of the run folder that was typed, or all where none was typed."""
    names = [name for run in _runs(context) for name in _list(_configuration(run), "methods")]
    return _matching(incomplete, dict.fromkeys(names, "")) if names else methods(incomplete)


def listed_methods_of_run(context: typer.Context, incomplete: str) -> Completions:
    """Like `methods_of_run`, for an option that takes several methods with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    chosen = before.split(",")
    names = [name for run in _runs(context) for name in _list(_configuration(run), "methods")]
    rest = {f"{before}{comma}{name}": "" for name in names if name not in chosen}
    return _matching(f"{before}{comma}{last}", rest)


def models(incomplete: str) -> Completions:
    """Return the registered models."""
    return _matching(incomplete, registry.described("fedbn.models"))


def data_sets(incomplete: str) -> Completions:
    """Return the registered data sets."""
    return _matching(incomplete, registry.described("fedbn.datasets"))


def experiments(incomplete: str) -> Completions:
    """Return the experiments that come with the package."""
    return _matching(incomplete, configuration.experiments())


def items(incomplete: str) -> Completions:
    """Return the items of `fedbn reproduce --list`."""
    folder = configuration.folder()
    found = {
        name: title
        for name, title in configuration.experiments().items()
        if "reproduce" in _toml(folder / f"{name}.toml")
    }
    return _matching(incomplete, {**found, "all": "Every item."})


def runs(incomplete: str) -> Completions:
    """Return run folders: those next to what was typed, and those below `runs`."""
    typed = Path(incomplete if incomplete.endswith("/") else f"{incomplete}x").parent
    found = {
        str(file.parent): ""
        for folder in dict.fromkeys([typed, Path("runs")])
        for file in _sorted(folder, "*/config.toml")
    }
    return _matching(incomplete, found)


def clients(context: typer.Context, incomplete: str) -> Completions:
    """Return the clients of the run folder that was typed, and the sites adapted to it."""
    found: dict[str, str] = {}
    for run in _runs(context):
        found |= dict.fromkeys(_mapping(_environment(run), "data"), "a client of the run")
        adapted = _sorted(run, "adapted/*/*/*/*/manifest.json")
        found |= {file.parent.name: "an adapted site" for file in adapted}
    return _matching(incomplete, found)


def parts_of_methods() -> dict[str, str]:
    """Return what may be added to a method, with one line about each.

    These are the names of the table `fedbn.methods.PARTS`. Its source is read and not imported.
    """
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


def _methods(incomplete: str, known: Mapping[str, str]) -> Completions:
    before, plus, _ = incomplete.rpartition("+")
    names = {**known, **parts_of_methods()} if plus else known
    return _matching(incomplete, {f"{before}{plus}{name}": text for name, text in names.items()})


def _matching(incomplete: str, texts: Mapping[str, str]) -> Completions:
    return [
        (name, text)
        for name, text in texts.items()
        if name.startswith(incomplete) and _PLAIN.fullmatch(name)
    ]


def _runs(context: typer.Context) -> list[Path]:
    """Return the run folders among the words that were typed.

    The parser stops at an option whose value is being completed. It has then assigned nothing, and
    the words before that option are in `context.args`.
    """
    given = context.params.get("run") or context.params.get("runs") or context.args
    return [Path(run) for run in (given if isinstance(given, list | tuple) else [given])]


def _sorted(folder: Path, pattern: str) -> Iterable[Path]:
    with suppress(OSError, ValueError):
        return sorted(folder.glob(pattern))
    return []


def _configuration(run: Path) -> Mapping[str, Any]:
    return _toml(run / "config.toml")


def _toml(file: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, FedbnError):
        return tomllib.loads(file.read_text(encoding="utf-8"))
    return {}


def _environment(run: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _list(found: Mapping[str, Any], key: str) -> list[str]:
    value = found.get(key)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _mapping(found: Mapping[str, Any], key: str) -> list[str]:
    value = found.get(key)
    return list(value) if isinstance(value, dict) else []
