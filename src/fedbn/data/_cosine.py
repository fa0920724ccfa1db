"""The toy problem of the paper's introduction: y = cos(w x) + ε at two clients.

The paper says that x is Gaussian, that its variance differs between the clients, and that scaling
x by the client's own standard deviation γ brings their error surfaces together. That holds where
the scale is the client's way of measuring: x = σ z is what it sees, and y = cos(w_true z) + ε is
the same task everywhere, so that w = w_true is best for all once x is divided by γ. Read to the
letter, y = cos(w_true x) + ε, it is the other way round; `labels="observed"` draws that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedbn.core.randomness import generator
from fedbn.errors import ConfigError, unknown

Labels = Literal["latent", "observed"]


@dataclass(frozen=True)
class CosineClient:
    """One client's samples, float64.

    Attributes:
        x: Inputs.
        y: Targets.
        scale: σ, the standard deviation that x was drawn with.
    """

    x: Tensor
    y: Tensor
    scale: float

    @property
    def gamma(self) -> float:
        """γ, the empirical standard deviation of x: the paper's simplified BN divides by it."""
        return float(self.x.std(correction=0))


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
        >>> bool(torch.allclose(other.y, torch.cos(5.0 * other.x / other.scale)))
        True
    """
    _check(scales, samples, w_true, noise, labels)
    clients = []
    for place, scale in enumerate(scales):
        draws = generator(seed, "cosine", client=str(place))
        z, errors = torch.randn(2, samples, generator=draws, dtype=torch.float64)
        inside = z if labels == "latent" else scale * z
        clients.append(CosineClient(scale * z, torch.cos(w_true * inside) + noise * errors, scale))
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
