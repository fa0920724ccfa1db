"""Every method in one table, and what each gains over two others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedbn.methods
from fedbn import registry
from fedbn.experiments.configuration import find, read_toml
from fedbn.methods import baseline_names
from fedbn.paper.methods_table import methods
from fedbn.results.aggregate import Records
from heart_files import written
from reproducing import numbers, request
from scores import scored_again

TINY = ("training.rounds=1", "data.percent=10", "data.test_limit=10")


def test_every_shipped_federated_method_is_in_the_file():
    """Baselines are for tables, and the file's first data set has pictures."""
    federated = {*registry.names(fedbn.methods)} - {*baseline_names()}
    assert {*read_toml(find("methods"))["methods"]} == federated


def test_methods_are_tabulated_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path))
    written(tmp_path)
    outcome = methods(request("methods", tmp_path / "out", *TINY))
    assert [table.name for table in outcome.tables] == [
        "methods-digits_mini", "methods-digits_mini-gain", "methods-heart", "methods-heart-gain"
    ]  # fmt: skip
    found = [numbers(table) for table in outcome.tables]
    for scores, gains in zip(found[::2], found[1::2], strict=True):
        assert gains[("FedBN",)] == [
            scores[("FedBN",)][-1] - scores[(base,)][-1] for base in ("FedAvg", "SiloBN")
        ]
        assert gains[("FedAvg",)][0] is None


def test_data_that_is_not_there_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path))
    outcome = methods(request("methods", tmp_path / "out", *TINY, "methods=['fedavg', 'silobn']"))
    assert outcome.remarks[-1] == "left out, its files are not there: heart"
    assert len(outcome.tables) == 2
    assert outcome.remarks[0].startswith("digits_mini: FedAvg and SiloBN train the same shared")


def test_every_kind_of_statistics_is_a_row_and_is_compared_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path))
    asked = request("methods", tmp_path / "out", *TINY, "methods=['fedavg', 'fedbn']")

    def train(raw: Mapping[str, Any], place: Path) -> Records:
        found = [r for r in asked.train(raw, place) if r["statistics"] == "running"]
        fedavg = scored_again([r for r in found if r["method"] == "fedavg"], "exact", 0.05)
        fedbn = scored_again([r for r in found if r["method"] == "fedbn"], "exact", 0.01)
        return [*fedavg, *fedbn]

    scores, gains = map(numbers, methods(replace(asked, train=train)).tables)
    labels = [("FedAvg",), ("FedAvg, exact statistics",), ("FedBN",), ("FedBN, exact statistics",)]
    assert [*scores] == labels
    assert [*gains] == [labels[0], *labels[2:]]  # FedAvg's other row has nothing to gain over
    assert scores[labels[1]] == pytest.approx([value + 5 for value in scores[labels[0]]])
    running, exact = gains[labels[2]][0], gains[labels[3]][0]
    assert exact == pytest.approx(running - 4)
    assert gains[labels[2]][1] is None  # SiloBN was not trained
