"""The table of a run as a person reads it: few clients, many, long names, other programs."""

from __future__ import annotations

import csv
import io

import pytest

from fedbn.core.metric import Metric
from fedbn.results.aggregate import MEAN, Cell, Key, Row, Summary
from fedbn.results.result_table import condensed, fitted, grid_of, latex, readable, written

NAMES = [f"client-{i:03d}" for i in range(100)]


def summary(
    scores: dict[str, list[float]], names: list[str], metric: Metric | None = None
) -> Summary:
    rows = []
    for method, values in scores.items():
        cells = {name: Cell.of([v]) for name, v in zip(names, values, strict=True)}
        rows.append(
            Row(Key(method, "default"), {**cells, MEAN: Cell.of([sum(values) / len(values)])})
        )
    better = metric or Metric("accuracy", higher=True, unit="%")
    return Summary((*names, MEAN), tuple(rows), (0,), (), better)


HUNDRED = summary({"fedavg": [float(i) for i in range(100)], "fedbn": [50.0] * 100}, NAMES)


def column(grid: object, name: str) -> dict[str, str]:
    at = grid.columns.index(name)  # type: ignore[attr-defined]
    pairs = zip(grid.rows, grid.cells, strict=True)  # type: ignore[attr-defined]
    return {row: cells[at].text for row, cells in pairs}


def test_few_clients_are_columns_where_they_fit_and_rows_where_they_do_not() -> None:
    few = summary({"fedavg": [50.0, 60.0], "fedbn": [70.0, 55.0]}, ["a", "b"])
    wide = readable(few, 80)
    assert (wide.columns, wide.rows) == (("a", "b", MEAN), ("fedavg", "fedbn"))
    assert [cell.best for cell in wide.cells[0]] == [False, True, False]
    narrow = readable(few, wide.width - 1)
    assert (narrow.columns, narrow.rows) == (("fedavg", "fedbn"), ("a", "b", MEAN))
    assert narrow.cells[0][1].best


def test_of_many_clients_the_table_says_how_they_spread_and_who_is_worst() -> None:
    grid = readable(condensed(HUNDRED), 80)
    assert grid.columns == ("fedavg", "fedbn")
    assert column(grid, "fedavg") == {
        MEAN: "49.5",
        "median": "49.5",
        "worst decile": "4.5",  # the mean of 0 to 9
        "best": "99.0",
        **{f"client-00{i}": f"{i}.0" for i in range(5)},
    }
    assert "100 clients" in condensed(HUNDRED).remarks[-1]


def test_where_less_is_better_the_worst_have_most() -> None:
    errors = summary({"fedbn": [float(i) for i in range(100)]}, NAMES, Metric("mae", higher=False))
    found = column(readable(condensed(errors), 80), "fedbn")
    assert (found["worst decile"], found["best"]) == ("94.5", "0.0")
    assert "client-099" in found


def test_a_dozen_is_not_many() -> None:
    dozen = summary({"fedbn": [1.0] * 12}, NAMES[:12])
    assert condensed(dozen) is dozen


@pytest.mark.parametrize("width", [80, 60, 50])
def test_nothing_is_wider_than_the_terminal_and_names_keep_their_ends(width: int) -> None:
    names = [f"University Hospital of Somewhere, Department {i}" for i in range(3)]
    scores = {f"method-of-mine-{i}": [50.0] * 3 for i in range(3)}
    grid = fitted(readable(summary(scores, names), width), width)
    assert grid.width <= width
    assert [row[-1] for row in grid.rows[:3]] == ["0", "1", "2"]


def test_other_programs_get_the_same_numbers_under_display_names() -> None:
    few = summary({"fedavg": [50.0, 60.0], "fedbn+prox(0.1)": [70.0, 55.0]}, ["a_1", "=b"])
    grid = grid_of(few, named=True)
    rows = list(csv.reader(io.StringIO(written(grid, "csv"))))
    assert rows[0] == ["test accuracy, %", "a_1", "'=b", "mean"]
    assert rows[2] == ["FedBN+prox(0.1)", "70.0", "55.0", "62.5"]
    assert "| FedAvg | 50.0 | 60.0 | 55.0 |" in written(grid, "markdown")
    tex = written(grid, "latex")
    assert r"test accuracy, \% & a\_1 & =b & mean \\" in tex
    assert r"FedAvg & 50.0 & \textbf{60.0} & 55.0 \\" in tex
    assert latex("\\^~") == r"\textbackslash{}\textasciicircum{}\textasciitilde{}"
