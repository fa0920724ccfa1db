r"""Paired tests over test samples: would other samples of the same sites turn a result?

Both methods classify the same test samples, so they are compared sample by sample. The difference
\(d_{si}\) of test sample i and seed s is 1 where only B is right, −1 where only A is, and else 0.

- One client and one seed: McNemar's exact test on the samples that only one method gets right, and
  the score interval of Tango (1998).
- Everything else: a t-test. Samples are independent within and between clients, so the covariance
  of the seeds' means is \(C = \sum_c w_c^2\,\mathrm{cov}(d_c) / n_c\) with the weight \(w_c\) of
  client c. From it comes the variance \(V_i = 1^\top C 1 / S^2\) over test samples, with the S
  trained models as they are.
- From three seeds on, the variance over seeds is added, \(V_s = s^2 / S\) as in the test over
  seeds. Both contain the noise that belongs to one sample and one seed,
  \(V_e = (\mathrm{tr}\,C / S - V_i) / (S - 1)\). It counts once: \(V = V_i + V_s - V_e\). The
  degrees of freedom are those of Welch and Satterthwaite. An interval is at least as wide as that
  over seeds alone.

These are the variances of a bootstrap that draws test samples and seeds again, corrected for few
seeds. A mean needs no random numbers for that, and percentiles of a bootstrap over three seeds
cover far less than they say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedbn.results.aggregate import EQUAL
from fedbn.results.paired_tests import FEWEST, LEVEL, Paired

Differences = NDArray[np.float64]
"""B − A by seed and test sample, in per cent."""


@dataclass(frozen=True)
class PairedSamples(Paired):
    """A paired test over test samples; its repetitions are seeds."""

    samples: int = 0  # test samples of all clients that the line is about
    exact: bool = False  # whether it is McNemar's exact test

    @property
    def over_seeds(self) -> bool:
        """True if the variation over seeds is part of the interval."""
        return self.repetitions >= FEWEST

    @property
    def verdict(self) -> str:
        """Say in a word what this means for B."""
        if self.same:
            return "same"
        if self.p is None:
            return "too few"
        if self.p >= LEVEL:
            return "not shown"
        return "better" if self.difference > 0 else "worse"


def one_model(differences: Differences, family: int = 1) -> PairedSamples:
    """Test whether one model of B classifies the samples of a client better than one of A.

    Args:
        differences: 100 where only B is right, −100 where only A is, and else 0; by test sample.
        family: The number of tests that are made at once (Bonferroni).

    Examples:
        >>> found = one_model(np.array([100.0] * 9 + [-100.0] + [0.0] * 30))
        >>> found.difference, round(found.p, 4), found.verdict
        (20.0, 0.0215, 'better')
    """
    count = len(differences)
    only_a, only_b = int((differences < 0).sum()), int((differences > 0).sum())
    p = min(1.0, mcnemar(only_a, only_b) * family)
    low, high = (100 * end for end in tango(only_a, only_b, count, LEVEL / family))
    if p >= LEVEL:  # the exact test decides whether 0 is inside
        low, high = min(low, 0.0), max(high, 0.0)
    return PairedSamples(
        1,
        float(differences.mean()),
        low=low,
        high=high,
        p=p,
        same=not only_a + only_b,
        samples=count,
        exact=True,
    )


def several_models(strata: Sequence[Differences], family: int = 1) -> PairedSamples:
    """Test a difference of several seeds or clients over test samples.

    From three seeds on the test is over seeds too.

    Args:
        strata: The differences by seed and sample, one array for each set of test samples. They
            are weighted: the sum of the arrays' means is the difference.
        family: The number of tests that are made at once (Bonferroni).

    Examples:
        >>> right = np.tile([100.0, 0.0, 0.0, 0.0, 0.0], (3, 20))
        >>> found = several_models([right / 2, 0 * right])
        >>> found.difference, found.samples, found.verdict
        (10.0, 200, 'better')
    """
    seeds, counts = len(strata[0]), [one.shape[1] for one in strata]
    by_seed = np.sum([one.mean(axis=1) for one in strata], axis=0)
    found = PairedSamples(
        seeds,
        float(by_seed.mean()),
        float(by_seed.std(ddof=1)) if seeds > 1 else None,
        samples=sum(counts),
    )
    if all((abs(one) < EQUAL).all() for one in strata):
        return replace(found, p=1.0, same=True)
    if min(counts) < 2:
        return found
    variances = _Variances.of(strata, by_seed)
    if variances.total < EQUAL**2:
        # All samples turn the same way, which is no sign of precision: a sign test needs no spread.
        turned = sum(int((abs(one.mean(axis=0)) >= EQUAL).sum()) for one in strata)
        return replace(found, p=min(1.0, 2.0 * 0.5**turned * family))
    from scipy import stats

    reach = p = 0.0
    for variance, freedom in variances.tests:
        error = math.sqrt(variance)
        reach = max(reach, float(stats.t.isf(LEVEL / 2 / family, freedom)) * error)
        p = max(p, 2 * float(stats.t.sf(abs(found.difference) / error, freedom)))
    low, high = found.difference - reach, found.difference + reach
    return replace(found, p=min(1.0, p * family), low=low, high=high)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the p value of McNemar's exact test.

    Args:
        only_a: The samples that A gets right and B wrong.
        only_b: The samples that B gets right and A wrong.

    Examples:
        >>> round(mcnemar(1, 9), 4), mcnemar(0, 0)
        (0.0215, 1.0)
    """
    if not only_a + only_b:
        return 1.0
    from scipy import stats

    return float(stats.binomtest(only_a, only_a + only_b).pvalue)


