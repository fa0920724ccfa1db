"""Paired tests against numbers derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbn.results.aggregate import Cell
from fedbn.results.paired_tests import Paired, half_width, paired, welch


def test_a_t_test_by_hand() -> None:
    """Gaps 1, 2, 3: mean 2, deviation 1, t = 2 / (1 / √3) = 3.4641.

    With two degrees of freedom the t distribution is F(t) = ½ (1 + t / √(2 + t²)), so the two-sided
    p is 1 − t / √(2 + t²) = 1 − 3.4641 / √14 = 0.0742, and the 95 % quantile is 4.3027.
    """
    found = paired([1.0, 2.0, 3.0])
    assert (found.difference, found.std) == (2, 1)
    assert found.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14))
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), rel=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-6)
    assert found.ranks is None


def test_a_family_widens_the_interval_as_it_raises_p() -> None:
    """Two degrees of freedom: the quantile t of a tail q solves t / √(2 + t²) = 1 − 2q, so of four
    questions at once q = 0.00625 and t = 0.9875 √2 / √(1 − 0.9875²) = 8.8602."""
    one, four = paired([1.0, 2.0, 3.0]), paired([1.0, 2.0, 3.0], family=4)
    assert four.p == pytest.approx(4 * one.p)
    assert four.high == pytest.approx(2 + 8.8602 / math.sqrt(3), rel=1e-4)
    assert paired([1.0, 2.0, 3.0], family=99).p == 1.0


@pytest.mark.parametrize("family", [1, 2, 5, 20])
@pytest.mark.parametrize("overlap", [0.0, 0.25])
def test_the_interval_leaves_zero_out_exactly_where_the_verdict_says_so(family, overlap) -> None:
    for gaps in ([3.0, 3.5, 4.0, 2.5], [0.1, 2.0, -0.5, 1.0], [-9.0, -8.0, -9.5, -8.2]):
        found = paired(gaps, family, overlap)
        assert found.low is not None
        assert found.high is not None
        shown = not found.low <= 0 <= found.high
        assert shown is (found.verdict in ("better", "worse"))


def test_overlapping_splits_by_hand() -> None:
    """Five splits, gaps of mean 1 and deviation 1.8, a quarter as many tested as trained on:
    t = 1 / (1.8 √(1/5 + 1/4)) = 0.828 in place of 1.242 (Nadeau and Bengio, corollary 2)."""
    gaps = [1 + 1.8 * z for z in (-1.2649110640673518, -0.6324555320336759, 0.0,
                                  0.6324555320336759, 1.2649110640673518)]  # fmt: skip
    plain, corrected = paired(gaps), paired(gaps, overlap=0.25)
    assert corrected.std == pytest.approx(1.8)
    assert plain.p == pytest.approx(0.2820, abs=1e-3)
    assert corrected.p == pytest.approx(0.4541, abs=1e-3)
    assert corrected.high - 1 == pytest.approx((plain.high - 1) * math.sqrt(0.45 / 0.2))


def test_what_could_have_been_shown() -> None:
    """A true difference of that size is shown in about four of five draws; and no less often."""
    draws = np.random.default_rng(0)
    least = paired([*np.array([-1, -0.5, 0.0, 0.5, 1.0]) / np.std([-1, -0.5, 0, 0.5, 1], ddof=1)])
    shown = sum(
        paired([*draws.normal(least.detectable, 1.0, 5)]).verdict == "better" for _ in range(2000)
    )
    assert 0.77 < shown / 2000 < 0.83


@pytest.mark.parametrize(("count", "family"), [(2, 1), (3, 5), (5, 20)])
def test_what_could_have_been_shown_at_few_repetitions_and_many_questions(count, family) -> None:
    draws = np.random.default_rng(1)
    by = paired([*draws.normal(0, 1, count)], family)
    least = by.detectable / by.std
    drawn = draws.normal(least, 1.0, (100_000, count))
    means, errors = drawn.mean(1), drawn.std(1, ddof=1) * half_width(count, family)
    assert 0.79 < (means > errors).mean() < 0.81


def test_the_half_width_is_the_intervals() -> None:
    found = paired([1.0, 2.0, 4.0], 3, 0.25)
    assert found.high - found.difference == pytest.approx(found.std * half_width(3, 3, 0.25))


def test_equal_scores_are_the_same_even_with_one_seed() -> None:
    assert paired([0.0]).verdict == "same"
    assert paired([0.0, 0.0]).verdict == "same"


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_seeds(count: int) -> None:
    assert paired([40.0, 39.0][:count]).verdict == "too few"


def test_gaps_of_equal_size_are_no_proof() -> None:
    """Three equal gaps have no spread, and a t test would be certain; a sign test is not."""
    three = paired([1.0] * 3)
    assert (three.p, three.low, three.verdict) == (0.25, None, "not shown")
    six = paired([1.0] * 6)
    assert (six.p, six.verdict) == (2 / 64, "better")


def test_ranks_from_six_seeds_on() -> None:
    """All six gaps of one sign: two of the 2⁶ equally likely outcomes are as extreme."""
    gaps = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    assert paired(gaps).ranks == pytest.approx(2 / 64)
    assert paired(gaps[:5]).ranks is None


def test_a_verdict_follows_p() -> None:
    assert Paired(5, 1.0, p=0.02).verdict == "better"
    assert Paired(5, -1.0, p=0.02).verdict == "worse"
    assert Paired(5, 1.0, p=0.1).verdict == "not shown"


def test_two_means_with_both_spreads() -> None:
    """Equal spreads and counts: Welch is Student with 2 (n − 1) = 8 degrees, t = 2.306."""
    low, high = welch(Cell(71.0, 1.0, 5), Cell(70.0, 1.0, 5)) or (0.0, 0.0)
    reach = 2.306004 * math.sqrt(2 / 5)
    assert (low, high) == (pytest.approx(1 - reach), pytest.approx(1 + reach))
    # One side without a spread: only the other's counts, with its own degrees of freedom.
    low, _ = welch(Cell(71.0, 0.0, 9), Cell(70.0, 1.0, 3)) or (0.0, 0.0)
    assert low == pytest.approx(1 - 4.302653 / math.sqrt(3))
    assert welch(Cell(71.0, 0.0, 1), Cell(70.0, 1.0, 5)) is None
