"""The auxiliary Gram matrices G∞ and G*∞ of the paper (Definition 4.2), and their eigenvalues."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedbn.errors import ConfigError
from fedbn.theory.samples import Samples


def relu_kernel(inner: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`E σ(a)σ(b)` for centred Gaussians a and b, from their covariance and variances.

    The arc-cosine kernel of degree 1: with `cos θ = inner / √(left · right)`,

        E σ(a)σ(b) = √(left · right) / (2π) · (sin θ + (π − θ) cos θ).

    Args:
        inner: Covariances of a and b; the three shapes are broadcast.
        left: Variances of a.
        right: Variances of b.

    Examples:
        >>> zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> (2 * math.pi * relu_kernel(zero, one, one)).item()
        1.0
    """
    scale = (left * right).sqrt()
    cosine = torch.where(scale > 0, inner / scale, 0.0).clamp(-1, 1)
    sine = (1 - cosine.square()).sqrt()
    return scale * (sine + (math.pi - cosine.arccos()) * cosine) / (2 * math.pi)


def gram_fedavg(x: Tensor, alpha: float = 1.0) -> Tensor:
    """G∞ in closed form: `G∞_pq = E_{v ~ N(0, α² I)} σ(vᵀx_p) σ(vᵀx_q)`.

    On the diagonal it is `α²‖x_p‖²/2`; for orthogonal samples `α²‖x_p‖‖x_q‖/(2π)`.

    Examples:
        >>> gram_fedavg(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).item()
        12.5
    """
    require_alpha(alpha)
    inner = x @ x.T
    square = inner.diagonal()
    return alpha**2 * relu_kernel(inner, square[:, None], square[None, :])


def block_diagonal(matrix: Tensor, client: Tensor) -> Tensor:
    """Keep the entries whose two samples are of one client: `A_pq · 1{i_p = i_q}`.

    Examples:
        >>> block_diagonal(torch.ones(3, 3), torch.tensor([0, 0, 1])).tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return matrix * (client[:, None] == client[None, :])


def gram_fedbn(samples: Samples, alpha: float = 1.0) -> Tensor:
    """G*∞ in closed form: the blocks of G∞ on the diagonal, one a client, and zero elsewhere.

    Examples:
        >>> from fedbn.theory import pool
        >>> two = pool([[[1.0]], [[2.0]]], [[0.0], [0.0]], center=False)
        >>> gram_fedbn(two).tolist()
        [[0.5, 0.0], [0.0, 2.0]]
    """
    return block_diagonal(gram_fedavg(samples.x, alpha), samples.client)


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error, entry by entry."""

    mean: Tensor
    error: Tensor


def monte_carlo_gram(x: Tensor, alpha: float = 1.0, *, draws: int, seed: int = 0) -> Estimate:
    """G∞ by sampling `v`: the mean of `σ(vᵀx_p)σ(vᵀx_q)` over `draws` Gaussian vectors.

    Examples:
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> guess = monte_carlo_gram(x, draws=10_000)
        >>> bool(((guess.mean - gram_fedavg(x)).abs() < 4 * guess.error).all())
        True
    """
    require_alpha(alpha)
    if draws < 2:
        raise ConfigError(f"draws={draws}: at least 2 are needed for a standard error")
    generator = torch.Generator().manual_seed(seed)
    v = alpha * torch.randn(draws, x.shape[1], generator=generator, dtype=torch.float64)
    hidden = (v @ x.T).relu()
    mean = hidden.T @ hidden / draws
    square = hidden.square().T @ hidden.square() / draws
    return Estimate(mean, ((square - mean.square()).clamp_min(0) / (draws - 1)).sqrt())


def spectrum(matrix: Tensor) -> Tensor:
    """The eigenvalues of a symmetric matrix, smallest first.

    Examples:
        >>> spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).tolist()
        [1.0, 3.0]
    """
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values


def least_eigenvalue(matrix: Tensor) -> float:
    """λmin of a symmetric matrix.

    Examples:
        >>> least_eigenvalue(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        1.0
    """
    return float(spectrum(matrix)[0])


def require_alpha(alpha: float) -> None:
    """Refuse an α that is not a positive, finite number."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha={alpha}: must be a finite number above 0")
