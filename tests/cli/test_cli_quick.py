"""Commands that need no torch do not wait for it: help, lists, mistyped flags."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

import fedbn.datasets
import fedbn.methods
import fedbn.models
from fedbn import registry
from fedbn.cli import main
from fedbn.methods import PARTS

COMMANDS = [(module, name) for group in main._COMMANDS.values() for name, module in group.items()]
SLOW = ("matplotlib", "numpy", "scipy", "sklearn", "torch")


def looks(command: Any) -> list[object]:
    """All that help, completion and the parser know of a command."""
    known = ("name", "opts", "secondary_opts", "required", "default", "nargs", "multiple")
    known += ("help", "metavar", "envvar")
    options = [
        (*(getattr(p, key, None) for key in known), type(p.type), getattr(p.type, "choices", None))
        for p in command.params
    ]
    return [command.name, command.help, command.epilog, *map(str, options)]


@pytest.mark.parametrize(("module", "name"), COMMANDS, ids=lambda part: part)
def test_the_outline_of_a_command_is_the_command(module: str, name: str) -> None:
    if module.startswith("federation"):
        pytest.importorskip("flwr")
    outlined = main._command(name, main.outline(f"fedbn.cli.{module}")["app"])
    real = main._command(name, importlib.import_module(f"fedbn.cli.{module}").app)
    assert looks(outlined) == looks(real)


PROBE = """
import sys
from fedbn.cli.main import main
sys.argv = ["fedbn", *sys.argv[1:]]
try:
    main()
finally:
    print(*sorted(set(sys.modules) & {slow}), file=sys.stderr)
"""


def probed(*arguments: str) -> tuple[int, str, list[str]]:
    """The exit code and output of a command in a new process, and what it imported."""
    code = PROBE.replace("{slow}", repr(set(SLOW)))
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr.splitlines()[-1].split()


def test_help_of_a_command_imports_nothing_slow() -> None:
    code, out, imported = probed("predict", "--help")
    assert (code, imported) == (0, [])
    assert "--client" in out


def test_a_mistyped_flag_is_refused_before_anything_slow_is_imported() -> None:
    assert probed("adapt", "run", "--dta", "x")[::2] == (2, [])


def test_what_there_is_is_listed_without_anything_slow() -> None:
    code, out, imported = probed("ls", "--json")
    assert (code, imported) == (0, [])
    found = json.loads(out)
    for kind, package in (
        ("methods", fedbn.methods),
        ("models", fedbn.models),
        ("data sets", fedbn.datasets),
    ):
        functions = {name: registry.find(package, name, kind) for name in registry.names(package)}
        texts = {n: text.partition(" Shared: ")[0] for n, text in found[kind].items()}
        assert texts == {n: first_line(f) for n, f in functions.items()}
    parts = found["parts, as in fedbn+prox(0.1)"]
    assert parts == {name: first_line(part) for name, part in PARTS.items()}


def first_line(function: Any) -> str:
    return str(function.__doc__).strip().partition("\n")[0]
