"""The map of shifts: a small one is trained, tabulated, drawn, and gone on with."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbn.errors import ConfigError
from fedbn.paper.items import Cell
from fedbn.paper.shift_map import shift_map
from fedbn.results.aggregate import Records
from reproducing import numbers, request
from scores import scored_again

TINY = (
    "training.rounds=3",
    "sweep.data.strength=[1.0]",
    "reproduce.options.participation=[0.4]",
    'reproduce.options.longer=["labels 1.0"]',
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("map")


def test_a_small_map_is_trained_tabulated_and_drawn(made: Path):
    outcome = shift_map(request("shift-map", made, *TINY))
    dials, gains, accuracies = map(numbers, outcome.tables[:3])
    longer = outcome.tables[3]
    assert [*dials] == [("brightness",), ("labels",), ("participation",)]
    found = accuracies["brightness", "1.0"]
    assert gains["brightness", "FedAvg"] == pytest.approx([found[0] - found[1]])
    assert dials[("brightness",)] == pytest.approx([found[0] - other for other in found[1:]])
    assert found[0] - found[1] > 10  # bright sites have statistics of their own
    assert (*accuracies,)[-1] == ("participation", "0.4")
    assert [figure.name for figure in outcome.figures] == ["shift-map.svg", "shift-map.png"]
    assert longer.columns == ("after 3 rounds", "after 12")
    assert numbers(longer)[("labels 1.0",)][0] == gains["labels", "FedAvg"][0]
    lines = (made / "shift-map-scores.csv").read_text(encoding="utf-8").splitlines()
    rows = [*csv.DictReader(lines)]
    assert len([row for row in rows if "statistics" not in row["method"]]) == 3 * 5
    mine = [float(r["accuracy"]) for r in rows if (r["dial"], r["method"]) == ("labels", "fedbn")]
    assert mine == pytest.approx([accuracies["labels", "1.0"][0]], abs=1e-4)


def test_a_map_that_is_there_is_not_trained_again(made: Path):
    before = (made / "run" / "metrics.jsonl").stat().st_mtime_ns
    jobs = sorted((made / "run" / "checkpoints").rglob("*.safetensors"))
    times = [file.stat().st_mtime_ns for file in jobs]
    shift_map(request("shift-map", made, *TINY))
    assert jobs
    assert [file.stat().st_mtime_ns for file in jobs] == times
    assert (made / "run" / "metrics.jsonl").stat().st_mtime_ns >= before


def test_each_further_kind_of_statistics_has_tables_of_its_own(made: Path):
    asked = request("shift-map", made, *TINY)

    def train(raw: Mapping[str, Any], place: Path) -> Records:
        found = [r for r in asked.train(raw, place) if r["statistics"] == "running"]
        if "transform" in raw["model"]:  # GroupNorm has no statistics to choose
            return found
        fedbn = [r for r in found if r["method"] == "fedbn"]
        others = [r for r in found if r["method"] != "fedbn"]
        return [*scored_again(fedbn, "exact", 0.01), *scored_again(others, "exact", 0.03)]

    outcome = shift_map(replace(asked, train=train))
    names = [table.name for table in outcome.tables]
    ends = ["dials", "", "accuracy", "longer", "dials-exact", "accuracy-exact"]
    assert names == ["-".join(filter(None, ("shift-map", end))) for end in ends]
    dials, _, accuracies, _, own_dials, own_accuracies = map(numbers, outcome.tables)
    changes = [1, 3, 3, 3, 0]  # FedBN, its three rivals with BatchNorm, GroupNorm
    for label, own in own_accuracies.items():
        sums = [a + b for a, b in zip(accuracies[label], changes, strict=True)]
        assert own == pytest.approx(sums)
    for label, own in own_dials.items():
        sums = [a + b for a, b in zip(dials[label], (-2, -2, -2, 1), strict=True)]
        assert own == pytest.approx(sums)


def test_a_cell_to_train_longer_must_be_one_of_the_map(made: Path):
    asked = request("shift-map", made, *TINY[:3], 'reproduce.options.longer=["labels 0.5"]')
    with pytest.raises(ConfigError, match=r"longer = 'labels 0.5': legal are brightness 1.0"):
        shift_map(asked)


def test_a_gain_is_paired_by_seed_and_one_seed_has_no_interval():
    cell = Cell.gained({0: 5.0, 1: 9.0, 2: 7.0}, {2: 1.0, 1: 4.0, 0: 1.0, 3: 50.0})
    gaps = [4.0, 5.0, 6.0]  # seed 3 has no partner
    assert cell.ours == statistics.fmean(gaps)
    assert cell.interval == pytest.approx((5 - 4.302653 / 3**0.5, 5 + 4.302653 / 3**0.5))
    assert Cell.gained({0: 5.0}, {0: 5.0}).interval is None
