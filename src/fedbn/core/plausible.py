"""Updates that are finite and still cannot be honest: refused before they reach an aggregator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedbn.core.packing import Pack

# One round of training never moves a model a thousand times its own length. Statistics of
# BatchNorm may (unscaled inputs), so only trainable entries are measured.
_MOST = 1e3


def absurd(update: Pack, before: Pack) -> str | None:
    """Say how an update is absurdly far from where it started, or None where it is not.

    Examples:
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
    new, old = ([pack.vectors[g] for g in groups] for pack in (update, before))
    # |new - old| <= |new| + |old|: two passes without a copy clear nearly every update.
    length = _length(old)
    if _length(new) + length <= _MOST * (length + 1):
        return None
    doubled = [(n.double(), o.double()) for n, o in zip(new, old, strict=True)]
    moved, length = _length([n - o for n, o in doubled]), _length([o for _, o in doubled])
    if moved <= _MOST * (length + 1):
        return None
    return f"its update moves the model by {moved:.3g}, the model's own norm is {length:.3g}"


def _length(vectors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(vector)) for vector in vectors))
