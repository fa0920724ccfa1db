"""What a message advises exists: every option that a command's messages name is its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import fedbn
from commanding import arrays, call
from fedbn.cli.main import app

ROOT = Path(fedbn.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")

# Options of other programs (flwr, systemctl), and the beginning of two of ours.
FOREIGN = {"--show-completion", "--install-completion", "--node-config", "--now", "--add-"}

# Messages of these files reach users of these commands only.
USED_BY = {
    "cli/predict.py": ("predict", "evaluate", "export"),
    "cli/adapt.py": ("adapt",),
    "cli/compare.py": ("compare",),
    "cli/report.py": ("report",),
    "report/reading.py": ("report",),
    "trained/adaptation.py": ("adapt",),
    "trained/joining.py": ("adapt",),
    "trained/export.py": ("export",),
    "trained/evaluation.py": ("evaluate", "report"),
    "data/new_samples.py": ("predict", "evaluate", "adapt"),
    "results/comparison.py": ("compare", "report"),
}


def commands(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    context = typer.Context(group, resilient_parsing=True)
    for name in group.commands:
        _, command, _ = group.resolve_command(context, [name])
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


@cache
def options() -> dict[str, set[str]]:
    """The options of each command."""
    found = {}
    for name, command in commands(typer.main.get_command(app)):
        flags = (flag for one in command.params for flag in (*one.opts, *one.secondary_opts))
        found[name] = {*flags, "--help", "--debug", "--version"}
    return found


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that name an option; docstrings and arguments of programs apart."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in told and " " in node.value and OPTION.search(node.value):
            yield node.lineno, node.value


@pytest.mark.parametrize("name", sorted(USED_BY))
def test_a_message_names_options_of_the_commands_that_show_it(name: str) -> None:
    legal = set.union(*(options()[command] for command in USED_BY[name]))
    for line, text in texts(ROOT / name):
        # Other commands are quoted whole, as `fedbn resume RUN --rounds N`.
        plain = re.sub(r"`[^`]*`|fedbn [a-z]+ .*", "", text)
        strange = {*OPTION.findall(plain)} - legal
        if name == "results/comparison.py":
            strange -= {"--format"}
        assert not strange, f"{name}, line {line}: {strange}"


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda f: f.stem)
def test_every_option_that_a_message_names_exists_on_some_command(file: Path) -> None:
    legal = set.union(*options().values()) | FOREIGN
    for line, text in texts(file):
        strange = {*OPTION.findall(text)} - legal
        assert not strange, f"{file.name}, line {line}: {strange}"


def test_empty_cells_are_no_reason_to_advise_what_predict_does_not_have(tmp_path: Path) -> None:
    lines = ["p,q,out,site", *(f"{n % 5},{n % 7},{n % 2},{'ab'[n // 20]}" for n in range(40))]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    asked = ("--set", "data.label=out", "--set", "data.site=site", "--rounds", 1, "--seed", 0)
    run = call(
        *("run", "--data", tmp_path / "all.csv", *asked, "--method", "fedbn", "--workers", 1),
        *("--model", "mlp", "--out", tmp_path / "run"),
    )
    assert run.code == 0, run.err
    (tmp_path / "gap.csv").write_text("p,q\n1,\n")
    for command in (["predict", "--client", "a"], ["adapt", "--as", "new"]):
        answer = call(*command, tmp_path / "run", "--data", tmp_path / "gap.csv")
        assert answer.code == 4
        assert answer.err.splitlines()[-1].endswith(
            "fill it: the run was trained without empty cells, and its models take none"
        )


def test_a_file_name_of_another_format_is_refused(finished: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=arrays(0)["test_x"])
    asked = ("predict", finished, "--client", "a", "--data", tmp_path / "x.npz", "--out")
    assert "ends in .csv, got .xlsx" in call(*asked, tmp_path / "p.xlsx").line
    answer = call("report", finished, "--out", tmp_path / "r.pdf")
    assert "expected a name that ends in .html, .md" in answer.line
    assert not (tmp_path / "r.pdf").exists()
