"""Every method in one table, and what each gains over two others."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedbn.methods
from fedbn import registry
from fedbn.experiments.configuration import find, read_toml
from fedbn.paper.methods_table import methods
from heart_files import written
from reproducing import numbers, request

TINY = ("training.rounds=1", "data.percent=10", "data.test_limit=10")


def test_every_shipped_method_is_in_the_file():
    assert {*read_toml(find("methods"))["methods"]} == {*registry.names(fedbn.methods)}


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
    assert outcome.remarks == ("left out, its files are not there: heart",)
    assert len(outcome.tables) == 2
