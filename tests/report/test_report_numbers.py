"""The numbers and drawings behind the sections."""

from __future__ import annotations

import numpy as np
import pytest

from fedbn.report.contents import Confusion, Layer
from fedbn.report.site_charts import distances, mistakes
from fedbn.report.svg import label, linear, tag, ticks
from fedbn.results.aggregate import accuracy_curves, duel, loss_curves, summarize
from reporting import records


def test_the_mean_leaves_out_rounds_that_did_not_score_every_client():
    some = [r for r in records("ab") if (r["client"], r["round"]) != ("b", 2)]
    curves = accuracy_curves(some, summarize(some).rows)
    assert [c.rounds for c in curves["mean"]] == [(1, 3), (1, 3)]
    assert [c.rounds for c in curves["a"]] == [(1, 2, 3), (1, 2, 3)]


def test_a_curve_is_the_mean_over_seeds():
    curve = accuracy_curves(records("ab"), summarize(records("ab")).rows)["a"][0]
    assert curve.mean == pytest.approx([50.5, 60.5, 70.5])
    assert curve.std == pytest.approx([0.5**0.5] * 3)


def test_a_value_that_was_not_finite_is_no_point():
    some = records("a", seeds=[0])
    some = [{**r, "value": None} if r["metric"] == "loss" else r for r in some]
    assert loss_curves(some, summarize(some).rows, "loss") == []
    assert len(loss_curves(some, summarize(some).rows, "training_loss")) == 2


def test_gains_pair_seeds_that_both_methods_have():
    some = [r for r in records("ab") if (r["method"], r["seed"]) != ("fedavg", 1)]
    found = duel(some, summarize(some))
    assert [dict(gain.by_seed) for gain in found.gains] == [{0: pytest.approx(20.0)}] * 2


def test_distances_by_hand():
    """(0, σ 1) and (3, σ 3) in one channel: (9 + 4) / ((1 + 9) / 2) = 2.6."""
    layer = Layer("bn", ("a", "b"), np.array([[0.0], [3.0]]), np.array([[1.0], [9.0]]))
    assert distances(layer)[0, 1] == pytest.approx(2.6**0.5)


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
    assert ">xxxx…<title>" + "x" * 50 + "&lt;</title>" in drawn
