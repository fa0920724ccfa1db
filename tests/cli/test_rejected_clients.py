"""Runs in which no update of some client was ever accepted: finished, saved, and not a success."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import fedbn
from commanding import bits, call, records, write_sites

SMALL = ("--model", "mlp", "--rounds", 2, "--seed", 0, "--method", "fedavg", "--workers", 1)


def overflow(content: dict[str, np.ndarray]) -> None:
    """Give a client features whose squares overflow, so that its every update is NaN."""
    for name in ("train_x", "test_x"):
        content[name] = content[name].astype("float32") * np.float32(1e30)


@pytest.fixture
def with_overflow(tmp_path: Path) -> Path:
    """Three clients; every update of the last one, `c`, is rejected."""
    return write_sites(tmp_path / "sites", "abc", overflow)


def test_a_run_with_a_client_rejected_in_every_round_is_saved_and_ends_with_5(
    with_overflow: Path, tmp_path: Path
) -> None:
    answer = call("run", "--data", with_overflow, *SMALL, "--out", tmp_path / "out", "--json")
    assert answer.code == 5, answer.err
    assert (
        "every update of c was rejected (fedavg seed 0): it has no score"
        in answer.err.splitlines()[-1]
    )
    rows = json.loads(answer.out)["rows"]
    assert [row["statistics"] for row in rows] == ["running", "local", "batch"]
    assert all(row["accuracy"].keys() == {"a", "b"} for row in rows)  # no mean of the others
    assert max(record["round"] for record in records(tmp_path / "out" / "metrics.jsonl")) == 2
    finished = bits(tmp_path / "out")

    again = call("resume", tmp_path / "out")

    assert again.code == 5
    assert bits(tmp_path / "out") == finished


def test_a_run_with_a_rejected_client_is_compared_without_a_mean(
    with_overflow: Path, tmp_path: Path
) -> None:
    seeds = ("--seed", 1, "--method", "fedbn")
    run = call("run", "--data", with_overflow, *SMALL, *seeds, "--out", tmp_path / "out")
    assert run.code == 5
    answer = call("compare", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "every update of c was rejected" in answer.out
    assert "mean" not in answer.out.partition("\n\n")[0]  # the table
    for command in (
        ("evaluate",),
        ("export", "--client", "c", "--out", tmp_path / "c.safetensors"),
    ):
        told = call(command[0], tmp_path / "out", *command[1:])
        assert "every update of c was rejected: its model learned nothing" in told.err


def test_a_client_that_was_never_selected_is_not_rejected(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", "abc")
    asked = ("--set", "training.participation=0.3", "--rounds", 1)
    answer = call("run", "--data", sites, *SMALL, *asked, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err


def test_in_python_a_rejected_client_has_no_number_and_a_warning(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(20, 3)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    sites = {"a": (x, y), "b": (50 * x, y), "c": (np.float32(1e30) * x, y)}
    heard: list[str] = []

    result = fedbn.fit(sites, "mlp", "fedavg", rounds=2, notes=heard.append, out=tmp_path / "out")

    assert result.rejected == ("c",)
    assert math.isnan(result.accuracy()["c"])
    assert math.isnan(result.scores("train", "loss")["c"])
    assert not any(math.isnan(value) for name, value in result.scores().items() if name != "c")
    (warning,) = (text for text in heard if text.startswith("every update"))
    assert warning.startswith("every update of c was rejected (fedavg seed 0)")
    assert math.isnan(fedbn.open_run(tmp_path / "out").accuracy()["c"])
