"""Table, curve, picture, report and the paper's items tell the same of awkward records.

Three clients share domain a, one has b. FedBN has two seeds, FedAvg one, centralized one on pooled
data. Round 2 is not whole: one score is missing, one is null, and so is one of the pooled ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fedbn.paper.items import Cell as PaperCell
from fedbn.report import page
from fedbn.report.document import markdown
from fedbn.results.aggregate import LOSS_SEEN, MEAN, Key, ScoreTable, duel, summarize
from fedbn.results.figures import draw_curves
from reporting import contents
from scores import record

A = ("a-1", "a-2", "a-3")
FEDBN, FEDAVG, POOLED = (Key(name, "default") for name in ("fedbn", "fedavg", "centralized"))


def scored(method: str, seed: int, round: int, a: float, b: Any) -> list[dict[str, Any]]:
    job: dict[str, Any] = {"method": method, "seed": seed, "round": round}
    if method == "centralized":
        return [
            record(a, "all", domain="a", **job),
            record(b, "all", domain="b", **job),
        ]
    return [
        *(record(a, name, domain="a", **job) for name in A),
        record(b, "b", **job),
    ]


RECORDS = [
    *scored("fedbn", 0, 1, 0.4, 0.4),
    *scored("fedbn", 0, 2, 0.9, 0.9)[:-1],
    *scored("fedbn", 0, 3, 1.0, 0.0),  # clients: 300 / 4 = 75; domains: (100 + 0) / 2 = 50
    *scored("fedbn", 1, 1, 0.4, 0.4),
    *scored("fedbn", 1, 2, 0.9, None),
    *scored("fedbn", 1, 3, 0.8, 0.4),  # clients: 280 / 4 = 70; domains: (80 + 40) / 2 = 60
    *scored("fedavg", 0, 3, 0.5, 0.5),
    *scored("centralized", 0, 1, 0.3, 0.5),
    *scored("centralized", 0, 2, 0.9, None),
    *scored("centralized", 0, 3, 0.9, 0.7),
    record(2.0, "a-1", domain="a", split="train", metric="training_loss"),  # of those who trained
]
# 75 and 70 over seeds: 72.5, deviation sqrt(2 · 2.5² / (2 − 1)) = sqrt(12.5) = 3.54;
# 50 and 60 by domain: 55, deviation sqrt(2 · 5²) = sqrt(50) = 7.07.


@pytest.fixture(scope="module")
def table() -> ScoreTable:
    return ScoreTable.of(RECORDS)


def test_the_table_and_the_curve(table: ScoreTable) -> None:
    assert table.columns == (*A, "b")
    cells = {row.key: row.cells[MEAN] for row in summarize(table).rows}
    assert {key: str(cell) for key, cell in cells.items()} == {
        FEDBN: "72.5 ± 3.5",
        FEDAVG: "50.0",
        POOLED: "80.0",
    }
    assert cells[FEDBN].std == pytest.approx(12.5**0.5)
    curves = {curve.label: curve for curve in table.curves(MEAN)}
    assert {name: curve.x for name, curve in curves.items()} == {
        "fedbn": (1, 3),
        "fedavg": (3,),
        "centralized": (1, 3),
    }
    for key, cell in cells.items():
        assert curves[key.label].mean[-1] == cell.mean
        assert curves[key.label].std[-1] == cell.spread
    assert table.curves("a-1")[0].x == (1, 2, 3)
    assert table.curves(MEAN, LOSS_SEEN)[0].mean == (2.0,)


def test_the_picture(table: ScoreTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_curves(table, tmp_path / "curves.png")
    axes = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in axes] == [*A, "b", "mean of clients"]
    for axis, column in zip(axes, [*A, "b", MEAN], strict=True):
        for line, band, curve in zip(
            axis.lines, axis.collections, table.curves(column), strict=True
        ):
            assert tuple(line.get_xdata()) == curve.x
            assert tuple(line.get_ydata()) == curve.mean
            edge = {(x, y) for path in band.get_paths() for x, y in path.vertices.tolist()}
            low, high = curve.band
            assert {*zip(curve.x, low, strict=True), *zip(curve.x, high, strict=True)} <= edge


def test_the_report(table: ScoreTable) -> None:
    run = contents(records=RECORDS)
    assert run.curves(MEAN) == table.curves(MEAN)
    text = markdown(page([run]), "1")
    assert "| fedbn | **90.0 ± 14.1** |" in text  # a-1: 100 and 80
    assert "| 72.5 ± 3.5 |" in text
    # Only seed 0 has both: 75 − 50 on average, 100 − 50 at a-1, 0 − 50 at b.
    fight = duel(table, summarize(table))
    assert fight is not None
    assert fight.mean is not None
    assert run.duel == fight
    assert {gain.client: gain.mean for gain in (*fight.gains, fight.mean)} == pytest.approx(
        {**dict.fromkeys(A, 50), "b": -50, MEAN: 25}
    )


def test_the_papers_items_have_a_column_a_domain(table: ScoreTable) -> None:
    domains = table.by_domain()
    assert domains.columns == ("a", "b")
    scores = domains.scores()[FEDBN]
    assert scores == {"a": {0: 100, 1: 80}, "b": {0: 0, 1: 40}, MEAN: {0: 50, 1: 60}}
    curve = domains.curves(MEAN)[0]
    cell = PaperCell.of(scores[MEAN].values())
    assert (cell.ours, cell.std) == (55, pytest.approx(50**0.5))
    assert (curve.x, curve.mean[-1], curve.std[-1]) == ((1, 3), cell.ours, cell.std)
    assert domains.curves("a")[0].x == (1, 2, 3)
    assert domains.curves("b")[0].x == (1, 3)
    assert domains.scores()[POOLED] == table.scores()[POOLED]


def test_a_domain_without_one_of_its_clients_has_no_score() -> None:
    some = [*scored("fedbn", 0, 1, 0.4, 0.4), *scored("fedbn", 0, 2, 0.9, 0.9)[1:]]
    assert ScoreTable.of(some).by_domain().scores()[FEDBN] == {"b": {0: 90}}
