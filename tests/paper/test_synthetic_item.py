"""The synthetic experiment as an item: which numbers are compared, and a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbn.errors import ConfigError
from fedbn.paper import small_items
from fedbn.results.aggregate import ScoreTable
from reproducing import numbers, request

TINY = (
    "training.rounds=3",
    "data.train=20",
    "data.test=10",
    "model.args.width=8",
    "sweep.training.lr=[0.1]",
)


def test_losses_are_averaged_over_clients_step_by_step():
    records = [
        {"metric": "training_loss", "setting": "s", "method": "fedbn", "seed": 0, "round": r,
         "client": c, "domain": c, "split": "train", "value": v, "statistics": "running"}
        for r, c, v in [(2, "a", 1.0), (1, "a", 3.0), (1, "b", 5.0), (2, "b", 2.0)]
    ]  # fmt: skip
    other = {**records[0], "metric": "loss", "value": 9.0}
    assert small_items.losses_by_step(ScoreTable.of([*records, other])) == {
        "s": {"fedbn": {0: [4.0, 1.5]}}
    }


def test_catching_up_is_counted_in_steps():
    assert small_items.caught_up([4.0, 2.0, 1.0], [4.0, 3.0, 2.0]) == 2
    assert small_items.caught_up([4.0, 3.5, 3.0], [4.0, 3.0, 2.0]) is None


def test_a_short_run_is_tabulated_and_drawn(tmp_path: Path):
    made = request("synthetic", tmp_path, *TINY)
    outcome = small_items.synthetic(made)
    found = numbers(outcome.tables[0])
    assert list(found) == [
        (f"lr 0.1, start {start}", method)
        for start in ("hidden", "all")
        for method in ("fedavg", "fedbn")
    ]
    for start in ("hidden", "all"):
        avg, bn = (found[f"lr 0.1, start {start}", m] for m in ("fedavg", "fedbn"))
        assert avg[0] == bn[0]  # both start from the same network
        assert bn[1] < bn[0]  # and learn
        assert avg[2:] == [None, None]
    assert [figure.suffix for figure in outcome.figures] == [".svg", ".png"]
    assert [text.partition(":")[0] for text in outcome.remarks[:2]] == [
        "lr 0.1, start hidden", "lr 0.1, start all"
    ]  # fmt: skip
    assert all("statistics" in text for text in outcome.remarks[2:])


def test_both_methods_are_needed(tmp_path: Path):
    made = request("synthetic", tmp_path, *TINY, "methods=['fedbn']", "seeds=[0]")
    with pytest.raises(ConfigError, match="lacks fedavg or fedbn"):
        small_items.synthetic(made)
