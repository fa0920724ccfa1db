"""Whole experiments: sweeps, validation, grids, workers, and the worker processes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from commanding import bits, call, children, newest, records, running, write_sites

SMALL = ("--model", "mlp", "--rounds", 2, "--seed", 0)


@pytest.mark.parametrize(
    "sweep",
    ["sweep.training.local_steps=[1, 2]", "sweep.data.path=['sites', 'others']"],
    ids=["of steps", "of data"],
)
def test_a_sweep_is_the_same_in_one_process_and_in_two(
    sweep: str, sites: Path, tmp_path: Path
) -> None:
    shutil.copytree(sites, tmp_path / "sites")
    write_sites(tmp_path / "others", "xy")
    data = () if "data" in sweep else ("--data", "sites/")
    for workers in (1, 2):
        asked = ("--rounds", 2, "--seed", 0, "--method", "fedbn", "--set", sweep)
        out = ("--workers", workers, "--out", f"run-{workers}")
        answer = call("run", *data, *asked, *out, cwd=tmp_path)
        assert answer.code == 0, answer.err
        assert len(answer.out.splitlines()) == 3
    assert bits(tmp_path / "run-1") == bits(tmp_path / "run-2")
    assert call("resume", tmp_path / "run-1").code == 0  # from another directory


def test_the_validation_split_is_held_out_of_training(sites: Path, tmp_path: Path) -> None:
    asked = ("--method", "fedbn", "--set", "evaluation.validation=0.25", "--out", tmp_path / "out")
    assert call("run", "--data", sites, *SMALL, *asked).code == 0
    found = records(tmp_path / "out" / "metrics.jsonl")
    accuracy = {
        split: [r["value"] for r in found if (r["split"], r["metric"]) == (split, "accuracy")]
        for split in ("train", "valid", "test")
    }
    assert all(len(values) == 4 for values in accuracy.values())
    # Of 16 samples 4 are held out: accuracies are multiples of 1/12 and of 1/4.
    assert all((12 * value).is_integer() for value in accuracy["train"])
    assert all((4 * value).is_integer() for value in accuracy["valid"])


def test_the_best_round_is_the_best_on_validation_data(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 5, "--seed", 0, "--method", "fedbn", "--json")
    asked += ("--set", "evaluation.validation=0.25", "--set", "evaluation.report=best")
    answer = call("run", "--data", sites, *asked, "--out", tmp_path / "out")
    assert answer.code == 0
    found = records(tmp_path / "out" / "metrics.jsonl")

    def mean(round: int, split: str) -> float:
        values = [
            r["value"]
            for r in found
            if (r["round"], r["split"], r["metric"]) == (round, split, "accuracy")
        ]
        return sum(values) / len(values)

    best = max(range(1, 6), key=lambda round: (mean(round, "valid"), -round))
    shown = json.loads(answer.out)["rows"][0]["accuracy"]["mean"]["mean"]
    assert shown == pytest.approx(100 * mean(best, "test"))


def test_a_mu_is_chosen_on_validation_data(sites: Path, tmp_path: Path) -> None:
    asked = ("--method", "fedavg", "--method", "fedprox", "--workers", 1, "--out", tmp_path / "out")
    asked += ("--set", "method.mu=[0.01, 100]", "--set", "evaluation.validation=0.25")
    answer = call("run", "--data", sites, *SMALL, *asked)
    assert answer.code == 0
    _, fedavg, fedprox, remark = answer.out.splitlines()
    assert fedavg.startswith("fedavg ")
    assert fedprox.startswith(("fedprox (mu=0.01)", "fedprox (mu=100)"))
    assert "chosen on validation data from mu=0.01, mu=100" in remark
    assert {f.name for f in (tmp_path / "out/checkpoints/fedprox").iterdir()} == {
        "mu=0.01",
        "mu=100.0",
    }


def test_scores_every_so_many_rounds_and_at_the_end(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 5, "--seed", 0, "--method", "fedbn")
    asked += ("--set", "evaluation.every=2", "--out", tmp_path / "out")
    assert call("run", "--data", sites, *asked).code == 0
    found = records(tmp_path / "out" / "metrics.jsonl")
    assert sorted({r["round"] for r in found if r["metric"] == "accuracy"}) == [2, 4, 5]
    assert sorted({r["round"] for r in found if r["metric"] == "training_loss"}) == [1, 2, 3, 4, 5]


FAILS = """
from torch import nn

class Loud(nn.Module):
    def forward(self, x):
        if self.training and len(x) > 2:
            raise RuntimeError("worker trouble")
        return x

def net():
    print("a model that prints")
    return nn.Sequential(Loud(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
"""


def test_a_job_that_fails_in_a_worker_has_its_exit_code_and_ends_the_others(
    sites: Path, tmp_path: Path
) -> None:
    (tmp_path / "loud.py").write_text(FAILS)
    asked = ("--model", "loud:net", "--rounds", 2, "--seed", 0, "--method", "fedbn")
    asked += ("--method", "fedavg", "--workers", 2, "--out", "out")
    answer = call("run", "--data", sites, *asked, cwd=tmp_path)
    assert answer.code == 5
    assert "default 0: round 1: 0 of 2 clients gave a usable update" in answer.err.splitlines()[-1]
    assert not any(map(running, children(os.getpid())))


def test_a_method_with_server_memory_resumes(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 3, "--seed", 0, "--method", "fedbn+adam")
    assert call("run", "--data", sites, *asked, "--out", tmp_path / "out").code == 0
    whole = bits(tmp_path / "out")
    last = newest(tmp_path / "out", "fedbn+adam")
    assert (last / "server.safetensors").exists()
    shutil.rmtree(last)
    assert call("resume", tmp_path / "out").code == 0
    assert bits(tmp_path / "out") == whole
