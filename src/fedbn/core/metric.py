"""What a metric is: its name, which way is better, its unit, and how it is computed.

Nothing here needs torch: tables and pictures ask for names, directions and units alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PERCENT = "%"
UNEVEN = 10
"""The ratio of test sizes from which a mean over clients comes with the mean over samples."""
_WIDEST = 1e6  # a larger number is written with three digits and an exponent


@dataclass(frozen=True)
class Metric:
    """A number that says how good predictions are.

    Examples:
        >>> dice = Metric("dice", higher=True, unit="%")
        >>> dice.title, dice.said(0.8127), Metric("mae", higher=False).said(0.0123)
        ('dice, %', '81.3', '0.0123')
    """

    name: str  # as in records: `balanced_accuracy`
    higher: bool  # whether more of it is better
    unit: str = ""  # `%` for a share, shown times a hundred; otherwise what to write behind it
    # Of outputs, targets (arrays of n samples) and weights (r, n): r numbers, one a row of weights.
    # All weights 1 give the metric itself, counts of a bootstrap its resamples. None where a record
    # tells of a metric, and nobody computes it.
    value: Callable[[Any, Any, Any], Any] | None = field(default=None, compare=False, repr=False)
    least: float = field(
        default=-math.inf, compare=False, repr=False
    )  # the smallest possible value
    most: float = field(default=math.inf, compare=False, repr=False)  # the largest possible value
    # a mean over classes, in which one sample of a rare class weighs more than others
    by_class: bool = field(default=False, compare=False, repr=False)

    @property
    def words(self) -> str:
        """The name as one reads it."""
        return self.name.replace("_", " ")

    @property
    def title(self) -> str:
        """The name and the unit, as above a column."""
        return f"{self.words}, {self.unit}" if self.unit else self.words

    @property
    def scale(self) -> int:
        """What a recorded value is multiplied with where it is shown."""
        return 100 if self.unit == PERCENT else 1

    @property
    def points(self) -> str:
        """What a difference is counted in."""
        return "points" if self.unit == PERCENT else self.unit or self.words

    @property
    def largest_difference(self) -> float | None:
        """The largest difference that two shown values can have; None where it has no limit."""
        return 100.0 if self.unit == PERCENT else None

    @property
    def form(self) -> str:
        """How a shown value is written."""
        return ".1f" if self.unit == PERCENT else ".3g"

    def said(self, value: float) -> str:
        """Write a recorded value as it is shown, without the unit; a dash where there is none."""
        if math.isnan(value):
            return "–"
        number = self.scale * value
        return f"{number:{self.form if abs(number) < _WIDEST else '.3g'}}"

    def best(self, values: Iterable[float]) -> float:
        """The best of some values."""
        return max(values) if self.higher else min(values)

    def gain(self, new: float, old: float) -> float:
        """By how much one value is better than another."""
        return new - old if self.higher else old - new

    def facts(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {"name": self.name, "higher": self.higher, "unit": self.unit}


def _share_right(outputs: Any, targets: Any, weights: Any) -> Any:
    return weights @ (outputs.argmax(axis=1) == targets) / weights.sum(axis=1)


ACCURACY = Metric("accuracy", higher=True, unit=PERCENT, value=_share_right, least=0.0, most=1.0)
"""The share of samples whose class is right: what the paper reports, and runs that name none."""


def first_metric(environment: Mapping[str, Any]) -> Metric:
    """The metric that a run is judged by, as its environment tells it."""
    known = (environment.get("task") or {}).get("metrics")
    return Metric(**known[0]) if known else ACCURACY
