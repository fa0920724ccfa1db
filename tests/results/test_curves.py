"""The learning-curve picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbn.results.curves import draw_curves
from fedbn.results.style import colours
from scores import record


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"], ["$x^{$", "日本", "_hidden"]])
def test_a_picture_whatever_the_names(names: list[str], tmp_path: Path) -> None:
    lines = [
        record(0.1 * round + 0.05 * seed, name, seed=seed, round=round, method=method)
        for method in ("fedbn", "fedavg+$m_{$", "own:method")
        for seed in (0, 1)
        for round in (1, 2)
        for name in names
    ]
    draw_curves(lines, tmp_path / "curves.png", title="a title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_equal_records_give_equal_pictures(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        draw_curves([record(0.5)], tmp_path / name)
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()


def test_no_accuracy_no_picture(tmp_path: Path) -> None:
    draw_curves([record(0.5, metric="loss")], tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []


def test_a_method_keeps_its_colour() -> None:
    alone = colours(["fedbn"])["fedbn"]
    many = colours(["fedavg", "x", "y", "fedbn", "z"])
    assert many["fedbn"] == alone
    assert len(set(many.values())) == 5
