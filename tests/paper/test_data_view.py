"""The picture of the data as an item: what it shows where the digits are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbn.errors import ConfigError
from fedbn.paper import small_items
from reproducing import numbers, request

MINI = ("data.name=digits_mini", "reproduce.options.also=[]")


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path / "data"))


def test_without_the_digits_what_is_embedded_and_rendered_is_asked_for(tmp_path: Path):
    made = request("data-view", tmp_path / "out")
    assert made.experiment["data"] == {"name": "digits_mini"}
    assert made.options["also"] == ["synth_digits"]
    assert made.changes[0] == "data digits_mini in place of digits"


def test_the_picture_says_what_it_does_not_show(tmp_path: Path):
    outcome = small_items.data_view(request("data-view", tmp_path / "out", *MINI))
    names = [figure.name for figure in outcome.figures]
    assert names == ["data-view-digits_mini.svg", "data-view-digits_mini.png"]
    drawn = outcome.figures[0].read_text(encoding="utf-8")
    assert "digits_mini in place of digits" in drawn.replace("\n", " ")
    found = numbers(outcome.tables[0])
    for place, row in enumerate(found.values()):
        assert row[place] == min(row) < 0.3  # halves of one client are alike but for chance
        assert [line[place] for line in found.values()] == row  # as far there as back


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("samples=0", "samples = 0: legal are whole numbers from 1"),
        ("also='digits'", "also = 'digits': legal is a list of data sets' names"),
        ("also=['digit']", "unknown data set 'digit'"),
        ("pictures=3", "reproduce.options.pictures"),
    ],
)
def test_a_wrong_option_is_named(setting: str, text: str, tmp_path: Path):
    asked = (MINI[0], f"reproduce.options.{setting}")
    with pytest.raises(ConfigError, match=text):
        small_items.data_view(request("data-view", tmp_path / "out", *asked))
