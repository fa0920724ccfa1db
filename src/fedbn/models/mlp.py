"""A multilayer perceptron with BatchNorm, for tables and vectors of any width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

# What `fedbn inspect` builds it for, when told nothing else.
EXAMPLE = {"mlp": {"input_shape": (30,), "classes": 2}}


def mlp(classes: int, input_shape: tuple[int, ...], hidden: Sequence[int] = (64, 32)) -> nn.Module:
    """Build dense layers of the widths given, BatchNorm and ReLU after each but the last."""
    widths = [prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
