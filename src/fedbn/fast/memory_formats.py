"""How images lie in memory while a model trains: channels last where the model can take it.

Which layout a model gets depends on the model as it begins and on the shape of a sample, never on
how far training is or on a clock, because the layout decides the last bits of a sum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedbn.core.randomness import seeded
from fedbn.core.user_code import contained

_SAMPLES = 4


def as_usual(x: Tensor) -> Tensor:
    """Sample by sample, channel by channel."""
    return x.contiguous()


def channels_last(x: Tensor) -> Tensor:
    """All channels of a pixel side by side."""
    return x.contiguous(memory_format=torch.channels_last)


def fastest(model: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Choose the layout for training a model, as it begins, on batches of this shape."""
    if x.dim() != 4 or x.dtype != torch.float32:
        return as_usual
    batch = torch.rand((_SAMPLES, *x.shape[1:]), generator=torch.Generator().manual_seed(0))
    try:
        with seeded(0), torch.enable_grad(), contained():
            copy.deepcopy(model).train()(channels_last(batch)).sum().backward()
    except Exception:  # whatever a user's forward does: there is always the usual layout
        return as_usual
    return channels_last
