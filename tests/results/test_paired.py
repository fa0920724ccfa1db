"""Paired tests against numbers derived by hand."""

from __future__ import annotations

import math

import pytest

from fedbn.results.paired_tests import Paired, holm, paired


def test_a_t_test_by_hand() -> None:
    """Gaps 1, 2, 3: mean 2, deviation 1, t = 2 / (1 / √3) = 3.4641.

    With two degrees of freedom the t distribution is F(t) = ½ (1 + t / √(2 + t²)), so the two-sided
    p is 1 − t / √(2 + t²) = 1 − 3.4641 / √14 = 0.0742, and the 95 % quantile is 4.3027.
    """
    found = paired([10, 10, 10], [11, 12, 13])
    assert found.difference == 2
    assert found.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14))
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), rel=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-6)
    assert found.ranks is None


def test_the_order_of_pairs_matters_and_their_spread_does_not() -> None:
    """Scores that vary much from seed to seed, and a gap that does not: the pairing sees it."""
    low = [20.0, 50.0, 80.0, 35.0]
    high = [23.0, 53.1, 83.0, 37.9]
    assert paired(low, high).verdict(paired(low, high).p) == "better"
    assert paired(high, low).verdict(paired(high, low).p) == "worse"
    shuffled = paired(low, [high[2], high[0], high[3], high[1]])
    assert shuffled.verdict(shuffled.p) == "noise"


def test_equal_scores_are_the_same_even_with_one_seed() -> None:
    assert paired([70.0], [70.0]).verdict(1.0) == "same"
    assert paired([70.0, 71.0], [70.0, 71.0]).verdict(1.0) == "same"


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_seeds(count: int) -> None:
    found = paired([50.0, 60.0][:count], [90.0, 99.0][:count])
    assert found.verdict(found.p) == "too few seeds"


def test_gaps_of_equal_size_are_no_proof() -> None:
    """Three equal gaps have no spread, and a t test would be certain; a sign test is not."""
    three = paired([50.0, 60.0, 70.0], [51.0, 61.0, 71.0])
    assert (three.p, three.low, three.verdict(three.p)) == (0.25, None, "noise")
    six = paired([50.0] * 6, [51.0] * 6)
    assert (six.p, six.verdict(six.p)) == (2 / 64, "better")


def test_ranks_from_six_seeds_on() -> None:
    """All six gaps of one sign: two of the 2⁶ equally likely outcomes are as extreme."""
    a, gaps = [50.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    found = paired(a, [x + gap for x, gap in zip(a, gaps, strict=True)])
    assert found.ranks == pytest.approx(2 / 64)
    assert paired(a[:5], [x + gap for x, gap in zip(a, gaps, strict=False)][:5]).ranks is None


def test_holm_by_hand() -> None:
    """0.01 · 3, then 0.03 · 2, then 0.04 · 1, which may not fall below the step before."""
    assert holm([0.04, 0.01, 0.03]) == [0.06, 0.03, 0.06]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []


def test_a_verdict_follows_the_corrected_value() -> None:
    found = Paired(5, 1.0, 0.5, 1.5, 0.02)
    assert found.verdict(0.02) == "better"
    assert found.verdict(0.1) == "noise"
    assert found.verdict(None) == "too few seeds"
