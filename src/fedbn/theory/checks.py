"""Lemma 4.3 and Corollary 4.6, checked on given samples, and what breaks the first.

Lemma 4.3 assumes that no sample is a multiple of another. What really makes G∞ singular follows
from the kinks: `σ(vᵀx)` bends on the hyperplane `vᵀx = 0`, and only samples on one line through
the origin share that hyperplane. A combination `Σ c_p σ(vᵀx_p) = 0` must therefore have no bend
line by line, which leaves three ways to have one:

- a sample is zero;
- two samples point the same way (`x_q = κ x_p`, κ > 0): `σ(vᵀx_q) = κ σ(vᵀx_p)`;
- opposite pairs (κ < 0), but never one alone: each yields the straight line
  `σ(vᵀx) − σ(−vᵀx) = vᵀx`, so they must be linearly dependent directions, as three pairs in a
  plane are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbn.theory.gram import block_diagonal, least_eigenvalue

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Dependence:
    """The samples that break the assumption of Lemma 4.3, and whether that matters.

    Attributes:
        zeros: Samples that are zero.
        same: Pairs with `x_q = κ x_p`, κ > 0.
        opposite: Pairs with `x_q = κ x_p`, κ < 0.
        singular: Whether G∞ of these samples is singular.
    """

    zeros: tuple[int, ...]
    same: tuple[tuple[int, int], ...]
    opposite: tuple[tuple[int, int], ...]
    singular: bool

    @property
    def assumption_holds(self) -> bool:
        """Whether no sample is a multiple of another, as Assumption 4.1 says (and none zero)."""
        return not (self.zeros or self.same or self.opposite)


def dependence(x: Tensor, *, tolerance: float = 1e-9) -> Dependence:
    """Find zero and proportional samples, and decide from them whether G∞ is singular.

    Args:
        x: Inputs, one row a sample.
        tolerance: Distance of unit vectors below which two directions are the same.

    Examples:
        >>> dependence(torch.tensor([[1.0, 2.0], [2.0, 4.0]])).singular
        True
        >>> dependence(torch.tensor([[1.0, 2.0], [-2.0, -4.0]])).singular
        False
    """
    length = x.norm(dim=1)
    zeros = tuple(torch.nonzero(length == 0).flatten().tolist())
    unit = x / length.clamp_min(torch.finfo(x.dtype).tiny)[:, None]
    usable = (length[:, None] > 0) & (length[None, :] > 0)
    same = _pairs((_distances(unit, unit) < tolerance) & usable)
    opposite = _pairs((_distances(unit, -unit) < tolerance) & usable)
    lines = unit[[p for p, _ in opposite]]
    straight = bool(opposite) and int(torch.linalg.matrix_rank(lines)) < len(opposite)
    return Dependence(zeros, same, opposite, bool(zeros or same) or straight)


def _distances(left: Tensor, right: Tensor) -> Tensor:
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def _pairs(close: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((p, q) for p, q in torch.nonzero(close).tolist() if p < q)


@dataclass(frozen=True)
class Comparison:
    """Corollary 4.6 on one Gram matrix.

    Attributes:
        mu: λmin of the whole matrix (FedAvg).
        mu_star: λmin of its diagonal blocks (FedBN), the least of `blocks`.
        blocks: λmin of each client's block.
        definite: Whether the whole matrix is positive definite beyond rounding.
        definite_star: Whether its blocks are.
        holds: Whether `mu_star ≥ mu`, up to rounding.
    """

    mu: float
    mu_star: float
    blocks: tuple[float, ...]
    definite: bool
    definite_star: bool
    holds: bool


def compare(gram: Tensor, client: Tensor) -> Comparison:
    """λmin of a Gram matrix beside λmin of its clients' blocks (Corollary 4.6, Lemma 4.3).

    Why it always holds: a unit vector that lives on one client has the same quadratic form in
    both matrices, so the minimum over all unit vectors can only be lower.

    Examples:
        >>> gram = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> result = compare(gram, torch.tensor([0, 1]))
        >>> result.mu, result.mu_star, result.holds
        (1.0, 2.0, True)
    """
    blocks = tuple(least_eigenvalue(gram[own][:, own]) for own in _members(client))
    mu, mu_star = least_eigenvalue(gram), least_eigenvalue(block_diagonal(gram, client))
    rounding = gram.shape[0] * torch.finfo(gram.dtype).eps * float(gram.norm())
    return Comparison(
        mu, mu_star, blocks, mu > rounding, mu_star > rounding, mu_star >= mu - rounding
    )


def _members(client: Tensor) -> Sequence[Tensor]:
    return [client == i for i in torch.unique(client).tolist()]
