"""Words and tables: what was changed, how numbers are written, what may be compared."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbn.experiments.configuration import changed, find, placed, read_toml, scaled
from fedbn.paper import output
from fedbn.paper.configurations import departures
from fedbn.paper.items import Cell, Request, Row, Table
from fedbn.paper.numbers import studied
from fedbn.paper.trained_items import tables_of
from fedbn.results.aggregate import Key, ScoreTable
from scores import scored_again

ROWS = (
    Row(("fedavg",), (Cell(60.0, 1.0, 62.86, 1.49, seeds=5), Cell(81.0))),
    Row(("=cmd",), (Cell(71.5, None, 71.04, 0.2), None)),
)
TABLE = Table("t", "A title with 100 %", ("svhn", "synth_digits"), ROWS, "Quick scale.")


def test_the_interval_of_a_difference_holds_both_spreads() -> None:
    near = Cell(60.0, 1.0, 62.86, 1.49, seeds=5)
    assert near.apart == pytest.approx((-4.758, -0.962), abs=1e-3)  # ± 2.365 √(1²/5 + 1.49²/5)
    assert replace(near, cut=True).apart is None
    assert Cell(71.5, None, 71.04, 0.2).apart is None  # one seed
    assert Cell(1.0, 1.0, 2.0, seeds=5).apart is None  # the paper gives no deviation


def test_a_table_shows_ours_the_papers_and_the_difference() -> None:
    assert list(output.lines(TABLE)) == [
        ["fedavg", "60.00 (1.00)", "81.00"],
        ["paper", "62.86 (1.49)", "–"],
        ["ours − paper", "−2.86", "–"],
        ["95 % interval", "−4.76 to −0.96", "–"],
        ["=cmd", "71.50", "–"],
        ["paper", "71.04 (0.20)", "–"],
        ["ours − paper", "+0.46", "–"],
    ]
    assert output.notes(TABLE).endswith("the paper's five trials).")
    cut = Table("t", "", ("a",), (Row(("x",), (Cell(1.0, 1.0, 2.0, 1.0, seeds=5, cut=True),)),))
    assert output.notes(cut).endswith("no interval of the difference.")


def test_markdown_and_latex_are_whole() -> None:
    text = output.to_latex(TABLE)
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"synth\_digits", r"100 \%", "$-$2.86"):
        assert part in text
    assert all(sign.isascii() or sign == "–" for sign in text)
    lines = output.to_markdown(TABLE).splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {4}


def test_csv_has_a_line_a_cell_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(output.to_csv(TABLE))))
    assert [row["method"] for row in rows] == ["fedavg", "fedavg", "'=cmd"]
    assert rows[0]["difference"] == "-2.86"
    assert [row["difference_low"] for row in rows] == ["-4.75787", "", ""]


def test_what_was_cut_is_said() -> None:
    paper = {
        "methods": ["fedavg", "fedbn"],
        "seeds": [0, 1],
        "training": {"epochs": 300},
        "data": {"name": "digits"},
    }
    used = {
        "methods": ["fedbn"],
        "seeds": [5],
        "training": {"rounds": 10, "local_epochs": 4},
        "data": {"name": "digits_mini", "percent": 20},
        "evaluation": {"every": 3},
        "workers": 2,
    }
    said = [
        "40 of 300 epochs",
        "1 of 2 seeds",
        "without fedavg",
        "data digits_mini in place of digits",
        "local_epochs 4 (paper scale: 1)",
    ]
    assert departures(paper, used) == (said, True)
    assert departures(paper, paper) == ([], False)
    (named, *_), _ = departures({"data": {"name": "digits"}}, {"model": {"name": "mlp"}})
    assert named == "data digits_mini in place of digits"
    unnamed, _ = departures({"model": {"name": "mlp"}}, {})
    assert unnamed == ["model that fits the data in place of mlp"]


def test_rounds_replace_epochs_and_a_sweep_is_replaced_whole() -> None:
    raw = {"training": {"epochs": 300, "lr": 1}, "sweep": {"data": {"percent": [1]}}}
    assert placed(raw, "training.rounds", 2)["training"] == {"lr": 1, "rounds": 2}
    assert changed(raw, {"sweep": {}})["sweep"] == {}
    quick = scaled({**raw, "quick": {"training": {"epochs": 3}}}, "quick")
    assert quick["training"] == {"epochs": 3, "lr": 1}
    assert "quick" not in quick


def record(method: str, client: str, value: float, **other: Any) -> dict[str, Any]:
    base = {"setting": "default", "seed": 0, "round": 1, "domain": client.partition("-")[0]}
    base |= {"split": "test", "metric": "accuracy", "statistics": "running"}
    return {"method": method, "client": client, "value": value, **base, **other}


def test_a_domain_is_scored_by_the_mean_of_its_clients() -> None:
    found = [record("fedbn", "a-1", 0.5), record("fedbn", "a-2", 0.7), record("fedbn", "b", 0.2)]
    scores = ScoreTable.of(found).by_domain().scores()[Key("fedbn", "default")]
    assert scores["a"][0] == pytest.approx(60)
    assert scores["mean"][0] == pytest.approx(40)


def test_curves_run_over_epochs() -> None:
    found = [record("fedbn", "a", 1.0 / r, round=r, setting="local_epochs=4") for r in (1, 2)]
    line = ScoreTable.of(found).by_domain().curves("a")[0].over(4, "fedbn")
    assert (line.label, line.x) == ("fedbn", (4, 8))
    assert line.mean == (100.0, 50.0)


def test_a_stand_in_has_no_number_of_the_papers_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedBN − FedAvg on SVHN: ours 80 − 60, the paper's 71.04 − 62.86."""
    raw = scaled(read_toml(find("digits-methods")), "quick")
    raw = changed(raw, {"training": {"rounds": 1}})
    found = [
        record(method, domain, value)
        for method, value in (("singleset", 0.5), ("fedavg", 0.6), ("fedprox", 0.6), ("fedbn", 0.8))
        for domain in ("svhn", "synthdigits")
    ]
    facts = {"remarks": ["synthdigits is rendered"], "stand_ins": ["synthdigits"]}
    monkeypatch.setattr("fedbn.paper.numbers._data_facts", lambda *_: facts)
    request = Request("digits-methods", "quick", tmp_path, raw, lambda *_: found, print)
    accuracy, gain = tables_of(request, studied(request, found))
    assert [cell.paper if cell else 0 for cell in accuracy.rows[3].cells] == [71.04, None, None]
    assert "not compared: synthdigits" in accuracy.note
    assert all(cell.cut for row in accuracy.rows for cell in row.cells if cell)  # by its weights
    svhn, synth, _ = gain.rows[0].cells
    assert svhn is not None
    assert synth is not None
    assert svhn.ours == pytest.approx(20)
    assert svhn.paper == pytest.approx(8.18)
    assert synth.paper is None


