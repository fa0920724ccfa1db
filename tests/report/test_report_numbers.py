"""The numbers and drawings behind the sections."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbn.report.contents import Confusion, Layer
from fedbn.report.site_charts import distances, mistakes
from fedbn.report.svg import label, linear, tag, ticks
from fedbn.results.aggregate import LOSS, LOSS_SEEN, MEAN, ScoreTable, duel, summarize
from fedbn.trained.local_parts import distance
from reporting import records


def test_the_mean_leaves_out_rounds_that_did_not_score_every_client():
    some = [r for r in records("ab") if (r["client"], r["round"]) != ("b", 2)]
    table = ScoreTable.of(some)
    assert [c.x for c in table.curves(MEAN)] == [(1, 3), (1, 3)]
    assert [c.x for c in table.curves("a")] == [(1, 2, 3), (1, 2, 3)]


def test_a_curve_is_the_mean_over_seeds():
    curve = ScoreTable.of(records("ab")).curves("a")[0]
    assert curve.mean == pytest.approx([50.5, 60.5, 70.5])
    assert curve.std == pytest.approx([0.5**0.5] * 3)


def test_a_value_that_was_not_finite_is_no_point():
    some = records("a", seeds=[0])
    some = [{**r, "value": None} if r["metric"] == "loss" else r for r in some]
    assert ScoreTable.of(some).curves(MEAN, LOSS) == []
    assert len(ScoreTable.of(some).curves(MEAN, LOSS_SEEN)) == 2


def test_gains_pair_seeds_that_both_methods_have():
    some = [r for r in records("ab") if (r["method"], r["seed"]) != ("fedavg", 1)]
    table = ScoreTable.of(some)
    found = duel(table, summarize(table))
    assert [dict(gain.by_seed) for gain in found.gains] == [{0: pytest.approx(20.0)}] * 2


def test_distances_by_hand():
    """(0, σ 1) and (3, σ 3) in one channel: (9 + 4) / ((1 + 9) / 2 + ε), with ε = 1e-5."""
    layer = Layer("bn", ("a", "b"), np.array([[0.0], [3.0]]), np.array([[1.0], [9.0]]))
    assert distances(layer)[0, 1] == pytest.approx((13 / 5.00001) ** 0.5, rel=1e-12)


def test_the_report_and_adapt_measure_one_distance():
    """Means 0.01 apart where neither varies, and alike: (1e-4 / 1e-5 + 0) / 2 = 5 = 2.236²."""
    layer = Layer("bn", ("a", "b"), np.array([[0.0, 7.0], [0.01, 7.0]]), np.zeros((2, 2)))
    one, other = ([(torch.tensor(m), torch.zeros(2))] for m in layer.mean)
    assert distances(layer)[0, 1] == pytest.approx(5**0.5)
    assert distance(one, other) == pytest.approx(5**0.5)


def test_a_channel_that_is_constant_everywhere_is_no_division_by_zero():
    layer = Layer("bn", ("a", "b"), np.zeros((2, 1)), np.zeros((2, 1)))
    assert distances(layer).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_most_frequent_mistakes_come_first():
    found = Confusion("a", "a", np.array([[5, 1, 0], [3, 5, 0], [0, 0, 5]]))
    assert mistakes(found, ["x", "y", "z"]) == ["y → x (3)", "x → y (1)"]


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1e-9), (-3, 1e12), (99.99, 100)])
def test_ticks_lie_in_their_range(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 11
    assert all(low - 1e-6 * abs(high) <= t <= high * (1 + 1e-6) for t in found)


def test_a_range_of_no_width_is_drawn_in_the_middle():
    assert linear(5, 5, 0, 10)(5) == 5


def test_attributes_and_text_are_escaped():
    drawn = tag("text", '<b>"', x='"><script>')
    assert str(drawn) == '<text x="&#34;&gt;&lt;script&gt;">&lt;b&gt;&#34;</text>'


def test_a_name_that_is_cut_keeps_its_whole_as_a_tooltip():
    drawn = str(label(0, 0, "x" * 50 + "<", most=5))
    assert ">xx…x&lt;<title>" + "x" * 50 + "&lt;</title>" in drawn
