"""The table's numbers, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedbn.results.aggregate import Report, ScoreTable, Summary, summarize as summarized
from fedbn.results.result_table import grid_of
from scores import record


def summarize(
    records: list[dict[str, Any]], report: Report = "last", choose_setting: bool = False
) -> Summary:
    return summarized(ScoreTable.of(records), report, choose_setting)


def test_mean_and_sample_standard_deviation_over_seeds() -> None:
    found = summarize(
        [
            record(0.5, "a", seed=0),
            record(0.9, "b", seed=0),
            record(0.7, "a", seed=1),
            record(0.9, "b", seed=1),
        ]
    )
    assert found.columns == ("a", "b", "mean")
    assert found.seeds == (0, 1)
    cells = found.rows[0].cells
    # a: 50 and 70: mean 60, sample deviation sqrt(10² + 10²) = 14.142
    assert (cells["a"].mean, cells["a"].std) == (pytest.approx(60), pytest.approx(200**0.5))
    assert (cells["b"].mean, cells["b"].std) == (pytest.approx(90), pytest.approx(0))
    # the mean of clients, seed by seed: 70 and 80, so 75 ± sqrt(5² + 5²)
    assert (cells["mean"].mean, cells["mean"].std) == (pytest.approx(75), pytest.approx(50**0.5))
    assert str(cells["mean"]) == "75.0 ± 7.1"


def test_one_seed_has_no_deviation() -> None:
    assert str(summarize([record(0.123)]).rows[0].cells["a"]) == "12.3"


def test_the_last_round_not_the_best_one() -> None:
    found = summarize([record(0.9, round=1), record(0.4, round=2)])
    assert found.rows[0].cells["a"].mean == pytest.approx(40)


def test_a_score_that_is_no_number_is_not_an_earlier_one() -> None:
    rounds = [record(0.9, client, method="fedavg", seed=s) for client in "ab" for s in (0, 1)]
    rounds += [record(0.5, c, method="fedavg", seed=0, round=2) for c in "ab"]
    rounds += [record(None, c, method="fedavg", seed=1, round=2) for c in "ab"]
    found = summarize([*rounds, record(0.9), record(None, round=2)])
    diverged, lost = found.rows
    assert diverged.cells["mean"].mean == diverged.cells["a"].mean == pytest.approx(50)
    assert diverged.cells["a"].seeds == 1
    assert (lost.key.method, lost.cells) == ("fedbn", {})
    assert [cell.text for cell in grid_of(found).cells[1]] == ["–", "–", "–"]
    said = "no number, and in no mean: test accuracy of"
    assert found.remarks == (f"{said} a, b (fedavg seed 1)", f"{said} a (fedbn seed 0)")
    # The first round, which was best by validation, had numbers.
    chosen = [record(0.8, round=1, split="valid"), record(None, round=2, split="valid")]
    best = summarize([record(0.9), record(None, round=2), *chosen], "best")
    assert (best.rows[0].cells["a"].mean, best.remarks) == (pytest.approx(90), ())


def test_the_best_round_is_chosen_on_validation_and_shown_on_test() -> None:
    found = summarize(
        [
            record(0.6, round=1, split="valid"),
            record(0.1, round=1),
            record(0.8, round=2, split="valid"),
            record(0.2, round=2),
            record(0.8, round=3, split="valid"),  # no better: the earlier one stays
            record(0.9, round=3),
        ],
        "best",
    )
    assert found.rows[0].cells["a"].mean == pytest.approx(20)


def test_a_setting_is_chosen_on_validation_over_all_seeds() -> None:
    numbers = {"mu=1": (0.9, 0.1, 0.3), "mu=2": (0.6, 0.6, 0.2)}  # valid of two seeds; test
    rows = []
    for setting, (*valid, test) in numbers.items():
        for seed, value in enumerate(valid):
            rows += [
                record(value, setting=setting, seed=seed, split="valid"),
                record(test, setting=setting, seed=seed),
            ]
    found = summarize(rows, choose_setting=True)
    assert [row.key.label for row in found.rows] == ["fedbn (mu=2)"]
    assert found.remarks == ("fedbn: mu=2 chosen on validation data from mu=1, mu=2",)
    assert len(summarize(rows).rows) == 2


def test_pooled_data_is_shown_by_domain() -> None:
    pooled = [record(0.5, "all", method="centralized", domain=d) for d in ("a", "b")]
    assert summarize(pooled).columns == ("a", "b", "mean")
    both = summarize([record(0.7, "a"), record(0.8, "b"), *pooled])
    assert both.columns == ("a", "b", "mean")
    assert set(both.rows[1].cells) == {"a", "b", "mean"}


def test_only_test_accuracy_is_summarised() -> None:
    found = summarize([record(0.5), record(9.0, metric="loss"), record(1.0, split="train")])
    assert found.rows[0].cells["a"].mean == pytest.approx(50)


def test_nothing_to_summarise() -> None:
    assert summarize([]).rows == ()


def test_methods_that_tie_but_for_rounding_are_both_best() -> None:
    """Ten of twelve, as the mean of two seeds and as it is."""
    found = summarize(
        [
            record(value, "a", method=method, seed=seed)
            for method, own in (("fedavg", (0.75, 11 / 12)), ("fedbn", (10 / 12, 10 / 12)))
            for seed, value in enumerate(own)
        ]
    )
    rows = grid_of(found).cells
    assert [row[0].best for row in rows] == [True, True]
