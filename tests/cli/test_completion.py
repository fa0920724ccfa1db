"""Shell completion: its scripts, the values it offers, and examples that a shell can read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from commanding import SOURCE
from fedbn.cli.main import app

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command `fedbn` in a folder of its own, as a shell finds it."""
    file = tmp_path / "bin" / "fedbn"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedbn "$@"\n')
    file.chmod(0o755)
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder as far as completion reads it, with a client whose name a shell would expand."""
    folder = tmp_path / "runs" / "first"
    adapted = folder / "adapted" / "fedbn" / "default" / "seed-0" / "oslo"
    adapted.mkdir(parents=True)
    (adapted / "manifest.json").touch()
    (folder / "config.toml").write_text('methods = ["fedavg", "fedbn"]\n')
    clients = dict.fromkeys(["berlin", "lima", "\\$(touch pwned)", "two words"], "")
    (folder / "environment.json").write_text(json.dumps({"data": clients}))
    return folder


def shell(
    *words: object, cwd: Path, program: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell's environment, in which `fedbn` is found."""
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HOME": str(cwd),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def completed(line: str, cwd: Path, program: Path) -> list[str]:
    """Return what bash offers for the last word of a line, by the script that is installed."""
    script = (
        'eval "$(fedbn --show-completion bash)"\n'
        f"read -r -a COMP_WORDS <<< '{line}'\n"
        f"COMP_CWORD={len(line.split(' ')) - 1}\n"
        "_fedbn_completion fedbn\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    found = shell("bash", "-c", script, cwd=cwd, program=program)
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.parametrize("name", SHELLS)
def test_the_completion_script_of_each_shell_is_shown(name, tmp_path, program):
    shown = shell(program, "--show-completion", name, cwd=tmp_path, program=program)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"_FEDBN_COMPLETE=complete_{name}" in shown.stdout


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bash", ".bash_completions/fedbn.sh"),
        ("zsh", ".zfunc/_fedbn"),
        ("fish", ".config/fish/completions/fedbn.fish"),
    ],
)
def test_completion_is_installed_for_each_shell(name, file, tmp_path, program):
    done = shell(program, "--install-completion", name, cwd=tmp_path, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name} completion installed in {tmp_path}")
    assert f"_FEDBN_COMPLETE=complete_{name}" in (tmp_path / file).read_text()


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_completion_recognises_the_shell_that_calls(option, tmp_path, program):
    done = shell("bash", "-c", f"fedbn {option}; exit $?", cwd=tmp_path, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("_fedbn_completion()", "bash completion installed"))


def test_an_unknown_shell_is_an_error_that_names_the_known_ones(tmp_path, program):
    done = shell(program, "--show-completion", "bsh", cwd=tmp_path, program=program)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert all(name in done.stderr for name in SHELLS)


def test_a_completion_script_that_cannot_be_written_is_an_error_in_one_line(tmp_path, program):
    (tmp_path / ".zfunc").touch()  # a file where the folder should be
    done = shell(program, "--install-completion", "zsh", cwd=tmp_path, program=program)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "--show-completion" in done.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fedbn run --method fedb", ["fedbn"]),
        ("fedbn run --method fedbn+me", ["fedbn+mean", "fedbn+median"]),
        ("fedbn run --model m", ["mlp"]),
        ("fedbn run --data digits_", ["digits_mini"]),
        ("fedbn run offi", ["office-authors", "office"]),
        ("fedbn resume runs/first --add-method scaf", ["scaffold"]),
        ("fedbn reproduce digits-met", ["digits-methods"]),
        ("fedbn inspect al", ["alexnet"]),
        ("fedbn data show shif", ["shifted_digits"]),
        ("fedbn report ru", ["runs/first"]),
        ("fedbn report runs/", ["runs/first"]),
        ("fedbn predict runs/first --client ", ["berlin", "lima", "oslo"]),
        ("fedbn predict runs/first --data x.csv --client l", ["lima"]),
        ("fedbn predict runs/first --method ", ["fedavg", "fedbn"]),
        ("fedbn adapt runs/first --like b", ["berlin"]),
        ("fedbn compare runs/first --methods fedavg,", ["fedavg,fedbn"]),
        ("fedbn --version --deb", ["--debug"]),
        ("fedbn predict runs/first --trust no/module --client l", ["lima"]),
        ("fedbn predict not/a/run --client ", []),
    ],
)
def test_bash_completes_values(line, offered, tmp_path, program, run):
    assert completed(line, tmp_path, program) == offered


@pytest.mark.parametrize(
    ("name", "environment", "offered"),
    [
        ("zsh", {}, '"berlin":"a client of the run"'),
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "berlin\ta client of the run"),
    ],
)
def test_zsh_and_fish_complete_values(name, environment, offered, tmp_path, program, run):
    done = shell(
        program,
        cwd=tmp_path,
        program=program,
        _FEDBN_COMPLETE=f"complete_{name}",
        _TYPER_COMPLETE_ARGS="fedbn predict runs/first --client ",
        **environment,
    )
    assert offered in done.stdout
    assert "oslo" in done.stdout
    assert "touch" not in done.stdout  # zsh would evaluate it
    assert "two words" not in done.stdout


@pytest.mark.parametrize("file", ["environment.json", "config.toml"])
def test_a_damaged_run_folder_prints_nothing_into_the_line(file, tmp_path, program, run):
    (run / file).write_bytes(b'{"data": [\xff')
    (run / "adapted").rename(tmp_path / "elsewhere")
    words = (
        "predict runs/first --client"
        if file == "environment.json"
        else "compare runs/first --methods"
    )
    assert completed(f"fedbn {words} ", tmp_path, program) == []


def test_completion_does_not_import_torch(tmp_path, run):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fedbn"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "_FEDBN_COMPLETE": "complete_bash",
            "COMP_WORDS": "fedbn predict runs/first --client ",
            "COMP_CWORD": "4",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert done.stdout.split() == ["berlin", "lima", "oslo"]
    assert "fedbn.cli.completion" in imported
    assert not imported & {"torch", "numpy", "pydantic", "sklearn", "flwr"}


def example_lines() -> Iterator[str]:
    """Return every command that a help text shows as an example."""

    def epilogs(command, context) -> Iterator[str]:
        yield command.epilog or ""
        for word in getattr(command, "commands", ()):
            _, below, _ = command.resolve_command(context, [word])
            yield from epilogs(below, typer.Context(below, resilient_parsing=True, parent=context))

    whole = typer.main.get_command(app)
    for epilog in epilogs(whole, typer.Context(whole, resilient_parsing=True)):
        for line in re.split(r"\n+|\s+·\s+", re.sub(r"^\w+:\s+", "", epilog)):
            if line.startswith("fedbn "):
                yield re.split(r" {2,}", line)[0]


@pytest.mark.parametrize("line", sorted(set(example_lines())))
def test_an_example_of_a_help_text_is_a_command_for_a_shell(line):
    checked = subprocess.run(
        ["bash", "-n", "-c", line], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_example_with_a_part_of_a_method_runs(tmp_path, program):
    (line,) = (line for line in example_lines() if "prox(" in line)
    done = shell(
        "bash", "-c", f"{line} --rounds 1 --out out --dry-run", cwd=tmp_path, program=program
    )
    assert done.returncode == 0, done.stderr
