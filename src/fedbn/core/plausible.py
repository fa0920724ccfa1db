"""Updates that are finite and still cannot be honest: refused before they reach an aggregator."""

from __future__ import annotations

import math

from torch import Tensor

from fedbn.core.packing import Pack

# One round of training never moves a model a thousand times its own length. Statistics of
# BatchNorm may (unscaled inputs), so only trainable entries are measured.
_MOST = 1e3


def absurd(update: Pack, before: Pack) -> str | None:
    """Say how an update is absurdly far from where it started, or None where it is not.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from fedbn.core.packing import Layout
        >>> from fedbn.core.state import entries
        >>> layer = nn.Linear(2, 1)
        >>> start = Layout.of(entries(layer)).pack(layer.state_dict())
        >>> far = Layout.of(entries(layer)).pack({n: v + 1e9 for n, v in start.state.items()})
        >>> absurd(start, start) is None, absurd(far, start) is None
        (True, False)
    """
    groups = [g for g in before.vectors if g.trainable and not g.integer]
    moved = _length([update.vectors[g].double() - before.vectors[g].double() for g in groups])
    length = _length([before.vectors[g].double() for g in groups])
    if moved <= _MOST * (length + 1):
        return None
    return f"its update moves the model by {moved:.3g}, the model's own norm is {length:.3g}"


def _length(vectors: list[Tensor]) -> float:
    return math.sqrt(sum(float(vector.square().sum()) for vector in vectors))
