"""The network of the ABIDE experiment: 5995-16-16-2, two BatchNorm layers (section 5.2)."""

from __future__ import annotations

from torch import nn

from fedbn.models.mlp import mlp

# What `fedbn inspect` builds it for, when told nothing else.
EXAMPLE = {"abide_net": {"input_shape": (5995,), "classes": 2}}


def abide_net(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Build it; 96,306 parameters for 5,995 correlations and two classes."""
    return mlp(classes, input_shape, hidden=(16, 16))
