"""The toy problem of the paper's introduction: one weight w, one scale γ, two clients.

The model is `f(x) = cos(w x / γ)`. Without BatchNorm γ is 1; with the paper's simplified form of
it, γ is the standard deviation of the client's own x. The error depends on `w / γ` alone, so a
client has no single best pair but a ray of them; its own γ picks one, and the paper's optimum
(w*, γ*) is that one.

The paper says that x is Gaussian, that its variance differs between the clients, and that scaling
x by the client's own standard deviation γ brings their error surfaces together. That holds where
the scale is the client's way of measuring: x = σ z is what it sees, and y = cos(w_true z) + ε is
the same task everywhere, so that w = w_true is best for all once x is divided by γ. Read to the
letter, y = cos(w_true x) + ε, it is the other way round; `labels="observed"` draws that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedbn.core.randomness import generator
from fedbn.errors import ConfigError, unknown

FloatArray = NDArray[np.float64]
W_RANGE, GAMMA_RANGE = (0.001, 12.0), (0.001, 4.0)
"""The axes of the paper's second figure."""
_POINTS = 10
"""Of the grid, in the width of the valley around an optimum."""
_HALVINGS = 60
_PIECE = 2_000_000
"""Cosines computed at a time."""


class Model(NamedTuple):
    """The weight w and the scale γ of `cos(w x / γ)`."""

    w: float
    gamma: float


class Likeness(NamedTuple):
    """How far two error curves are apart: the largest gap, and their correlation."""

    gap: float
    correlation: float


def spread(x: FloatArray) -> float:
    """γ, the standard deviation of a client's inputs.

    Examples:
        >>> spread(np.array([-2.0, 2.0]))
        2.0
    """
    found = float(np.std(_checked(x, "x")))
    if not found:
        raise ConfigError("x is constant: its standard deviation is 0, and nothing can be scaled")
    return found


def errors(x: FloatArray, y: FloatArray, ratios: FloatArray) -> FloatArray:
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


def error(x: FloatArray, y: FloatArray, w: float, gamma: float = 1.0) -> float:
    """The mean squared error of one model `cos(w x / γ)`."""
    return float(errors(x, y, np.array([w / gamma]))[0])


def surface(x: FloatArray, y: FloatArray, w: FloatArray, gamma: FloatArray) -> FloatArray:
    """The error over w and γ, a row a γ."""
    return errors(x, y, np.divide.outer(1.0, gamma)[:, None] * w)


def optimum(x: FloatArray, y: FloatArray, bounds: tuple[float, float] = W_RANGE) -> Model:
    """Find the best w for the client's own γ: a grid over `w / γ`, then golden sections.

    The ratio is looked for within `bounds`.
    """
    gamma = spread(x)
    points = max(201, math.ceil(_POINTS * gamma * (bounds[1] - bounds[0])))
    grid = np.linspace(*bounds, points)
    best = int(errors(x, y, grid).argmin())
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, points - 1)])
    return Model(_refined(x, y, low, high) * gamma, gamma)


def likeness(one: FloatArray, other: FloatArray) -> Likeness:
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


def _refined(x: FloatArray, y: FloatArray, low: float, high: float) -> float:
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_HALVINGS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if error(x, y, left) < error(x, y, right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _checked(values: FloatArray, what: str) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise ConfigError(f"{what}: give a row of finite numbers, at least one")
    return found


Labels = Literal["latent", "observed"]


@dataclass(frozen=True)
class CosineClient:
    """One client's inputs and targets, and σ, the deviation that x was drawn with."""

    x: FloatArray
    y: FloatArray
    scale: float


def cosine_clients(
    scales: Sequence[float] = (1.0, 2.5),
    samples: int = 1000,
    w_true: float = 5.0,
    noise: float = 0.1,
    labels: Labels = "latent",
    seed: int = 0,
) -> tuple[CosineClient, ...]:
    """Draw the clients of the toy problem.

    Args:
        scales: σ of each client.
        samples: Of each client.
        w_true: The weight behind the targets.
        noise: Standard deviation of ε.
        labels: Whether y is made from z (`latent`) or from x = σ z (`observed`).
        seed: Decides the samples.

    Examples:
        >>> one, other = cosine_clients(noise=0.0)
        >>> bool(np.allclose(other.y, np.cos(5.0 * other.x / other.scale)))
        True
    """
    _check(scales, samples, w_true, noise, labels)
    clients = []
    for place, scale in enumerate(scales):
        draws = generator(seed, "cosine", client=str(place))
        z, errors = torch.randn(2, samples, generator=draws, dtype=torch.float64)
        inside = z if labels == "latent" else scale * z
        y = torch.cos(w_true * inside) + noise * errors
        clients.append(CosineClient((scale * z).numpy(), y.numpy(), scale))
    return tuple(clients)


def _check(scales: Sequence[float], samples: int, w_true: float, noise: float, labels: str) -> None:
    if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise ConfigError(f"scales = {list(scales)}: legal are numbers above 0, one a client")
    if samples < 2:
        raise ConfigError(f"samples = {samples}: legal are whole numbers from 2")
    if not math.isfinite(w_true):
        raise ConfigError(f"w_true = {w_true}: legal are finite numbers")
    if not (math.isfinite(noise) and noise >= 0):
        raise ConfigError(f"noise = {noise}: legal are numbers from 0")
    if labels not in get_args(Labels):
        raise ConfigError(f"labels: {unknown('kind of label', labels, get_args(Labels))}")


READINGS: dict[Labels, str] = {
    "latent": "y = cos(w_true z) + ε, x = σ z",
    "observed": "y = cos(w_true x) + ε, to the letter",
}


_GRID = 1201


@dataclass(frozen=True)
class Reading:
    """One reading of the toy problem: its clients, their optima and what averaging makes of it."""

    labels: Labels
    clients: tuple[CosineClient, ...]
    optima: tuple[Model, ...]

    @property
    def formula(self) -> str:
        """What the targets are."""
        return READINGS[self.labels]

    @property
    def mean(self) -> Model:
        """What the server makes of the clients' optima."""
        return Model(*map(fmean, zip(*self.optima, strict=True)))

    def truth(self, client: CosineClient, w_true: float) -> float:
        """The t of y = cos(t x) that is behind a client's targets."""
        return w_true / client.scale if self.labels == "latent" else w_true

    def models(self, client: int) -> dict[str, Model]:
        """The models whose errors the claim compares, as one client would use them."""
        own = self.optima[client]
        return {
            "own optimum (w*, γ*)": own,
            "no BN, averaged w": Model(fmean(best.w / best.gamma for best in self.optima), 1.0),
            "averaged w, averaged γ": self.mean,
            "averaged w, local γ*": Model(self.mean.w, own.gamma),
        }

    def curves(self, *, normalised: bool) -> list[FloatArray]:
        """Each client's error over `weights()`, with or without local normalisation."""
        return [
            errors(c.x, c.y, weights() / (spread(c.x) if normalised else 1.0)) for c in self.clients
        ]

    def likeness(self, *, normalised: bool) -> Likeness:
        """How alike the error curves of the first two clients are."""
        return likeness(*self.curves(normalised=normalised)[:2])


def read(labels: Labels, options: Mapping[str, Any]) -> Reading:
    """Draw the clients of a reading and find their optima."""
    clients = cosine_clients(labels=labels, **options)
    return Reading(labels, clients, tuple(optimum(c.x, c.y) for c in clients))


def weights(points: int = _GRID) -> FloatArray:
    """The w that curves and surfaces are drawn over."""
    return np.linspace(*W_RANGE, points)
