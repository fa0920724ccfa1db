"""The bounds of Theorem 4.4 and Corollary 4.5, and the width they ask for."""

from __future__ import annotations

import math
from itertools import compress, count
from typing import TYPE_CHECKING

from fedbn.errors import ConfigError
from fedbn.theory.gram import require_alpha

if TYPE_CHECKING:
    from collections.abc import Sequence


def bound(start: float, *, eta: float, mu: float, steps: int) -> tuple[float, ...]:
    """`(1 − η μ/2)^t ‖f(0) − y‖²` for t = 0, …, steps.

    A step so long that the factor is negative is outside the theorem; it is taken as 0 then,
    which promises a perfect fit after one step.

    Examples:
        >>> bound(8.0, eta=0.5, mu=2.0, steps=3)
        (8.0, 4.0, 2.0, 1.0)
    """
    factor = max(0.0, 1 - eta * mu / 2)
    return tuple(start * factor**t for t in range(steps + 1))


def first_violation(measured: Sequence[float], limit: Sequence[float]) -> int | None:
    """The first t at which the measured error is above its bound, or None.

    Examples:
        >>> first_violation([8.0, 3.0, 2.5], [8.0, 4.0, 2.0])
        2
    """
    # The two start from the same number; a rounding error is no violation.
    above = (m > b * (1 + 1e-12) for m, b in zip(measured, limit, strict=True))
    return next(compress(count(), above), None)


def required_width(size: int, *, mu: float, alpha: float, delta: float = 0.1) -> float:
    """The width that Theorem 4.4 asks for, its unknown constant taken as 1.

        m ≥ max{ n⁴ log(n/δ) / (α⁴ μ⁴),  n² log(n/δ) / μ² },   n = NM.

    Examples:
        >>> round(required_width(10, mu=1.0, alpha=1.0, delta=0.1))
        46052
    """
    require_alpha(alpha)
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta}: a probability above 0 and below 1 is wanted")
    if mu <= 0:
        return math.inf
    log = math.log(size / delta)
    return max(size**4 * log / (alpha * mu) ** 4, size**2 * log / mu**2)
