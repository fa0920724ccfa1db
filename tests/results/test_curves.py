"""The learning-curve picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedbn.results import colours
from fedbn.results.aggregate import ScoreTable
from fedbn.results.figures import draw_curves
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
    draw_curves(ScoreTable.of(lines), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_equal_records_give_equal_pictures(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        draw_curves(ScoreTable.of([record(0.5)]), tmp_path / name)
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()


@pytest.mark.parametrize(("clients", "panels"), [(11, 12), (12, 6), (1000, 6)])
def test_of_many_clients_the_worst_are_drawn_and_the_quartiles_of_all(
    clients: int, panels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    heads: list[str] = []
    shades: list[int] = []

    def saved(figure: Figure, *_: object, **__: object) -> None:
        heads.append(figure.legends[0].get_title().get_text())
        drawn.extend(axis.get_title() for axis in figure.axes)
        shades.append(len(figure.axes[-1].collections))

    monkeypatch.setattr(Figure, "savefig", saved)
    names = [f"c{i}" for i in range(clients)]
    lines = [record(0.9, name, round=1) for name in names]  # the last round decides
    lines += [record(1 - i / clients, name, round=2) for i, name in enumerate(names)]
    draw_curves(ScoreTable.of(lines), tmp_path / "curves.png")
    assert len(drawn) == panels
    assert drawn.pop() == "mean of clients"
    (title,) = heads
    if clients == 11:
        assert (drawn, title, shades) == (names, "", [1])
    else:
        assert title == f"the 5 worst of {clients:,} clients, and the mean and quartiles of all"
        assert (drawn, shades) == (names[:-6:-1], [2])


def test_quartiles_are_those_of_the_clients_means_over_seeds() -> None:
    lines = [
        record(value + change, f"c{i}", seed=seed)
        for i, value in enumerate((0.1, 0.2, 0.3, 0.4, 0.5))
        for seed, change in ((0, -0.05), (1, 0.05))
    ]
    ((found,),) = ScoreTable.of(lines).quartiles().values()
    assert found == (1, pytest.approx(20.0), pytest.approx(40.0))


def test_no_accuracy_no_picture(tmp_path: Path) -> None:
    draw_curves(ScoreTable.of([record(0.5, metric="loss")]), tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []


def test_a_method_keeps_its_colour() -> None:
    alone = colours(["fedbn"])["fedbn"]
    many = colours(["fedavg", "x", "y", "fedbn", "z"])
    assert many["fedbn"] == alone
    assert len(set(many.values())) == 5
