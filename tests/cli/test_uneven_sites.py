"""A run whose clients have very different numbers of test samples."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbn
from commanding import Answer, arrays, call


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A run with 8 test samples at client a and 100 at client b, and its answer as JSON."""
    home = tmp_path_factory.mktemp("uneven")
    (home / "sites").mkdir()
    few, many = arrays(0), arrays(1, n=16)
    draws = np.random.default_rng(2)
    many["test_x"] = draws.normal(size=(100, 6)).astype("float32")
    many["test_y"] = (many["test_x"][:, 0] > 0).astype("int64")
    for name, content in (("a", few), ("b", many)):
        np.savez(home / "sites" / f"{name}.npz", **content)
    run = home / "run"
    answer = call(
        *("run", "--data", home / "sites", "--model", "mlp", "--rounds", 2, "--seed", 0),
        *("--method", "fedbn", "--method", "fedavg", "--workers", 1, "--json", "--out", run),
    )
    assert answer.code == 0, answer.err
    return run, answer


def test_the_answer_has_both_means_and_the_sizes(uneven: tuple[Path, Answer]) -> None:
    found: dict[str, Any] = json.loads(uneven[1].out)
    for row in found["rows"]:
        own = {name: cell["mean"] for name, cell in row["accuracy"].items()}
        assert own["mean"] == pytest.approx((own["a"] + own["b"]) / 2)
        assert own["weighted mean"] == pytest.approx((8 * own["a"] + 100 * own["b"]) / 108)
    assert any("test samples: a 8, b 100" in text for text in found["remarks"])


def test_the_printed_table_states_the_sizes(uneven: tuple[Path, Answer]) -> None:
    answer = call("resume", uneven[0])
    assert "weighted mean" in answer.out.splitlines()[0]
    assert "test samples: a 8, b 100; in 'mean' every client counts as much" in answer.out


def test_in_python_a_result_shows_the_weighted_mean_too(uneven: tuple[Path, Answer]) -> None:
    opened = fedbn.open_run(uneven[0], method="fedbn")
    scores = opened.scores()
    weighted = (8 * scores["a"] + 100 * scores["b"]) / 108
    assert opened.weighted_mean() == pytest.approx(weighted)
    assert f"({weighted:.3f} weighted by test samples, 8 to 100 a client)" in repr(opened)
    both = fedbn.fit(str(uneven[0].parent / "sites"), "mlp", methods=["fedbn", "fedavg"], rounds=2)
    again = both.runs["fedbn", 0]
    assert again.weighted_mean() == pytest.approx(weighted)
    assert "mean test accuracy (weighted by test samples): fedbn" in repr(both)
    assert f"fedbn {statistics.fmean(scores.values()):.3f} ({weighted:.3f})" in repr(both)
