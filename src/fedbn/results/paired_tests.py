r"""Is a difference more than chance? Paired tests and simultaneous intervals.

Two scores of one repetition (a seed, a split) share its data order and its initial weights, so they
are compared pair by pair: with differences \(d_1 \dots d_n\), the t statistic is
\(\bar d / (s_d / \sqrt n)\). Splits of one data set overlap, which makes their differences look
more alike than new data would: Nadeau and Bengio (2003) put \(1/n + n_\mathrm{test} /
n_\mathrm{train}\) in the place of \(1/n\).
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from fedbn.results.aggregate import EQUAL, Cell

FEWEST = 3  # with two repetitions a t interval is twelve standard errors wide
FEWEST_RANKS = 6  # below, no outcome of a Wilcoxon test can reach 5 %
LEVEL = 0.05
POWER = 0.8


@dataclass(frozen=True)
class Paired:
    """A paired test, one of a family that is asked at once."""

    repetitions: int  # how many pairs
    difference: float  # the mean of B − A
    std: float | None = None  # the sample deviation of the differences; None of a single pair
    # where the 95 % interval begins, simultaneous over the family; None without a spread
    low: float | None = None
    high: float | None = None  # where it ends
    # how likely so large a difference is by chance, times the size of the family
    p: float | None = None
    # by Wilcoxon's signed ranks, which assume no normality, asked alone; from six pairs on
    ranks: float | None = None
    # the difference that so many pairs of this spread show in four of five cases
    detectable: float | None = None
    same: bool = False  # whether every pair is equal

    @property
    def verdict(self) -> str:
        """Say in a word what this means for B."""
        if self.same:
            return "same"
        if self.repetitions < FEWEST or self.p is None:
            return "too few"
        if self.p >= LEVEL:
            return "not shown"
        return "better" if self.difference > 0 else "worse"


def paired(gaps: Sequence[float], family: int = 1, overlap: float = 0.0) -> Paired:
    """Test whether differences B − A, one a repetition, are more than chance.

    `family` questions are asked at once (Bonferroni); splits of one data set `overlap` by their
    test samples divided by their training samples.

    Examples:
        >>> found = paired([5.0, 5.0, 6.0])
        >>> round(found.difference, 2), found.verdict, paired([5.0, 5.0, 6.0], family=20).verdict
        (5.33, 'better', 'not shown')
    """
    count, mean = len(gaps), statistics.fmean(gaps)
    if all(abs(gap) < EQUAL for gap in gaps):
        return Paired(count, 0.0, 0.0, p=1.0, same=True)
    if count == 1:
        return Paired(count, mean)
    std = statistics.stdev(gaps)
    if std < EQUAL:
        # Scores come in steps of one test sample, so equal gaps are luck and not precision: a sign
        # test asks for no spread.
        return Paired(count, mean, 0.0, p=min(1.0, 2.0 * 0.5**count * family))
    from scipy import optimize, stats

    error = std * math.sqrt(1 / count + overlap)
    curve = stats.t(count - 1)
    reach = float(curve.isf(LEVEL / 2 / family))
    p = min(1.0, 2 * float(curve.sf(abs(mean) / error)) * family)
    shown = optimize.brentq(lambda by: stats.nct.sf(reach, count - 1, by) - POWER, 0, 3 * reach)
    low, high = mean - reach * error, mean + reach * error
    return Paired(count, mean, std, low, high, p, _ranks(gaps), float(shown) * error)


def half_width(count: int, family: int = 1, overlap: float = 0.0) -> float:
    """How many deviations of the differences a simultaneous 95 % interval reaches to each side.

    Examples:
        >>> [round(half_width(n), 1) for n in (2, 3, 5, 10)]
        [9.0, 2.5, 1.2, 0.7]
    """
    from scipy import stats

    return float(stats.t(count - 1).isf(LEVEL / 2 / family)) * math.sqrt(1 / count + overlap)


def welch(a: Cell, b: Cell) -> tuple[float, float] | None:
    """The 95 % interval of the difference of two means, a − b, with both spreads (Welch 1947).

    None where one of them is a single value, or neither has a spread.
    """
    if min(a.seeds, b.seeds) < 2 or not (a.std or b.std):
        return None
    from scipy import stats

    parts = [one.spread**2 / one.seeds for one in (a, b)]
    shares = zip(parts, (a, b), strict=True)
    freedom = sum(parts) ** 2 / sum(part**2 / (one.seeds - 1) for part, one in shares)
    reach = float(stats.t(freedom).isf(LEVEL / 2)) * math.sqrt(sum(parts))
    return a.mean - b.mean - reach, a.mean - b.mean + reach


def _ranks(gaps: Sequence[float]) -> float | None:
    if len(gaps) < FEWEST_RANKS:
        return None
    from scipy import stats

    with warnings.catch_warnings():  # ties and zeros, which scores in steps have
        warnings.simplefilter("ignore")
        return float(stats.wilcoxon(gaps).pvalue)
