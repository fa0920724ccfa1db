r"""How far a new site lies from the known ones, told from BatchNorm statistics alone.

Two sites are compared layer by layer. For a channel with means m, m′ and standard deviations
s, s′ of what the layer is given,

\[ d^2 = \frac{(m - m')^2 + (s - s')^2}{(s^2 + s'^2) / 2 + \epsilon}; \]

a layer's d² is the mean over its channels, the distance of two sites the root of the mean over
layers. 0 means alike; at 1 they differ by as much as their own values spread. No site's data is
needed: the known sites' statistics are in the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Layers = Sequence[tuple[Tensor, Tensor]]
"""Mean and variance of each layer that tracks them."""

_EPSILON = 1e-5
FAR = 1.5
FEW = 32


@dataclass(frozen=True)
class Distances:
    """Distances from a new site.

    Attributes:
        to: The distance to each known site, the nearest first.
        among: The largest distance between two known sites; None where there are no two.
    """

    to: Mapping[str, float]
    among: float | None

    @property
    def nearest(self) -> str:
        """The known site that is nearest."""
        return next(iter(self.to))

    @property
    def far(self) -> bool:
        """Whether even the nearest is farther than known sites are from each other, by half."""
        return self.among is not None and self.to[self.nearest] > FAR * self.among


def layers_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Copy the statistics of a model's BatchNorm layers."""
    found = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    return [
        (m.running_mean.clone(), m.running_var.clone())
        for m in found
        if m.running_mean is not None and m.running_var is not None
    ]


def distance(one: Layers, other: Layers) -> float:
    """Compute the distance of two sites.

    Examples:
        >>> import torch
        >>> here = [(torch.tensor([0.0]), torch.tensor([1.0]))]
        >>> there = [(torch.tensor([2.0]), torch.tensor([1.0]))]
        >>> round(distance(here, there), 3), distance(here, here)
        (2.0, 0.0)
    """
    squares = [_layer(*a, *b) for a, b in zip(one, other, strict=True)]
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def distances(new: Layers, known: Mapping[str, Layers]) -> Distances:
    """Compute the distances of a new site to the known ones, and the largest among those."""
    to = sorted(((distance(new, layers), name) for name, layers in known.items()))
    pairs = [distance(a, b) for a, b in combinations(known.values(), 2)]
    return Distances({name: far for far, name in to}, max(pairs, default=None))


def _layer(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> float:
    m, v, n, w = (t.double() for t in (mean, var, other_mean, other_var))
    apart = (m - n).square() + (v.clamp(min=0).sqrt() - w.clamp(min=0).sqrt()).square()
    return float((apart / ((v + w) / 2 + _EPSILON)).mean())
