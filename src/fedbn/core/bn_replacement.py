"""A model without BatchNorm: GroupNorm (Wu & He 2018) in its place, as Hsieh et al. 2020 advise.

What such a model normalises with are the values of one sample, so there is nothing to keep at a
client, and nothing of a batch in it.
"""

from __future__ import annotations

import torch
from torch import nn

from fedbn.core.state import is_batchnorm
from fedbn.errors import ModelError

_CHANNELS = 16


def with_groupnorm(model: nn.Module) -> nn.Module:
    """Put GroupNorm in the place of every BatchNorm, with its affine values where it has them.

    A group has 16 channels or more, as many as divide them all alike; fewer channels are one group.

    Examples:
        >>> with_groupnorm(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))[1].num_groups
        4
    """
    made: dict[nn.Module, nn.Module] = {}  # one layer in two places is one layer afterwards
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # of `named_children` repeats are missing
            if child is not None and is_batchnorm(child):
                setattr(module, name, made.setdefault(child, _groupnorm(child)))
    if not made:
        if is_batchnorm(model):
            return _groupnorm(model)
        raise ModelError("model.transform = 'groupnorm': the model has no BatchNorm to replace")
    return model


@torch.no_grad()
def _groupnorm(norm: nn.Module) -> nn.GroupNorm:
    channels = getattr(norm, "num_features", None)
    if not isinstance(channels, int):
        raise ModelError(
            f"model.transform = 'groupnorm': a {type(norm).__name__} has no num_features"
        )
    most = max(1, channels // _CHANNELS)
    groups = next(count for count in range(most, 0, -1) if channels % count == 0)
    affine = getattr(norm, "weight", None) is not None
    made = nn.GroupNorm(groups, channels, eps=getattr(norm, "eps", 1e-5), affine=affine)
    for mine, given in zip(made.parameters(), norm.parameters(), strict=False):
        mine.copy_(given)
        mine.requires_grad_(given.requires_grad)
    return made.to(next(norm.parameters(), torch.empty(0)).dtype)
