"""The toy problem of the paper's introduction: one weight w, one scale γ, two clients.

The model is `f(x) = cos(w x / γ)`. Without BatchNorm γ is 1; with the paper's simplified form of
it, γ is the standard deviation of the client's own x. The error depends on `w / γ` alone, so a
client has no single best pair but a ray of them; its own γ picks one, and the paper's optimum
(w*, γ*) is that one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbn.errors import ConfigError

Array = NDArray[np.float64]
W_RANGE, GAMMA_RANGE = (0.001, 12.0), (0.001, 4.0)
"""The axes of the paper's second figure."""
_POINTS = 10
"""Of the grid, in the width of the valley around an optimum."""
_HALVINGS = 60
_PIECE = 2_000_000
"""Cosines computed at a time."""


@dataclass(frozen=True)
class Optimum:
    """A client's best model: γ is its own standard deviation, w the best weight for that γ."""

    w: float
    gamma: float
    error: float


@dataclass(frozen=True)
class Likeness:
    """How far two error curves are apart: the largest gap, and their correlation."""

    gap: float
    correlation: float


def spread(x: Array) -> float:
    """γ, the standard deviation of a client's inputs.

    Examples:
        >>> spread(np.array([-2.0, 2.0]))
        2.0
    """
    found = float(np.std(_checked(x, "x")))
    if not found:
        raise ConfigError("x is constant: its standard deviation is 0, and nothing can be scaled")
    return found


def errors(x: Array, y: Array, ratios: Array) -> Array:
    """The mean squared error of `cos(r x)` for every r = w / γ, of any shape.

    Examples:
        >>> x = np.array([0.0, np.pi])
        >>> errors(x, np.cos(x), np.array([0.0, 1.0])).tolist()
        [2.0, 0.0]
    """
    x, y = _checked(x, "x"), _checked(y, "y")
    if x.shape != y.shape:
        raise ConfigError(f"x has {x.size} numbers and y {y.size}: give as many of each")
    flat = _checked(np.asarray(ratios).ravel(), "ratios")
    step = max(1, _PIECE // x.size)
    parts = [
        np.square(y - np.cos(np.multiply.outer(flat[i : i + step], x))).mean(axis=1)
        for i in range(0, flat.size, step)
    ]
    return np.concatenate(parts).reshape(np.shape(ratios))


def error(x: Array, y: Array, w: float, gamma: float = 1.0) -> float:
    """The mean squared error of one model `cos(w x / γ)`."""
    return float(errors(x, y, np.array([w / gamma]))[0])


def surface(x: Array, y: Array, w: Array, gamma: Array) -> Array:
    """The error over w and γ, a row a γ."""
    return errors(x, y, np.divide.outer(1.0, gamma)[:, None] * w)


def optimum(x: Array, y: Array, bounds: tuple[float, float] = W_RANGE) -> Optimum:
    """Find the best w for the client's own γ: a grid over `w / γ`, then golden sections.

    Args:
        x: Inputs.
        y: Targets.
        bounds: Where `w / γ` is looked for.
    """
    gamma = spread(x)
    points = max(201, math.ceil(_POINTS * gamma * (bounds[1] - bounds[0])))
    grid = np.linspace(*bounds, points)
    best = int(errors(x, y, grid).argmin())
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, points - 1)])
    ratio = _refined(x, y, low, high)
    return Optimum(ratio * gamma, gamma, error(x, y, ratio))


def likeness(one: Array, other: Array) -> Likeness:
    """Compare two clients' error curves over the same weights.

    Examples:
        >>> likeness(np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.5, 2.5])).gap
        0.5
    """
    return Likeness(float(np.abs(one - other).max()), float(np.corrcoef(one, other)[0, 1]))


def expected_error(ratio: float, truth: float, scale: float, noise: float) -> float:
    """The error on endless samples, x ~ N(0, σ²) and y = cos(t x) + ε: the generalization error.

    With `a = r σ`, `b = t σ` and `E cos(u z) = exp(−u²/2)`::

        E (cos(az) − cos(bz))² = 1 + (e^(−2a²) + e^(−2b²)) / 2 − e^(−(a−b)²/2) − e^(−(a+b)²/2)

    so the valley around the optimum is a Gaussian as wide as 1/σ: a client with a wide x has a
    narrow valley.

    Args:
        ratio: r = w / γ of the model.
        truth: t of the targets.
        scale: σ.
        noise: The standard deviation of ε, whose square is added.

    Examples:
        >>> expected_error(5.0, 5.0, 1.0, 0.0)
        0.0
    """
    a, b = ratio * scale, truth * scale
    squares = 1 + (math.exp(-2 * a * a) + math.exp(-2 * b * b)) / 2
    product = math.exp(-((a - b) ** 2) / 2) + math.exp(-((a + b) ** 2) / 2)
    return squares - product + noise**2


def averaged(values: Sequence[float]) -> float:
    """The server's mean of one parameter."""
    return sum(values) / len(values)


def _refined(x: Array, y: Array, low: float, high: float) -> float:
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_HALVINGS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if error(x, y, left) < error(x, y, right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _checked(values: Array, what: str) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise ConfigError(f"{what}: give a row of finite numbers, at least one")
    return found
