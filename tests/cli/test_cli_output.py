"""What the command prints, and where: help, lists, tables, JSON, colours, completion."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import fedbn
import fedbn.methods
from commanding import SOURCE, Processes, call, records, with_running_statistics, write_sites
from fedbn import registry
from fedbn.cli.main import app

COMMANDS = ["run", "resume", "inspect", "ls", "schema"]


def commands(group: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All commands, those of groups too."""
    found = []
    for name, command in group.commands.items():
        path = (*above, name)
        found += commands(command, path) if hasattr(command, "commands") else [path]
    return found


def test_help_lists_the_commands_and_the_exit_codes() -> None:
    for arguments in ([], ["--help"], ["-h"]):
        answer = call(*arguments)
        assert (answer.code, answer.err) == (0, "")
        assert all(command in answer.out for command in COMMANDS)
        assert "130 interrupted" in " ".join(answer.out.split())


@pytest.mark.parametrize("command", commands(typer.main.get_command(app)), ids=" ".join)
def test_every_help_has_an_example(command: tuple[str, ...]) -> None:
    answer = call(*command, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert "Example" in answer.out
    assert f"fedbn {' '.join(command)}" in answer.out.partition("Example")[2]


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["run", "--no-such-flag"], ["resume"], ["run", "--rounds"]]
)
def test_what_the_parser_refuses(arguments: list[str]) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert "--help" in answer.line


def test_version() -> None:
    assert call("--version") == (0, f"fedbn {fedbn.__version__}\n", "")


