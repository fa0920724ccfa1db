"""Warnings of a run are stored with it, and reach the report, JSON and the model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedbn
from commanding import call, write_sites
from fedbn.runs.folder import RunFolder
from fedbn.runs.messages import MessageStore, RunWarning, grouped, read_warnings
from fedbn.trained.export import export

WARNING = "client b has no training sample of class 1"


def one_class_only(content: dict[str, Any]) -> None:
    content["train_y"][:] = 0


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two methods that warns of client b's data."""
    home = tmp_path_factory.mktemp("warned")
    data = write_sites(home / "sites", "ab", one_class_only)
    methods = ("--method", "fedavg", "--method", "fedbn")
    answer = call(
        *("run", "--data", data, "--model", "mlp", "--rounds", 1, *methods, "--workers", 1),
        *("--seed", 0, "--seed", 1, "--seed", 2, "--json", "--out", home / "run"),
    )
    assert answer.code == 0, answer.err
    (home / "answer.json").write_text(answer.out)
    return home / "run"


def test_a_warning_is_stored_once_for_the_run(warned: Path) -> None:
    assert [one.text for one in read_warnings(RunFolder(warned))] == [WARNING]


def test_the_log_has_warnings_times_and_the_checkpoint_interval(warned: Path) -> None:
    lines = (warned / "run.log").read_text().splitlines()
    assert any(line.endswith(f"WARNING {WARNING}") for line in lines)
    assert any(line.endswith("DEBUG   checkpoint interval: 10 s or longer") for line in lines)
    assert any("fedbn seed 0: done at round 1 of 1" in line for line in lines)
    assert all(line[:4].isdecimal() and "T" in line[:11] for line in lines)


def test_the_answer_of_a_run_as_json_has_its_warnings(warned: Path) -> None:
    assert json.loads((warned.parent / "answer.json").read_text())["warnings"] == [WARNING]


def test_a_comparison_as_json_has_the_warnings_of_its_runs(warned: Path) -> None:
    one = json.loads(call("compare", warned, "--format", "json").out)
    assert one["warnings"] == [WARNING]
    two = json.loads(call("compare", warned, warned, "--format", "json").out)
    assert two["warnings"] == [WARNING] or two["warnings"] == [f"{warned}: {WARNING}"] * 2


def test_an_evaluation_as_json_has_the_warnings_of_its_run(warned: Path) -> None:
    assert json.loads(call("evaluate", warned, "--json").out)["warnings"] == [WARNING]


@pytest.mark.parametrize("form", ["html", "md"])
def test_a_report_has_the_warnings_of_its_run(warned: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"report.{form}"
    assert call("report", warned, "--format", form, "--out", file).code == 0
    assert WARNING in file.read_text()


def test_a_model_card_has_the_warnings_of_its_run(warned: Path, tmp_path: Path) -> None:
    made = export(fedbn.open_run(warned), "a", out=tmp_path / "a.safetensors")
    assert f"Warning of the run: {WARNING}" in made.card.read_text()


def test_a_merged_run_has_the_warnings_of_its_parts(warned: Path, tmp_path: Path) -> None:
    assert call("merge", warned, "--out", tmp_path / "merged").code == 0
    assert [one.text for one in read_warnings(RunFolder(tmp_path / "merged"))] == [WARNING]


def test_a_run_without_a_folder_keeps_its_warnings_for_the_model_card(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 20, 4)).astype("float32")
    y = (x[..., 0] > 0).astype("int64")
    y[1] = 0
    result = fedbn.fit({"a": (x[0], y[0]), "b": (x[1], y[1])}, "mlp", rounds=1, notes=str)
    assert WARNING in result.warnings
    made = export(result, "a", out=tmp_path / "a.safetensors")
    assert WARNING in made.card.read_text()


def test_a_run_that_warns_of_nothing_stores_nothing(finished: Path) -> None:
    assert not (finished / "warnings.jsonl").exists()
    assert "WARNING" not in (finished / "run.log").read_text()


def test_what_nobody_can_act_on_is_only_logged(tmp_path: Path) -> None:
    heard: list[str] = []
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    data = {f"site-{n:02}": (x * (n + 1), (x[:, 0] > 0).astype("int64")) for n in range(12)}
    fedbn.fit(data, "mlp", rounds=1, notes=heard.append, out=tmp_path / "out")
    assert heard == []
    assert not (tmp_path / "out" / "warnings.jsonl").exists()
    assert "DEBUG   fedbn seed 0: clients train in stacks" in (tmp_path / "out/run.log").read_text()


def test_how_datasets_are_compared_is_only_logged(tmp_path: Path) -> None:
    heard: list[str] = []
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    fedbn.fit({"a": data, "b": data}, "mlp", rounds=1, notes=heard.append, out=tmp_path / "out")
    assert heard == []
    log = (tmp_path / "out" / "run.log").read_text()
    assert "DEBUG   Datasets are read a batch at a time" in log


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    store = MessageStore(RunFolder(tmp_path))
    store.extend([RunWarning("one"), RunWarning("two", ("fedbn", "default", 3))])
    file = tmp_path / "warnings.jsonl"
    file.write_bytes(b"{half\n" + file.read_bytes() + b'{"text": 3}\n')
    found = read_warnings(RunFolder(tmp_path))
    assert grouped(found) == ("one", "two (fedbn seed 3)")


def test_a_warning_of_every_round_is_one_warning_of_a_report() -> None:
    jobs = [("fedavg", "default", 0), ("fedbn", "default", 0)]
    found = [
        RunWarning(f"round {number}: b: it diverged: lower training.lr (0.1) (norm {number})", job)
        for number in range(1, 301)
        for job in jobs
    ]
    found.insert(5, RunWarning("round 2: c: it raised an error", jobs[1]))
    assert grouped(found) == (
        "b: it diverged: lower training.lr (0.1) (norm 1) (in 300 rounds, the first is 1; "
        "fedavg seed 0, fedbn seed 0)",
        "round 2: c: it raised an error (fedbn seed 0)",
    )


def test_a_resumed_run_repeats_no_warning(tmp_path: Path) -> None:
    for _ in range(2):
        MessageStore(RunFolder(tmp_path)).add("warning", "slow", ("fedbn", "default", 0))
    assert len(read_warnings(RunFolder(tmp_path))) == 1