def test_the_papers_numbers_stand_beside_running_statistics_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = scaled(read_toml(find("digits-methods")), "quick")
    raw = changed(raw, {"training": {"rounds": 1}})
    found = [
        one
        for method, value, change in (("fedavg", 0.6, 0.25), ("fedbn", 0.8, 0.0625))
        for seed in (0, 1)
        for one in scored_again([record(method, "svhn", value, seed=seed)], "exact", change)
    ]
    found += [record(m, "svhn", 0.5, seed=s) for m in ("singleset", "fedprox") for s in (0, 1)]
    facts: dict[str, list[str]] = {"remarks": [], "stand_ins": []}
    monkeypatch.setattr("fedbn.paper.numbers._data_facts", lambda *_: facts)
    request = Request("digits-methods", "quick", tmp_path, raw, lambda *_: found, print)
    study = studied(request, found)
    accuracy, gain = tables_of(request, study)
    cells = {row.label: row.cells[0] for row in (*accuracy.rows, *gain.rows)}
    ours = {label: cell.ours for label, cell in cells.items() if cell}
    assert ours == pytest.approx(
        {
            ("fedavg",): 60,
            ("fedavg, exact statistics",): 85,
            ("fedbn",): 80,
            ("fedbn, exact statistics",): 86.25,
            ("singleset",): 50,
            ("fedprox",): 50,
            ("fedbn − fedavg",): 20,
            ("fedbn − fedavg, exact statistics",): 1.25,
        }
    )
    papers = {label[0] for label, cell in cells.items() if cell and cell.paper is not None}
    assert papers == {"fedavg", "fedbn", "singleset", "fedprox", "fedbn − fedavg"}
    assert "2 seeds" in accuracy.note
    assert any("fedavg, exact statistics +25.0" in text for text in study.remarks)


def test_a_table_that_looks_permuted_is_compared_in_both_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedBN's second number, 94.34, is USPS as printed, and SVHN as the code orders them."""
    raw = changed(read_toml(find("digits-unequal")), {"training": {"rounds": 1}})
    found = [
        record(method, domain, 0.9, setting=f"percent={percent}")
        for method in ("fedavg", "fedprox", "fedbn")
        for domain in ("svhn", "usps")
        for percent in (10, 100)
    ]
    facts: dict[str, list[str]] = {"remarks": [], "stand_ins": []}
    monkeypatch.setattr("fedbn.paper.numbers._data_facts", lambda *_: facts)
    request = Request("digits-unequal", "paper", tmp_path, raw, lambda *_: found, print)
    printed, other, _ = tables_of(request, studied(request, found))
    papers = [
        {row.label: [cell.paper if cell else None for cell in row.cells[:2]] for row in one.rows}
        for one in (printed, other)
    ]
    assert papers[0]["percent=100", "fedbn"] == [99.62, 94.34]
    assert papers[1]["percent=100", "fedbn"] == [94.34, 98.92]
    assert papers[0]["percent=10", "fedbn"] == [89.34, 98.28]
    assert papers[1]["percent=10", "fedbn"] == [None, None]
    assert "MNIST, SVHN, USPS" in other.title
