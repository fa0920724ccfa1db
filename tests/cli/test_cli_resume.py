"""`fedbn resume`: the same bits as if nothing had happened, or a refusal that says why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from commanding import arrays, bits, call, newest, write_sites
from fedbn.models.networks import mlp
from fedbn.runs.folder import RunFolder


def shorten(run: Path, method: str = "fedbn") -> None:
    """Make a run look as if it had been stopped before the last round of one job."""
    shutil.rmtree(newest(run, method))


def test_a_finished_run_says_so(finished: Path) -> None:
    before = bits(finished)
    answer = call("resume", finished)
    assert answer.code == 0
    assert "was finished already; nothing to do" in answer.err
    assert answer.out.startswith("test accuracy, %")
    assert bits(finished) == before


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_stopped_run_ends_with_the_same_bits(method: str, finished: Path) -> None:
    before = bits(finished)
    shorten(finished, method)
    (finished / "metrics.jsonl").unlink()
    answer = call("resume", finished)
    assert answer.code == 0
    assert "nothing to do" not in answer.err
    assert bits(finished) == before


def test_records_behind_the_last_checkpoint_are_dropped(finished: Path) -> None:
    before = bits(finished)
    shorten(finished)
    with (finished / "checkpoints/fedbn/default/seed-0/metrics.jsonl").open("ab") as stream:
        stream.write(b'{"method": "fedbn", "set')  # F08: cut off
    assert call("resume", finished).code == 0
    assert bits(finished) == before


def test_a_request_is_enough_to_resume(finished: Path, sites: Path, tmp_path: Path) -> None:
    """What is left when a run is killed before its configuration was checked."""
    folder = RunFolder(tmp_path / "early")
    folder.begin(
        {
            "data": {"path": str(sites)},
            "model": {"name": "mlp"},
            "training": {"rounds": 3},
            "seeds": [0],
            "methods": ["fedavg", "fedbn"],
            "checkpoint": {"every": 1},
            "workers": 1,
        }
    )
    assert call("resume", folder.path).code == 0
    assert bits(folder.path) == bits(finished)
    assert not folder.request.exists()


def test_killed_between_two_files_of_the_configuration(finished: Path, tmp_path: Path) -> None:
    before = bits(finished)
    folder = RunFolder(tmp_path / "early")
    folder.begin(RunFolder(finished).read_request())
    shutil.copy(finished / "environment.json", folder.path)
    (folder.path / ".config.toml.tmp").write_text("half of")
    assert call("resume", folder.path).code == 0
    assert bits(folder.path) == before
    assert not list(folder.path.glob(".*"))


def test_a_request_that_was_bad_is_still_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "early")
    folder.begin({"training": {"ronds": 3}})
    answer = call("resume", folder.path)
    assert answer.code == 3
    assert "did you mean 'training.rounds'?" in answer.line


@pytest.mark.shows("F16")
def test_a_changed_configuration_is_refused_with_its_keys(finished: Path) -> None:
    config = finished / "config.toml"
    text = config.read_text().replace("rounds = 3", "rounds = 5").replace("lr = 0.01", "lr = 0.02")
    config.write_text(text)
    answer = call("resume", finished)
    assert answer.code == 3
    assert "changed since the run began: training.lr, training.rounds;" in answer.line


def test_the_number_of_workers_may_change(finished: Path) -> None:
    before = bits(finished)
    shorten(finished)
    config = finished / "config.toml"
    config.write_text(config.read_text().replace("workers = 1", "workers = 2"))
    assert call("resume", finished, "--workers", 1).code == 0
    assert bits(finished) == before


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ("rounds = = 3", 6, "config.toml: damaged"),
        ("format = 7", 6, "format 7 is from a newer fedbn"),
    ],
)
def test_a_damaged_or_foreign_configuration(
    content: str, code: int, said: str, finished: Path
) -> None:
    (finished / "config.toml").write_text(content)
    answer = call("resume", finished)
    assert answer.code == code
    assert said in answer.line


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"config'])
def test_a_damaged_environment(content: str | None, finished: Path) -> None:
    file = finished / "environment.json"
    file.unlink() if content is None else file.write_text(content)
    answer = call("resume", finished)
    assert answer.code == 6
    assert "environment.json" in answer.line


@pytest.mark.shows("D35")
def test_changed_data_is_refused(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites")
    asked = ("--model", "mlp", "--rounds", 1, "--seed", 0, "--method", "fedbn")
    assert call("run", "--data", sites, *asked, "--out", tmp_path / "run").code == 0
    np.savez(sites / "b.npz", **arrays(7))
    answer = call("resume", tmp_path / "run")
    assert answer.code == 4
    assert "the data changed since the run began: client b" in answer.line
    (sites / "b.npz").unlink()
    assert call("resume", tmp_path / "run").code == 4


def test_changed_weights_are_refused(sites: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    state = mlp(2, (6,)).state_dict()
    save_file(state, file)
    asked = ("--model", "mlp", "--rounds", 1, "--seed", 0, "--method", "fedbn")
    asked += ("--set", f"model.weights={file}", "--out", tmp_path / "run")
    assert call("run", "--data", sites, *asked).code == 0
    assert call("resume", tmp_path / "run").code == 0
    save_file({**state, "0.bias": state["0.bias"] + 1}, file)
    answer = call("resume", tmp_path / "run")
    assert answer.code == 3
    assert "model.weights changed since the run began" in answer.line


@pytest.mark.shows("F17")
def test_other_versions_are_said(finished: Path) -> None:
    file = finished / "environment.json"
    environment = json.loads(file.read_text())
    environment["versions"] |= {"torch": "1.13", "numpy": "1.21"}
    file.write_text(json.dumps(environment))
    answer = call("resume", finished)
    assert answer.code == 0
    assert "other versions than the run began with: numpy, torch" in answer.err


@pytest.mark.shows("F15")
def test_a_second_process_is_refused(finished: Path) -> None:
    before = bits(finished)
    with RunFolder(finished).locked():
        answer = call("resume", finished)
    assert answer.code == 1
    assert "is in use by another process" in answer.line
    assert bits(finished) == before


@pytest.mark.parametrize("where", ["nowhere", ".", "file"])
def test_no_run_there(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = call("resume", where, cwd=tmp_path)
    assert answer.code == 3
    assert "no run here" in answer.line
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


OWN = """
from torch import nn