def test_python_m_and_completion(processes: Processes, tmp_path: Path) -> None:
    answer = processes.run("--version", cwd=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    words = {"_FEDBN_COMPLETE": "complete_bash", "COMP_WORDS": "fedbn resu", "COMP_CWORD": "1"}
    answer = processes.run(cwd=tmp_path, env=words)
    assert (answer.code, answer.out.split(), answer.err) == (0, ["resume"], "")
    script = processes.run(cwd=tmp_path, env={"_FEDBN_COMPLETE": "source_bash"})
    assert "_fedbn_completion" in script.out


@pytest.mark.parametrize("command", [["schema"], ["inspect", "mlp"]])  # a text, and a table
def test_a_reader_that_goes_away_is_no_error(
    command: list[str], processes: Processes, tmp_path: Path
) -> None:
    process = processes.start(*command, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 1
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.parametrize(
    ("closed", "printed"), [(">&-", False), ("2>&-", True), ("<&- >&- 2>&-", False)]
)
def test_a_closed_stream_is_no_error(closed: str, printed: bool, tmp_path: Path) -> None:
    asked = f'exec "{sys.executable}" -m fedbn schema {closed}'
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(["sh", "-c", asked], cwd=tmp_path, env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) is printed


def test_libraries_that_warn_do_not_end_the_command(processes: Processes, tmp_path: Path) -> None:
    answer = processes.run("schema", cwd=tmp_path, env={"PYTHONWARNINGS": "error"})
    assert (answer.code, answer.err) == (0, "")


def test_a_notebooks_backend_is_not_used(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(records: object, file: Path) -> None:
        subprocess.run([sys.executable, "-c", "import matplotlib.pyplot"], check=True)

    monkeypatch.setenv("MPLBACKEND", "a_backend_that_is_not_installed")
    monkeypatch.setattr("fedbn.results.figures.draw_curves", draw)
    answer = call("resume", finished, pictures=True)
    assert answer.code == 0, answer.err


def test_a_directory_that_was_removed(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    asked = f'rmdir "$PWD"; exec "{sys.executable}" -m fedbn ls'
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        ["sh", "-c", asked], cwd=tmp_path / "gone", env=env, capture_output=True, text=True
    )
    assert done.returncode == 3
    said = "fedbn: the current directory was removed: change into one that exists\n"
    assert (done.stdout, done.stderr) == ("", said)


def test_the_benchmark_names_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SOURCE.parent))
    from benchmarks.bench import ROWS, chosen_rows

    assert chosen_rows([]) == list(ROWS)
    assert chosen_rows(["mlp", "digits"]) == ["mlp", "digits"]
    for arguments, code in ((["nonsense"], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as end:
            chosen_rows(arguments)
        assert end.value.code == code
        told = capsys.readouterr()
        assert all(name in " ".join((told.out + told.err).split()) for name in ROWS)


def test_results_on_stdout_messages_on_stderr(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 2, "--seed", 0, "--seed", 1, "--method", "fedbn")
    asked += ("--workers", 1, "--out", tmp_path / "out")
    answer = call("run", "--data", sites, *asked, pictures=True)
    assert answer.code == 0
    head, row, batch, *sentences = answer.out.splitlines()
    assert sentences[-1].startswith("BatchNorm statistics of the rows ")
    assert batch.startswith("fedbn, batch statistics ")
    assert head.split() == ["test", "accuracy,", "%", "a", "b", "mean"]
    assert row.startswith("fedbn ")
    assert row.count("±") == 3
    assert f"seeds 0, 1; run folder {tmp_path / 'out'}" in answer.err
    assert "\x1b" not in answer.out + answer.err
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_json_for_a_program(finished: Path) -> None:
    answer = call("resume", finished, "--json")
    found = json.loads(answer.out)
    assert found["folder"] == str(finished)
    assert found["seeds"] == [0]
    assert [row["method"] for row in found["rows"]] == [
        *["fedavg"] * 3, *["fedbn"] * 2
    ]  # fmt: skip
    every = with_running_statistics(records(finished / "metrics.jsonl"))
    last = [r for r in every if r["round"] == 3]
    scores = {
        r["client"]: 100 * r["value"]
        for r in last
        if (r["method"], r["split"], r["metric"]) == ("fedbn", "test", "accuracy")
    }
    (row,) = (r for r in found["rows"] if (r["method"], r["statistics"]) == ("fedbn", "running"))
    shown = row["accuracy"]
    assert {client: shown[client]["mean"] for client in "ab"} == scores
    assert shown["mean"]["mean"] == sum(scores.values()) / 2
    assert shown["mean"]["std"] is None


TALKS = """
from torch import nn
print("imported")
class Net(nn.Sequential):
    def __init__(self, classes=2):
        print("built")
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))
    def forward(self, x):
        print("called")
        return super().forward(x)
"""


def test_what_a_users_model_prints_does_not_mix_with_results(sites: Path, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    asked = ("--model", "talks:Net", "--rounds", 1, "--seed", 0, "--method", "fedbn")
    commands: list[tuple[object, ...]] = [
        ("run", "--data", sites, *asked, "--out", "out", "--workers", 1, "--json"),
        ("inspect", "talks:Net", "--json"),
        ("evaluate", "out", "--json", "--trust", "talks"),
    ]
    for command in commands:
        answer = call(*command, cwd=tmp_path)
        assert answer.code == 0, answer.err
        json.loads(answer.out)
        assert {"imported", "built"} <= set(answer.err.split())
    assert "called" in answer.err


def test_results_go_out_by_one_door() -> None:
    for file in (SOURCE / "fedbn" / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                parsing = file.name in ("main.py", "__init__.py")  # versions and help
                where = {keyword.arg for keyword in node.keywords}
                assert parsing or "file" in where, f"{file}:{node.lineno}: emit() prints results"


def test_dry_run_checks_everything_and_writes_nothing(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--method", "fedbn", "--seed", 4, "--out", tmp_path / "out")
    answer = call("run", "--data", sites, *asked, "--dry-run", cwd=tmp_path)
    assert answer.code == 0
    assert 'name = "mlp"' in answer.out
    assert "# would run fedbn, setting default, seed 4" in answer.out
    assert list(tmp_path.iterdir()) == []
    made = call("run", "--data", sites, *asked, "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(made.out)["jobs"] == [["fedbn", "default", 4]]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something").touch()
    answer = call("run", "--data", sites, *asked, "--dry-run", cwd=tmp_path)
    assert answer.code == 3
    assert "is not empty" in answer.line


def test_what_dry_run_prints_is_an_experiment(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--set", "training.local_steps=2", "--dry-run")
    first = call("run", "--data", sites, *asked).out
    (tmp_path / "again.toml").write_text(first)
    again = call("run", tmp_path / "again.toml", "--dry-run").out
    assert tomllib.loads(again) == tomllib.loads(first)


def test_a_file_with_flags_over_it_and_settings_over_those(sites: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"""
        seeds = [5]
        methods = ["fedavg", "fedbn"]
        [data]
        path = "{sites}"
        [training]
        rounds = 7
        lr = 0.5
        """)
    answer = call("run", file, "--rounds", 8, "--set", "training.lr=0.25", "--dry-run")
    assert answer.code == 0, answer.err
    for line in ("rounds = 8", "lr = 0.25", f'path = "{sites}"'):
        assert f"{line}\n" in answer.out
    assert "fedavg, setting default, seed 5" in answer.out


def test_ls(tmp_path: Path) -> None:
    answer = call("ls")
    assert (answer.code, answer.err) == (0, "")
    for name in ("methods ", "fedbn", "silobn", "prox", "models ", "digit_cnn", "digits_mini"):
        assert name in answer.out
    found = json.loads(call("ls", "--json").out)
    assert set(found["methods"]) == set(registry.names(fedbn.methods))
    for text in found["methods"].values():
        assert "Shared: " in text
        assert "Remembered: " in text
    assert "Remembered: c_i at the client." in found["methods"]["scaffold"]
    assert all(text for kind in found.values() for text in kind.values())


def test_schema() -> None:
    schema = json.loads(call("schema").out)
    assert {"training", "method", "data", "model", "evaluation", "sweep"} <= set(
        schema["properties"]
    )
    training = schema["$defs"]["TrainingSection"]["properties"]
    assert all("description" in key for key in training.values())


def test_inspect_for_a_person() -> None:
    answer = call("inspect", "mlp", "--input", "6", "--classes", 2)
    assert (answer.code, answer.err) == (0, "")
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["0.weight", "weight", "64×6", "1,536", "shared"] in rows
    assert ["1.running_var", "bn_statistic", "64", "256", "local"] in rows
    # 6·64 + 64 + 64·32 + 32 + 32·2 + 2 weights and biases, 2·(64 + 32) of BatchNorm
    assert "2,786 trainable parameters" in answer.out


def test_inspect_for_a_program() -> None:
    found = json.loads(call("inspect", "mlp", "--input", "6", "--classes", 2, "--json").out)
    assert found["shared"] == [f"{n}.{e}" for n in (0, 3, 6) for e in ("weight", "bias")]
    assert len(found["local"]) == 10
    totals = found["totals"]
    assert totals["shared_bytes"] == 4 * (6 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2)
    assert totals["local_bytes"] == 4 * 4 * (64 + 32) + 2 * 8
    assert totals["bytes_a_round_and_client"] == 2 * totals["shared_bytes"]
    everything = json.loads(call("inspect", "mlp", "--method", "fedavg", "--json").out)
    assert everything["local"] == []
    assert everything["totals"]["of_fedavg"] == 1
    assert totals["of_fedavg"] == totals["shared_bytes"] / (
        totals["shared_bytes"] + totals["local_bytes"]
    )


def test_inspect_counts_what_rules_remember() -> None:
    given = ("inspect", "mlp", "--input", "6", "--classes", 2, "--method")
    found = json.loads(call(*given, "fedbn+scaffold", "--json").out)
    plain = json.loads(call(*given, "fedbn", "--json").out)["totals"]
    totals = found["totals"]
    assert totals["shared_bytes"] == 2 * plain["shared_bytes"]  # c beside every weight
    assert totals["local_bytes"] == plain["local_bytes"] + plain["shared_bytes"]  # and c_i
    assert totals["of_fedavg"] == 2 * plain["of_fedavg"]
    assert "scaffold.c/0.weight" in found["shared"]
    answer = call(*given, "feddyn")
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["feddyn.g/0.weight", "rule", "64×6", "1,536", "local"] in rows
    assert ["feddyn.h/0.weight", "rule", "64×6", "1,536", "server"] in rows
    assert "1 times FedAvg's" in " ".join(answer.out.split())
    kept = json.loads(call(*given, "fedper", "--json").out)["local"]
    assert kept == ["6.weight", "6.bias"]


_OWN_NORM = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))
    def forward(self, x):
        return (x - self.running_mean) / self.running_var.sqrt()

def net():
    return nn.Sequential(nn.Linear(6, 4), Norm(), nn.BatchNorm1d(4), nn.Linear(4, 2))
"""


def test_what_may_not_be_meant_is_said_once_a_run(sites: Path, tmp_path: Path) -> None:
    """A layer like BatchNorm that is shared; and 16 samples in batches of 6, which leave 4."""
    (tmp_path / "own.py").write_text(_OWN_NORM)
    told = "fedbn+local('1.*') keeps them at the client"
    answer = call("inspect", "own:net", "--input", "6", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert told in " ".join(answer.out.split())
    found = json.loads(call("inspect", "own:net", "--input", "6", "--json", cwd=tmp_path).out)
    assert told in found["remarks"][0]
    two = ("--method", "fedbn", "--seed", 0, "--seed", 1, "--rounds", 1, "--workers", 1)
    sizes = ("--set", "training.batch_size=6", "--set", "training.last_batch=keep")
    asked = ("--data", sites, "--model", "own:net", *two, *sizes)
    answer = call("run", *asked, "--out", "run", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert answer.err.count(told) == 1
    assert answer.err.count("a last batch of 4 samples (a, b) is small for BatchNorm") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mpl"], "did you mean 'mlp'?"),
        (["mlp", "--method", "fedbm"], "did you mean 'fedbn'?"),
        (["mlp", "--classes", "0"], "--classes"),
        (["mlp", "--classes", "-2"], "--classes"),
        (["mlp", "--input", "3,x"], "--input"),
        (["mlp", "--input", "0"], "--input"),
        (["mlp", "--input", "9" * 5000], "--input"),
        (["torch.nn:LayerNorm"], "missing a required argument"),
    ],
)
def test_inspect_refuses(arguments: list[str], said: str) -> None:
    answer = call("inspect", *arguments)
    assert answer.code == 3
    assert said in answer.line


@pytest.mark.parametrize("plain", [True, False])
def test_colours_are_for_terminals_that_want_them(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    assert ("\x1b[" in call("inspect", "mlp", tty=True).out) is not plain


def test_a_bar_on_a_terminal(sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    asked = ("--model", "mlp", "--rounds", 2, "--seed", 0, "--method", "fedbn", "--out", "out")
    named = write_sites(tmp_path / "sites", ["[red]a", "b"])
    answer = call("run", "--data", named, *asked, cwd=tmp_path, tty=True)
    assert answer.code == 0
    assert "100 %" in answer.err
    assert answer.err.count("\x1b[?25l") == answer.err.count("\x1b[?25h") > 0  # the cursor is back
    assert "[red]a" in answer.out


def test_the_cursor_is_never_hidden_by_a_refusal(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbn.runs.folder import RunFolder

    monkeypatch.setenv("TERM", "xterm-256color")
    with RunFolder(finished).locked():
        answer = call("resume", finished, tty=True)
    assert answer.code == 1
    assert answer.err.count("\x1b[?25l") == answer.err.count("\x1b[?25h")


def test_an_ascii_terminal_still_gets_its_table(processes: Processes, tmp_path: Path) -> None:
    env = {"PYTHONIOENCODING": "ascii"}
    answer = processes.run("run", "--help", cwd=tmp_path, env=env)
    assert answer.code == 0, answer.err
    assert os.environ.get("PYTHONIOENCODING") != "ascii"


@pytest.mark.parametrize(("workers", "said"), [(1, False), (2, True)])
def test_runs_that_go_side_by_side_are_said_to(
    workers: int, said: bool, sites: Path, tmp_path: Path
) -> None:
    asked = (
        "--model",
        "mlp",
        "--rounds",
        1,
        "--seed",
        0,
        "--method",
        "fedavg",
        "--method",
        "fedbn",
    )
    answer = call("run", "--data", sites, *asked, "--workers", workers, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert ("2 runs, 2 side by side, one core each" in answer.err.splitlines()) is said
