"""Whole experiments: sweeps, validation, grids, workers, and the worker processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commanding import bits, call, newest, records, with_running_statistics, write_sites
from fedbn.errors import ConfigError, DamagedRun, DataError, FedbnError, TooFewClients
from fedbn.experiments import process_pool
from fedbn.experiments.jobs import Event
from fedbn.runs import checkpoints

SMALL = ("--model", "mlp", "--rounds", 2, "--seed", 0)


@pytest.mark.parametrize(
    "sweep",
    ["sweep.training.local_steps=[1, 2]", "sweep.data.path=['sites', 'others']"],
    ids=["of steps", "of data"],
)
def test_the_saved_configuration_means_the_same_jobs(
    sweep: str, sites: Path, tmp_path: Path
) -> None:
    """Worker processes and `resume` know nothing else."""
    shutil.copytree(sites, tmp_path / "sites")
    write_sites(tmp_path / "others", "xy")
    data = () if "data" in sweep else ("--data", "sites/")
    asked = ("--rounds", 2, "--seed", 0, "--method", "fedbn", "--set", sweep)
    answer = call("run", *data, *asked, "--workers", 1, "--out", "run", cwd=tmp_path)
    assert answer.code == 0, answer.err
    variants = (
        ["local_steps=1", "local_steps=2"] if "steps" in sweep else ["path=sites", "path=others"]
    )
    head, *rows = answer.out.splitlines()[:5]
    assert head.startswith("test accuracy, % ")
    for variant, running, batch in zip(variants, rows[::2], rows[1::2], strict=True):
        assert running.startswith(f"fedbn ({variant}) ")
        assert batch.startswith(f"fedbn ({variant}), batch statistics ")
    whole = bits(tmp_path / "run")
    for last in tmp_path.glob("run/checkpoints/*/*/*/round-000002"):
        shutil.rmtree(last)
    assert call("resume", tmp_path / "run", "--workers", 1).code == 0  # from another directory
    assert bits(tmp_path / "run") == whole


def test_a_key_that_a_run_did_not_know_yet_had_its_default(sites: Path, tmp_path: Path) -> None:
    asked = ("--method", "fedbn", "--set", "training.local_steps=2", "--out", tmp_path / "out")
    assert call("run", "--data", sites, *SMALL, *asked).code == 0
    file = tmp_path / "out" / "environment.json"
    kept = json.loads(file.read_text())
    assert kept["config"]["training"].pop("unequal") == "own"
    file.write_text(json.dumps(kept))
    assert call("resume", tmp_path / "out").code == 0
    kept["config"]["training"]["unequal"] = "repeat"
    file.write_text(json.dumps(kept))
    answer = call("resume", tmp_path / "out")
    assert (answer.code, "began: training.unequal;" in answer.line) == (3, True)


def test_a_run_from_before_last_batch_existed_resumes_with_kept_batches(
    sites: Path, tmp_path: Path
) -> None:
    """Such a run names no `last_batch`. The default was `keep` then and is `merge` now."""
    sizes = ("--rounds", 2, "--seed", 0, "--method", "fedbn", "--workers", 1)
    asked = (*sizes, "--set", "training.batch_size=6", "--set", "training.last_batch=keep")
    assert call("run", "--data", sites, *asked, "--out", tmp_path / "out").code == 0
    whole = bits(tmp_path / "out")
    for last in tmp_path.glob("out/checkpoints/*/*/*/round-000002"):
        shutil.rmtree(last)
    config, environment = tmp_path / "out" / "config.toml", tmp_path / "out" / "environment.json"
    stated = config.read_text()
    assert stated.count('last_batch = "keep"\n') == 1
    config.write_text(stated.replace('last_batch = "keep"\n', ""))
    began = json.loads(environment.read_text())
    assert began["config"]["training"].pop("last_batch") == "keep"
    environment.write_text(json.dumps(began))

    answer = call("resume", tmp_path / "out", "--workers", 1)

    assert answer.code == 0, answer.err
    assert bits(tmp_path / "out") == whole


def test_the_validation_split_is_held_out_of_training(sites: Path, tmp_path: Path) -> None:
    asked = ("--method", "fedbn", "--set", "evaluation.validation=0.25", "--out", tmp_path / "out")
    assert call("run", "--data", sites, *SMALL, *asked).code == 0
    found = with_running_statistics(records(tmp_path / "out" / "metrics.jsonl"))
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
    found = with_running_statistics(records(tmp_path / "out" / "metrics.jsonl"))

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
    _, *rows = answer.out.splitlines()[:7]
    chosen = "fedprox (mu=0.01)" if rows[3].startswith("fedprox (mu=0.01)") else "fedprox (mu=100)"
    kinds = ["", ", local statistics", ", batch statistics"]
    names = [method + kind for method in ("fedavg", chosen) for kind in kinds]
    for row, name in zip(rows, names, strict=True):
        assert row.startswith(f"{name} ")
    (remark,) = (line for line in answer.out.splitlines() if "chosen on" in line)
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


@pytest.mark.parametrize("kind", [FedbnError, ConfigError, DataError, TooFewClients, DamagedRun])
def test_what_fails_in_a_worker_fails_the_same_in_its_parent(kind: type[FedbnError]) -> None:
    event = Event("failed", ("fedbn", "default", 3), text="why", exit_code=kind.exit_code)
    error = process_pool._error(Event.from_line(event.to_line()))
    assert type(error) is kind
    assert str(error) == "fedbn default 3: why"


def test_a_method_with_server_memory_resumes(sites: Path, tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--rounds", 3, "--seed", 0, "--method", "fedbn+adam")
    assert call("run", "--data", sites, *asked, "--out", tmp_path / "out").code == 0
    whole = bits(tmp_path / "out")
    last = newest(tmp_path / "out", "fedbn+adam")
    assert checkpoints.Checkpoint(last).section("optimizer")
    shutil.rmtree(last)
    assert call("resume", tmp_path / "out").code == 0
    assert bits(tmp_path / "out") == whole