def tango(only_a: int, only_b: int, count: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the score interval of the difference of two paired shares, B − A (Tango 1998).

    A difference is inside if the score test does not reject it at the `level`. Of `count` samples
    `only_a` are right in A alone, and `only_b` in B alone.

    Examples:
        >>> [round(end, 3) for end in tango(1, 7, 21)]
        [0.026, 0.517]
    """
    return _lower_end(only_a, only_b, count, level), -_lower_end(only_b, only_a, count, level)


def _lower_end(only_a: int, only_b: int, count: int, level: float) -> float:
    """Return where Tango's interval begins."""
    if only_a == count:
        return -1.0
    from scipy import optimize, stats

    z = float(stats.norm.isf(level / 2))

    def excess(difference: float) -> float:
        """Return how far the score is above what the test accepts, if this is the difference."""
        linear = (2 * count - only_b + only_a) * difference - only_a - only_b
        constant = -only_a * difference * (1 - difference)
        root = math.sqrt(max(0.0, linear**2 - 8 * count * constant))
        share = (root - linear) / (4 * count)  # of samples that only A gets right, most likely
        variance = count * (2 * share + difference * (1 - difference))
        score = only_b - only_a - count * difference
        return score - z * math.sqrt(max(0.0, variance))

    below = (only_b - only_a) / count - 1e-9  # where all samples are alike, the end is a root too
    return float(optimize.brentq(excess, -1.0, below))


@dataclass(frozen=True)
class _Variances:
    """The variances of a difference of means."""

    seeds: int
    over_samples: float  # with the trained models as they are
    freedom: float  # the degrees of freedom of `over_samples`
    over_seeds: float = 0.0  # with the test samples as they are; 0 of fewer than three seeds
    in_both: float = 0.0  # what both contain

    @classmethod
    def of(cls, strata: Sequence[Differences], by_seed: Differences) -> _Variances:
        """Estimate the variances; there are at least two samples in each array."""
        seeds = len(by_seed)
        covariances = [np.atleast_2d(np.cov(one)) / one.shape[1] for one in strata]
        parts = [float(one.sum()) / seeds**2 for one in covariances]
        over_samples = sum(parts)
        squares = sum(part**2 / (one.shape[1] - 1) for part, one in zip(parts, strata, strict=True))
        found = cls(seeds, over_samples, over_samples**2 / squares if squares else math.inf)
        if seeds < FEWEST:
            return found
        of_one_seed = sum(float(one.trace()) for one in covariances) / seeds
        return replace(
            found,
            over_seeds=float(by_seed.var(ddof=1)) / seeds,
            in_both=(of_one_seed - over_samples) / (seeds - 1),
        )

    @property
    def total(self) -> float:
        """The variance over samples and seeds, at least that over either."""
        both = self.over_samples + self.over_seeds - self.in_both
        return max(self.over_samples, self.over_seeds, both)

    @property
    def tests(self) -> list[tuple[float, float]]:
        """The variance and the degrees of freedom of each t-test that a difference must pass.

        The degrees of freedom of a sum of variances are an approximation that is too good for small
        levels. The test over seeds alone is exact, so it is made as well.
        """
        squares = self.over_samples**2 / self.freedom
        if not self.over_seeds:
            return [(self.total, self.total**2 / squares if squares else math.inf)]
        squares += self.over_seeds**2 / (self.seeds - 1)
        return [(self.total, self.total**2 / squares), (self.over_seeds, self.seeds - 1)]
