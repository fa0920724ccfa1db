"""A run folder that was handed over runs no code unless a person says `--trust`."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from commanding import Processes, call
from fedbn.runs.folder import RunFolder

EVIL = """
from pathlib import Path

Path({mark!r}).write_text("imported")


def net(classes):
    from torch import nn

    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


def method(mu=1):
    from fedbn import fedbn

    return fedbn()
"""
DOORS: dict[str, Any] = {
    "model": {"model": {"name": "handed_over:net"}},
    "data": {"data": {"name": "handed_over:net"}},
    "method": {"methods": ["handed_over:method"]},
    "part": {"methods": ["fedbn + handed_over:method"]},
    "task": {"task": {"name": "handed_over:net"}},
    "loss": {"task": {"loss": "handed_over:net"}},
    "metrics": {"task": {"metrics": ["handed_over:net"]}},
    "further metrics": {"evaluation": {"metrics": ["handed_over:net"]}},
    "sweep": {"sweep": {"model": {"name": ["handed_over:net"]}}},
    "grid": {
        "methods": ["handed_over:method"],
        "method": {"mu": [1.0, 2.0]},
        "evaluation": {"validation": 0.2},
    },
}


def change(run: Path, changes: dict[str, Any], directory: Path) -> None:
    """Write changes into the files of a run, as one who hands it over can."""
    folder = RunFolder(run)
    config = tomllib.loads(folder.config.read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if key in config and key != "methods" else value
    folder.config.write_text(tomli_w.dumps(config))
    environment = json.loads(folder.environment.read_text())
    changed = {**environment, "config": config, "directory": str(directory)}
    folder.environment.write_text(json.dumps(changed))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Is there once `handed_over` was imported, which lies beside it in `theirs`."""
    folder, mark = tmp_path / "theirs", tmp_path / "mark"
    folder.mkdir()
    (folder / "handed_over.py").write_text(EVIL.format(mark=str(mark)))
    return mark


def commands(run: Path, sites: Path, out: Path) -> list[tuple[object, ...]]:
    data = sites / "a.npz"
    return [
        ("resume", run),
        ("predict", run, "--client", "a", "--data", data),
        ("evaluate", run),
        ("export", run, "--client", "a", "--out", out / "exported/"),
        ("adapt", run, "--data", data, "--as", "new"),
    ]


@pytest.mark.parametrize("door", DOORS)
def test_no_name_of_a_folder_is_imported(
    door: str, finished: Path, sites: Path, mark: Path, tmp_path: Path
) -> None:
    change(finished, DOORS[door], tmp_path / "theirs")
    for command in commands(finished, sites, tmp_path):
        answer = call(*command, cwd=tmp_path / "theirs")  # even where the module lies at hand
        if door == "data" and command[0] in ("predict", "export", "adapt"):
            assert answer.code == 0, answer.err  # the data is not read for that
            continue
        assert answer.code == 3, (command, answer.err)
        assert f"{finished / 'config.toml'}: " in answer.line
        line = " ".join(["fedbn", *map(str, command), "--trust", "handed_over"])
        assert f"`{line}`" in answer.line
    for command in (
        ("report", finished),
        ("compare", finished, "--methods", "fedavg,fedbn"),
        ("merge", finished, "--out", tmp_path / "merged"),
        ("reproduce", "digits-methods", "--from", finished, "--out", tmp_path / "shown"),
        ("adapt", finished, "--data", sites / "a.npz", "--as", "x", "--how", "join", "--rounds", 1),
    ):
        call(*command, cwd=tmp_path / "theirs")
    assert not mark.exists()


def test_a_module_that_is_trusted_is_imported_from_where_the_run_says(
    finished: Path, sites: Path, mark: Path, tmp_path: Path
) -> None:
    change(finished, DOORS["method"], tmp_path / "theirs")
    asked = ("resume", finished, "--trust", "other", "--trust", "handed_over")
    answer = call(*asked, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert mark.exists()


def test_the_folder_that_a_run_names_provides_no_module_but_the_trusted_one(
    finished: Path, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package may try to import another one, as torch tries `triton`."""
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "popular_nets.py").write_text(
        "try:\n    import handed_over\nexcept ImportError:\n    pass\n"
        "from torch import nn\n\n\ndef net(classes):\n"
        "    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    change(finished, {"model": {"name": "popular_nets:net"}}, tmp_path / "theirs")
    answer = call("export", finished, "--client", "a", "--trust", "popular_nets", cwd=tmp_path)
    assert "--trust" not in answer.err
    assert not mark.exists()


def test_a_request_that_was_handed_over_is_no_better(
    sites: Path, mark: Path, tmp_path: Path
) -> None:
    asked = {"data": {"path": str(sites)}, **DOORS["model"]}
    content = {"directory": str(tmp_path / "theirs"), "request": asked}
    folder = RunFolder(tmp_path / "early")
    folder.path.mkdir()
    folder.request.write_text(tomli_w.dumps(content))
    answer = call("resume", folder.path)
    assert (answer.code, mark.exists()) == (3, False)
    assert f"{folder.request}: model 'handed_over:net' is not code of fedbn" in answer.line


def test_a_module_that_is_trusted_lends_nothing_that_it_imported(
    finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_nets.py").write_text("from os import system\n")
    changes = {"model": {"name": "my_nets:system", "args": {"command": "touch mark"}}}
    change(finished, changes, tmp_path)
    answer = call("evaluate", finished, "--trust", "my_nets", cwd=tmp_path)
    assert answer.code == 3
    assert "module posix is imported only with --trust posix" in answer.line


@pytest.mark.parametrize("name", ["lr_scheduler.StepLR", "os.system", "_functional.adam"])
def test_an_optimiser_is_a_class_of_torch_optim(name: str, finished: Path, tmp_path: Path) -> None:
    change(finished, {"training": {"optimizer": name}}, tmp_path)
    answer = call("resume", finished)
    assert answer.code == 3
    assert f"unknown optimizer '{name}'" in answer.line


@pytest.mark.parametrize("given", ["my_nets:net", "my/nets.py", ""])
def test_trust_is_given_to_modules(given: str, finished: Path) -> None:
    answer = call("resume", finished, "--trust", given)
    assert answer.code == 3
    assert "not a module's name" in answer.line


def test_a_run_with_own_code_ends_with_the_line_to_resume_it(
    sites: Path, mark: Path, tmp_path: Path
) -> None:
    asked = ("run", "--data", sites, "--model", "handed_over:net", "--rounds", 1, "--seed", 0)
    answer = call(*asked, "--method", "fedbn", "--out", tmp_path / "run", cwd=tmp_path / "theirs")
    assert answer.code == 0, answer.err
    assert f"`fedbn resume {tmp_path / 'run'} --trust handed_over`" in answer.err.splitlines()[-1]
    assert call("resume", tmp_path / "run", cwd=tmp_path).code == 3
    again = call("resume", tmp_path / "run", "--trust", "handed_over", cwd=tmp_path)
    assert again.code == 0, again.err


def test_files_that_a_folder_names_are_opened_and_said(finished: Path, sites: Path) -> None:
    for command in (("evaluate", finished), ("resume", finished)):
        answer = call(*command)
        assert answer.code == 0
        assert f"read {sites}, which {finished / 'config.toml'} names" in answer.err


def test_files_in_the_current_directory_hide_nothing_of_python_s(
    processes: Processes, tmp_path: Path
) -> None:
    for name in ("json", "token", "typer", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not me')\n")
    assert processes.run("schema", cwd=tmp_path).code == 0