def net(classes, width={width}):
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, classes))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_from_another_directory_with_a_users_own_model(
    workers: int, sites: Path, tmp_path: Path
) -> None:
    """Their module is found where the run was begun, even where another has the same name."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder, width in ((home, 5), (elsewhere, 9)):
        folder.mkdir()
        (folder / "own_net.py").write_text(OWN.format(width=width))
        (folder / "json.py").write_text("raise SystemExit('not Python's')")
    asked = ("--data", sites, "--model", "own_net:net", "--rounds", 2, "--seed", 0)
    asked += ("--method", "fedavg", "--method", "fedbn", "--workers", 1, "--out", "run")
    assert call("run", *asked, cwd=home).code == 0
    before = bits(home / "run")
    for method in ("fedavg", "fedbn"):
        shorten(home / "run", method)
    trusting = ("--trust", "own_net", "--workers", workers)
    assert call("resume", home / "run", *trusting, cwd=elsewhere).code == 0
    assert bits(home / "run") == before


def test_a_request_remembers_where_the_run_was_begun(sites: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "own_net.py").write_text(OWN.format(width=5))
    asked = ("--data", sites, "--model", "own_net:net", "--rounds", 2, "--seed", 0)
    assert call("run", *asked, "--method", "fedbn", "--out", "run", cwd=home).code == 0
    before = bits(home / "run")
    folder = RunFolder(home / "again")
    folder.begin(RunFolder(home / "run").read_request())
    text = folder.request.read_text().replace(str(Path.cwd()), str(home))
    folder.request.write_text(text)
    for _ in range(2):  # the second time, the request is gone
        assert call("resume", folder.path, "--trust", "own_net", cwd=elsewhere).code == 0
    assert bits(folder.path) == before
