"""Paired tests over test samples, against plain computations and on simulated models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from fedbn.results.paired_tests import paired
from fedbn.results.sample_tests import (
    Differences,
    mcnemar,
    one_model,
    several_models,
    tango,
)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for only_a in range(8):
        for only_b in range(8):
            n = only_a + only_b
            tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1)) / 2**n
            assert mcnemar(only_a, only_b) == pytest.approx(min(1.0, 2 * tail))


def test_mcnemar_and_tango_agree_with_a_published_table() -> None:
    """Airway hyper-responsiveness before and after a transplant (Fagerland et al. 2013, 2014)."""
    assert round(mcnemar(1, 7), 4) == 0.0703
    low, high = tango(7, 1, 21)
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(1, 7, 21), (12, 2, 44), (30, 33, 900)])
def test_tangos_ends_are_differences_that_the_score_test_just_accepts(
    only_a: int, only_b: int, n: int
) -> None:
    """The nuisance share is found by maximising the likelihood, without a closed form."""

    def score(difference: float) -> float:
        def loss(share: float) -> float:
            rest = 1 - 2 * share - difference
            return -(
                only_a * math.log(share)
                + only_b * math.log(share + difference)
                + (n - only_a - only_b) * math.log(rest)
            )

        edge = 1e-12
        bounds = (max(0, -difference) + edge, (1 - difference) / 2 - edge)
        share = optimize.minimize_scalar(
            loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}
        ).x
        variance = n * (2 * share + difference - difference**2)
        return (only_b - only_a - n * difference) / math.sqrt(variance)

    low, high = tango(only_a, only_b, n)
    assert score(low) == pytest.approx(1.959964, rel=1e-4)
    assert score(high) == pytest.approx(-1.959964, rel=1e-4)


def test_tango_where_all_samples_are_alike() -> None:
    z2 = 1.959964**2
    assert tango(0, 10, 10) == pytest.approx(((10 - z2) / (10 + z2), 1.0), abs=1e-6)
    assert tango(10, 0, 10) == pytest.approx((-1.0, -(10 - z2) / (10 + z2)), abs=1e-6)
    assert tango(0, 0, 10) == pytest.approx((-z2 / (10 + z2), z2 / (10 + z2)), abs=1e-6)


def turned(only_a: int, only_b: int, n: int) -> NDArray[np.float64]:
    """Differences of so many samples."""
    values = [-100.0] * only_a + [100.0] * only_b
    return np.array(values + [0.0] * (n - len(values)))


def test_one_model_at_one_client() -> None:
    found = one_model(turned(1, 9, 50), family=2)
    assert (found.difference, found.samples, found.exact) == (16.0, 50, True)
    assert found.p == pytest.approx(2 * mcnemar(1, 9))
    assert (found.low, found.high) == pytest.approx([100 * end for end in tango(1, 9, 50, 0.025)])
    assert found.verdict == "better"
    assert one_model(turned(9, 1, 50)).verdict == "worse"
    same = one_model(turned(0, 0, 50))
    assert (same.p, same.verdict) == (1.0, "same")
    assert (same.low, same.high) == pytest.approx([100 * end for end in tango(0, 0, 50)])
    assert one_model(turned(2, 2, 50)).verdict == "not shown"


def test_the_interval_of_one_model_has_0_inside_unless_the_exact_test_rejects_it() -> None:
    assert tango(0, 5, 30)[0] > 0
    found = one_model(turned(0, 5, 30))
    assert found.p == pytest.approx(0.0625)
    assert (found.low, found.verdict) == (0.0, "not shown")
    assert one_model(turned(5, 0, 30)).high == 0.0


def random_differences(*shape: int, seed: int = 0) -> Differences:
    return np.random.default_rng(seed).choice([-100.0, 0.0, 100.0], shape, p=[0.1, 0.7, 0.2])


def test_one_seed_and_several_clients_are_welchs_test() -> None:
    a, b = random_differences(1, 40), random_differences(1, 25, seed=1)
    found = several_models([a / 2, b / 2], family=3)
    welch = stats.ttest_ind(a[0] / 2, -b[0] / 2, equal_var=False)
    interval = welch.confidence_interval(1 - 0.05 / 3)
    assert found.p == pytest.approx(min(1, 3 * welch.pvalue))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.samples == 65
    assert not found.over_seeds


def test_two_seeds_are_taken_as_they_are() -> None:
    a = random_differences(2, 60)
    found = several_models([a])
    plain = stats.ttest_1samp(a.mean(axis=0), 0)
    assert found.p == pytest.approx(plain.pvalue)
    assert not found.over_seeds


def test_seeds_that_treat_all_samples_alike_are_the_test_over_seeds() -> None:
    gaps = [3.0, 4.0, 7.0]
    found = several_models([np.outer(gaps, np.ones(500))], family=2)
    over_seeds = paired(gaps, 2)
    assert (found.low, found.high, found.p) == pytest.approx(
        (over_seeds.low, over_seeds.high, over_seeds.p)
    )
    assert found.std == pytest.approx(over_seeds.std)
    assert found.over_seeds


def test_the_variance_over_both_is_that_of_an_analysis_of_variance() -> None:
    rng = np.random.default_rng(8)
    hard, models = rng.normal(size=200), 0.1 * rng.normal(size=(4, 1))
    own = np.where(hard + models + 0.5 * rng.normal(size=(4, 200)) > 1, 100.0, 0.0)
    found = several_models([own])
    assert found.high is not None
    mean = own.mean()
    seeds, samples = own.mean(axis=1) - mean, own.mean(axis=0) - mean
    rest = own - mean - seeds[:, None] - samples
    of_seeds = 200 * (seeds**2).sum() / 3
    of_samples = 4 * (samples**2).sum() / 199
    of_rest = (rest**2).sum() / (3 * 199)
    variance = (of_seeds + of_samples - of_rest) / 800
    freedom = variance**2 / ((of_seeds / 800) ** 2 / 3 + (of_samples / 800) ** 2 / 199)
    reach = stats.t.isf(0.025, freedom) * math.sqrt(variance)
    assert reach > stats.t.isf(0.025, 3) * math.sqrt(of_seeds / 800)
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach))
    alone = 2 * stats.t.sf(mean / math.sqrt(of_seeds / 800), 3)
    assert alone > 2 * stats.t.sf(mean / math.sqrt(variance), freedom)
    assert found.p == pytest.approx(alone)  # far from 0, the test over seeds decides


def bootstrap_deviation(
    strata: Sequence[Differences], seeds_too: bool, resamples: int = 20_000
) -> float:
    """Draw samples within each client, the same for all seeds, and seeds where asked."""
    rng = np.random.default_rng(5)
    count = len(strata[0])
    weights = np.full((resamples, count), 1 / count)
    if seeds_too:
        weights = rng.multinomial(count, weights[0], resamples) / count
    drawn = np.zeros(resamples)
    for one in strata:
        patterns, counts = np.unique(one, axis=1, return_counts=True)
        shares = rng.multinomial(one.shape[1], counts / counts.sum(), resamples) / one.shape[1]
        drawn += (shares @ patterns.T * weights).sum(axis=1)
    return float(drawn.std())


def test_the_variance_over_samples_is_that_of_a_bootstrap_within_clients() -> None:
    strata = [random_differences(2, 300) / 2, random_differences(2, 100, seed=1) / 2]
    found = several_models(strata)
    assert found.high is not None
    # The degrees of freedom by hand, with numpy alone.
    parts = [one.mean(axis=0).var(ddof=1) / one.shape[1] for one in strata]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 299 + parts[1] ** 2 / 99)
    assert found.high - found.difference == pytest.approx(
        stats.t(freedom).isf(0.025) * math.sqrt(sum(parts))
    )
    error = (found.high - found.difference) / stats.t(freedom).isf(0.025)
    assert error == pytest.approx(bootstrap_deviation(strata, seeds_too=False), rel=0.02)


def test_a_bootstrap_over_seeds_too_is_nearly_as_wide_where_there_are_many_seeds() -> None:
    """It counts three times what belongs to one sample and one seed, and leaves out 1/40."""
    rng = np.random.default_rng(3)
    seeds = rng.normal(0, 0.3, (40, 1))
    strata = [np.where(rng.normal(size=200) + seeds > 1, 100.0, 0.0)]
    found = several_models(strata)
    assert found.high is not None
    error = (found.high - found.difference) / 1.97  # hardly fewer than infinite degrees of freedom
    assert error == pytest.approx(bootstrap_deviation(strata, seeds_too=True), rel=0.04)


def test_an_interval_over_both_is_never_narrower_than_over_either() -> None:
    for seed in range(30):
        strata = [random_differences(3, 50, seed=seed)]
        both = several_models(strata, family=10)
        alone = paired(list(strata[0].mean(axis=1)), family=10)
        assert both.p is not None
        assert alone.p is not None
        assert both.p >= alone.p * (1 - 1e-12)
        fixed = several_models([strata[0].mean(axis=0, keepdims=True)], family=10)
        assert both.high is not None
        assert fixed.high is not None
        assert both.high >= fixed.high - 1e-9


def test_samples_that_all_turn_the_same_way_are_a_sign_test() -> None:
    found = several_models([np.full((2, 6), 50.0), np.zeros((2, 6))])
    assert (found.low, found.p, found.verdict) == (None, 2 * 0.5**6, "better")
    assert several_models([np.zeros((2, 6))]).verdict == "same"


def test_a_client_with_one_sample_cannot_say_how_samples_vary() -> None:
    found = several_models([random_differences(3, 40), np.full((3, 1), 50.0)])
    assert (found.p, found.low, found.verdict) == (None, None, "too few")


Simulated = Callable[[np.random.Generator], tuple[list[Differences], float]]


def simulated(
    seeds: int, sizes: Sequence[int], *, of_seeds: float, of_both: float, fixed: bool = False
) -> Simulated:
    """Two methods whose models are right where a normal score is positive: 84 % and 90 %.

    A score has a part of the trained model (`of_seeds`), one of the sample that both methods share,
    one of the sample and the method, and one of each sample and model (`of_both`). With `fixed`
    models the true difference is that of these models.
    """
    spread = math.sqrt(of_seeds**2 + 1 + 0.3**2 + of_both**2)
    rest = math.sqrt(spread**2 - of_seeds**2)
    starts = np.array([1.0, 1.3]) * spread

    def draw(rng: np.random.Generator) -> tuple[list[Differences], float]:
        models = of_seeds * rng.normal(size=(2, seeds))
        strata = []
        for size in sizes:
            easy = rng.normal(size=size)
            right = [
                start
                + model[:, None]
                + easy
                + 0.3 * rng.normal(size=size)
                + of_both * rng.normal(size=(seeds, size))
                > 0
                for start, model in zip(starts, models, strict=True)
            ]
            strata.append(100 / len(sizes) * (right[1].astype(float) - right[0]))
        if fixed:
            shares = stats.norm.cdf((starts[:, None] + models) / rest).mean(axis=1)
        else:
            shares = stats.norm.cdf(starts / spread)
        return strata, 100 * float(shares[1] - shares[0])

    return draw


@pytest.mark.parametrize(
    ("draw", "least", "most"),
    [
        # A client with one seed; exact tests keep to their level from below.
        (simulated(1, [30], of_seeds=0, of_both=0.3), 93, 99.5),
        (simulated(1, [300], of_seeds=0, of_both=0.3), 93, 98),
        # The mean over clients, with the models as they are.
        (simulated(1, [30, 30, 100], of_seeds=0, of_both=0.3), 93, 97),
        (simulated(2, [30, 30, 100], of_seeds=0.3, of_both=0.3, fixed=True), 93, 97),
        # Over seeds too. What belongs to one sample and one seed alone makes intervals wider.
        (simulated(3, [300, 300], of_seeds=0.02, of_both=0.1), 93, 98),
        (simulated(3, [300, 300], of_seeds=0.15, of_both=0.3), 93, 98),
        (simulated(3, [300, 300], of_seeds=0.5, of_both=0.3), 93, 98),
        (simulated(5, [100], of_seeds=0.15, of_both=0.3), 93, 98),
        (simulated(5, [300, 300], of_seeds=0.15, of_both=0.3), 93, 98),
        (simulated(5, [300, 300], of_seeds=0.0, of_both=0.6), 93, 99),
    ],
)
def test_95_percent_intervals_cover_about_95_percent(
    draw: Simulated, least: float, most: float
) -> None:
    rng = np.random.default_rng(11)
    times, covered = 600, 0
    for _ in range(times):
        strata, true = draw(rng)
        single = len(strata) == len(strata[0]) == 1
        found = one_model(strata[0][0]) if single else several_models(strata)
        low, high = found.low, found.high
        covered += low is not None and high is not None and low <= true <= high
    assert least <= 100 * covered / times <= most
