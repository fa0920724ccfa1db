"""The two-layer network of the synthetic experiment (appendix "Synthetic Data Experiment")."""

from __future__ import annotations

from math import prod

from torch import nn

# What `fedbn inspect` builds it for, when told nothing else.
EXAMPLE = {"input_shape": (10,), "classes": 2}


def two_layer(
    classes: int, input_shape: tuple[int, ...], width: int = 100, alpha: float = 10.0
) -> nn.Module:
    """Build one hidden layer whose weights and biases start as N(0, alpha²), then BatchNorm."""
    hidden = nn.Linear(prod(input_shape), width)
    nn.init.normal_(hidden.weight, std=alpha)
    nn.init.normal_(hidden.bias, std=alpha)
    flat = [nn.Flatten()] if len(input_shape) > 1 else []
    return nn.Sequential(*flat, hidden, nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes))
