"""The two-layer network of the synthetic experiment (appendix "Synthetic Data Experiment").

The paper gives the start of the weights and biases of "neuron k" and says nothing of the output
layer's; `start` chooses.
"""

from __future__ import annotations

from math import prod
from typing import Literal, get_args

from torch import nn

from fedbn.errors import ConfigError, unknown

Start = Literal["hidden", "all"]

# What `fedbn inspect` builds it for, when told nothing else.
EXAMPLE = {"two_layer": {"input_shape": (10,), "classes": 2}}


def two_layer(
    classes: int,
    input_shape: tuple[int, ...],
    width: int = 100,
    alpha: float = 10.0,
    start: Start = "hidden",
) -> nn.Module:
    """Build one hidden layer, then BatchNorm; N(0, alpha²) starts it, or the output layer too."""
    if start not in get_args(Start):
        raise ConfigError(f"model.args.start: {unknown('start', str(start), get_args(Start))}")
    hidden, output = nn.Linear(prod(input_shape), width), nn.Linear(width, classes)
    for layer in (hidden, output) if start == "all" else (hidden,):
        nn.init.normal_(layer.weight, std=alpha)
        nn.init.normal_(layer.bias, std=alpha)
    flat = [nn.Flatten()] if len(input_shape) > 1 else []
    return nn.Sequential(*flat, hidden, nn.BatchNorm1d(width), nn.ReLU(), output)
