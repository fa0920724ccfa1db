r"""Is a difference more than the noise of seeds? Paired tests, corrected for many clients.

Two scores of one seed share its data order and its initial weights, so they are compared pair by
pair: with differences \(d_1 \dots d_n\), the t statistic is \(\bar d / (s_d / \sqrt n)\).
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 3  # with two seeds a t interval is twelve standard errors wide
FEWEST_RANKS = 6  # below, no outcome of a Wilcoxon test can reach 5 %
LEVEL = 0.05
_EQUAL = 1e-9  # per cent; what rounding may leave of no difference


@dataclass(frozen=True)
class Paired:
    """A paired test.

    Attributes:
        seeds: How many pairs.
        difference: The mean of B − A.
        low: Where its 95 % interval begins; None where no spread can be estimated.
        high: Where it ends.
        p: How likely so large a difference is by chance; None for a single pair.
        ranks: The same by Wilcoxon's signed ranks, which assume no normality; from six pairs on.
        same: Whether every pair is equal.
    """

    seeds: int
    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    ranks: float | None = None
    same: bool = False

    def verdict(self, p: float | None) -> str:
        """Say in a word what a p value, corrected or not, means for B."""
        if self.same:
            return "same"
        if self.seeds < FEWEST or p is None:
            return "too few seeds"
        if p >= LEVEL:
            return "noise"
        return "better" if self.difference > 0 else "worse"


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Test whether B differs from A, value by value.

    Examples:
        >>> found = paired([70.0, 71.0, 72.0], [75.0, 76.0, 78.0])
        >>> round(found.difference, 2), found.verdict(found.p)
        (5.33, 'better')
    """
    gaps = [y - x for x, y in zip(a, b, strict=True)]
    count, mean = len(gaps), statistics.fmean(gaps)
    if all(abs(gap) < _EQUAL for gap in gaps):
        return Paired(count, 0.0, 0.0, 0.0, 1.0, same=True)
    if count == 1:
        return Paired(count, mean)
    if statistics.stdev(gaps) < _EQUAL:
        # Scores come in steps of one test sample, so equal gaps are luck and not precision: a sign
        # test asks for no spread.
        return Paired(count, mean, p=2.0 * 0.5**count)
    from scipy import stats

    found = stats.ttest_rel(b, a)
    low, high = found.confidence_interval(1 - LEVEL)
    return Paired(count, mean, float(low), float(high), float(found.pvalue), _ranks(gaps))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Correct p values of one family by Holm's steps; None stays None and counts for nothing.

    Examples:
        >>> holm([0.01, 0.04, None, 0.03])
        [0.03, 0.06, None, 0.06]
    """
    order = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    reached = 0.0
    for step, (p, i) in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - step) * p))
        corrected[i] = reached
    return corrected


def _ranks(gaps: Sequence[float]) -> float | None:
    if len(gaps) < FEWEST_RANKS:
        return None
    from scipy import stats

    with warnings.catch_warnings():  # ties and zeros, which scores in steps have
        warnings.simplefilter("ignore")
        return float(stats.wilcoxon(gaps).pvalue)
