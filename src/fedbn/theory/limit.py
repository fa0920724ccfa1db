"""What G(0) really tends to as the width grows: the Gram matrix *with* the normalisation.

The network divides by `‖v‖_S`, and so does G(t) of the paper's appendix; G∞ does not. The limit of
G(0) is therefore not G∞ but

    G°_pq = E σ(vᵀx_p) σ(vᵀx_q) / (‖v‖_{S_p} ‖v‖_{S_q}),   v ~ N(0, I),

which is free of α. It is computed here without sampling, by two integrals that end in the
closed form of G∞:

    1 / (‖v‖_A ‖v‖_B) = (2/π) ∫₀^{π/2} dφ / vᵀC_φ v,   C_φ = sin²φ A + cos²φ B,
    1 / vᵀCv          = ½ ∫₀^∞ exp(−s vᵀCv / 2) ds,

and the Gaussian weight `exp(−s vᵀCv / 2)` only changes the covariance of v to `(I + sC)⁻¹`.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from fedbn.theory.gram import relu_kernel
from fedbn.theory.samples import Samples

RADIAL_STEP = 0.5
RADIAL_RANGE = (-36.0, 72.0)
"""Trapezoid rule in log s: the integrand is analytic and decays at both ends."""


def start_gram(samples: Samples, *, angles: int = 48) -> Tensor:
    """G°, the limit of FedAvg's G(0) for infinite width; FedBN's is its diagonal blocks.

    Where all `S_i = I`, the length of v is independent of its direction and `E‖v‖² = d`, hence
    `G° = G∞ / (α² d)` exactly.

    Args:
        samples: Inputs, clients and second moments.
        angles: Nodes of the φ integral for pairs of clients (one node is exact where `A = B`).

    Examples:
        >>> from fedbn.theory import gram_fedavg, pool
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
        >>> unit = pool([x], [[0.0, 0.0]], center=False, moments=[torch.eye(2)])
        >>> torch.allclose(start_gram(unit), gram_fedavg(x, alpha=3.0) / (9 * 2), rtol=1e-12)
        True
    """
    size = samples.x.shape[0]
    result = torch.zeros(size, size, dtype=torch.float64)
    members = [samples.client == i for i in range(samples.clients)]
    # A client's unit of length cancels in vᵀx / ‖v‖_S: choose it so that its S is of size 1.
    units = samples.moments.diagonal(dim1=1, dim2=2).mean(dim=1)
    tables = [samples.x[own] / units[i].sqrt() for i, own in enumerate(members)]
    moments = samples.moments / units[:, None, None]
    for i, j in combinations_with_replacement(range(samples.clients), 2):
        mixes = _mixtures(moments[i], moments[j], 1 if i == j else angles)
        block = torch.stack([_weighted(tables[i], tables[j], mix) for mix in mixes]).mean(dim=0)
        result[members[i][:, None] & members[j][None, :]] = block.flatten()
        result[members[j][:, None] & members[i][None, :]] = block.T.flatten()
    return result


def _mixtures(first: Tensor, second: Tensor, angles: int) -> list[Tensor]:
    """`C_φ` at the nodes of the midpoint rule in φ, which is Gauss-Chebyshev in sin²φ."""
    nodes = (torch.arange(angles, dtype=torch.float64) + 0.5) * math.pi / (2 * angles)
    return [share * first + (1 - share) * second for share in nodes.sin().square()]


def _weighted(left: Tensor, right: Tensor, moment: Tensor) -> Tensor:
    """`E σ(vᵀx_p)σ(vᵀx_q) / vᵀCv` by the trapezoid rule in log s."""
    values, vectors = torch.linalg.eigh(moment)
    s = torch.arange(*RADIAL_RANGE, RADIAL_STEP, dtype=torch.float64).exp()
    shrink = 1 / (1 + s[:, None] * values.clamp_min(0))
    left, right = left @ vectors, right @ vectors
    inner = (shrink[:, None, :] * left) @ right.T
    first, second = shrink @ left.square().T, shrink @ right.square().T
    kernel = relu_kernel(inner, first[:, :, None], second[:, None, :])
    weight = 0.5 * RADIAL_STEP * s * shrink.sqrt().prod(dim=1)
    total: Tensor = torch.tensordot(weight, kernel, dims=1)
    return total
