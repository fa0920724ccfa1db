"""What a method adds to the local loss: the second of the three questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedbn.errors import ConfigError


@runtime_checkable
class Penalty(Protocol):
    """A term of the local loss, over the shared trainable entries and their anchors.

    The anchor of an entry is the value received at the start of the round.
    """

    @property
    def label(self) -> str:
        """The penalty as one writes it on the command line."""

    def value(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
        """The term itself; differentiable in `current`."""


@runtime_checkable
class DirectPenalty(Penalty, Protocol):
    """A penalty that can add its gradient without building a graph."""

    def add_gradient(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Add the term's gradient to `.grad` of each tensor in `current`."""


@dataclass(frozen=True)
class Proximal:
    r"""FedProx's term (Li et al. 2018): \(\frac{\mu}{2} \lVert w - w_{received} \rVert^2\).

    Examples:
        >>> w, received = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])
        >>> Proximal(0.5).value([w], [received])
        tensor(1.)
    """

    mu: float

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"prox({self.mu:g})"

    def value(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
        """The term itself."""
        terms = [(w - a).square().sum() for w, a in zip(current, anchor, strict=True)]
        return torch.stack(terms).sum() * (self.mu / 2)

    def add_gradient(self, current: Sequence[Tensor], anchor: Sequence[Tensor]) -> None:
        """Add mu (w − w_received) in two passes over the gradients."""
        with torch.no_grad():
            for weight, received in zip(current, anchor, strict=True):
                if weight.grad is not None:
                    weight.grad.add_(weight, alpha=self.mu).sub_(received, alpha=self.mu)


def proximal(mu: float = 0.01) -> Proximal:
    """Build FedProx's term; mu is 0.01 unless said, the paper's value for images."""
    if not 0 <= mu < float("inf"):
        raise ConfigError(f"mu = {mu!r} of the proximal term: legal are finite numbers >= 0")
    return Proximal(float(mu))
