"""The Gram matrices G∞ and G*∞ (Definition 4.2), what G(0) tends to, and the kernels in time.

The network divides by `‖v‖_S`, and so does G(t) of the paper's appendix; G∞ does not. The limit of
G(0) is therefore not G∞ but

    G°_pq = E σ(vᵀx_p) σ(vᵀx_q) / (‖v‖_{S_p} ‖v‖_{S_q}),   v ~ N(0, I),

which is free of α. It is computed here without sampling, by two integrals that end in the
closed form of G∞:

    1 / (‖v‖_A ‖v‖_B) = (2/π) ∫₀^{π/2} dφ / vᵀC_φ v,   C_φ = sin²φ A + cos²φ B,
    1 / vᵀCv          = ½ ∫₀^∞ exp(−s vᵀCv / 2) ds,

and the Gaussian weight `exp(−s vᵀCv / 2)` only changes the covariance of v to `(I + sC)⁻¹`.

How the predictions move, computed from the paper's formulas and from autograd (appendix B.1): under
gradient flow on `½‖f − y‖²`, `df/dt = −Λ(t)(f − y)` with `Λ(t) = V(t)/α² + G(t)`; V comes from the
directions v, G from the scales γ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev

from fedbn.core.randomness import generator
from fedbn.errors import ConfigError
from fedbn.paper.theory.network import Network, Samples, norms, predict, require_alpha


def relu_kernel(inner: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`E σ(a)σ(b)` for centred Gaussians a and b, from covariance and variances, broadcast.

    The arc-cosine kernel of degree 1: with `cos θ = inner / √(left · right)`,

        E σ(a)σ(b) = √(left · right) / (2π) · (sin θ + (π − θ) cos θ).

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
        >>> from fedbn.paper.theory.network import pool
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
    chance = generator(seed, "theory: Gram matrix")
    v = alpha * torch.randn(draws, x.shape[1], generator=chance, dtype=torch.float64)
    hidden = (v @ x.T).relu()
    mean = hidden.T @ hidden / draws
    square = hidden.square().T @ hidden.square() / draws
    return Estimate(mean, ((square - mean.square()).clamp_min(0) / (draws - 1)).sqrt())


def spectrum(matrix: Tensor) -> Tensor:
    """The eigenvalues of a symmetric matrix, smallest first; what is rounding is 0.

    Examples:
        >>> spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).tolist()
        [1.0, 3.0]
    """
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    rounding = len(values) * torch.finfo(values.dtype).eps * values.abs().max()
    return values.where(values.abs() > rounding, 0.0)


def least_eigenvalue(matrix: Tensor) -> float:
    """λmin of a symmetric matrix.

    Examples:
        >>> least_eigenvalue(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        1.0
    """
    return float(spectrum(matrix)[0])


RADIAL_STEP = 0.5
RADIAL_RANGE = (-36.0, 72.0)
"""Trapezoid rule in log s: the integrand is analytic and decays at both ends."""


def start_gram(samples: Samples, *, angles: int = 48) -> Tensor:
    """G°, the limit of FedAvg's G(0) for infinite width; FedBN's is its diagonal blocks.

    Where all `S_i = I`, the length of v is independent of its direction and `E‖v‖² = d`, hence
    `G° = G∞ / (α² d)` exactly.

    `angles` are the nodes of the φ integral for pairs of clients; one is exact where `A = B`.

    Examples:
        >>> from fedbn.paper.theory.network import pool
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
        # C_φ at the nodes of the midpoint rule in φ, which is Gauss-Chebyshev in sin²φ.
        count = 1 if i == j else angles
        nodes = (torch.arange(count, dtype=torch.float64) + 0.5) * math.pi / (2 * count)
        mixes = [p * moments[i] + (1 - p) * moments[j] for p in nodes.sin().square()]
        block = torch.stack([_weighted(tables[i], tables[j], mix) for mix in mixes]).mean(dim=0)
        result[members[i][:, None] & members[j][None, :]] = block.flatten()
        result[members[j][:, None] & members[i][None, :]] = block.T.flatten()
    return result


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


@dataclass(frozen=True)
class Evolution:
    """The kernel of one network at one time."""

    v: Tensor  # V(t), or V*(t) for FedBN, with the factor α² the paper gives it
    g: Tensor  # G(t), or G*(t) for FedBN
    alpha: float  # α, which only undoes the factor in `v`

    @property
    def total(self) -> Tensor:
        """`Λ(t) = V(t)/α² + G(t)`, what joint gradient descent follows."""
        return self.v / self.alpha**2 + self.g

    def of_rounds(self, scale_boost: int) -> Tensor:
        """`V(t)/α² + boost · G(t)`, what federated rounds with E = 1 follow.

        The boost is N for FedBN, whose γ_i are not averaged, and 1 for FedAvg.
        """
        return self.v / self.alpha**2 + scale_boost * self.g


class Jacobians(NamedTuple):
    """`∂f_p/∂v_k` of shape (n, m, d) and `∂f_p/∂γ_k` of shape (n, m)."""

    v: Tensor
    gamma: Tensor


def jacobians(network: Network, samples: Samples) -> Jacobians:
    """The gradients of every prediction, from the appendix's formulas.

        ∂f_p/∂v_k = (c_k γ_k / (√m ‖v_k‖_S)) (I − S v_k v_kᵀ / ‖v_k‖_S²) x_p · 1_pk
        ∂f_p/∂γ_k = (c_k / (√m ‖v_k‖_S)) v_kᵀx_p · 1_pk

    with `S` of the sample's client. The paper has `1_pk = 1{v_kᵀx_p ≥ 0}`, which is right while
    `γ_k > 0`; a neuron whose scale has turned negative fires on the other side, so here
    `1_pk = 1{γ_k v_kᵀx_p > 0}`.

    Examples:
        >>> from fedbn.paper.theory.network import initial_network, random_clients
        >>> data = random_clients(clients=2, per_client=3, dim=4)
        >>> [tuple(j.shape) for j in jacobians(initial_network(4, width=5, alpha=1.0), data)]
        [(6, 5, 4), (6, 5)]
    """
    length = samples.spread(norms(network.v, samples.moments))
    gamma = samples.spread(network.gamma.expand(-1, samples.clients))
    inner = network.v @ samples.x.T
    active = (gamma * inner > 0) * network.c[:, None] / (network.width**0.5 * length)
    image = torch.einsum("ide,ke->ikd", samples.moments, network.v)[samples.client]
    tangent = samples.x[:, None, :] - (inner / length**2).T[..., None] * image
    return Jacobians((active * gamma).T[..., None] * tangent, (active * inner).T)


def evolution(network: Network, samples: Samples, alpha: float) -> Evolution:
    """V(t) and G(t) of the appendix, or V*(t) and G*(t) where γ is local.

        V_pq = α² Σ_k ⟨∂f_p/∂v_k, ∂f_q/∂v_k⟩,   G_pq = Σ_k ∂f_p/∂γ_k ∂f_q/∂γ_k,

    with `G*_pq = G_pq · 1{i_p = i_q}`, since a client's γ moves no other client's predictions.

    Examples:
        >>> from fedbn.paper.theory.network import initial_network, random_clients
        >>> data = random_clients(clients=2, per_client=3, dim=4)
        >>> net = initial_network(4, width=50, alpha=2.0)
        >>> now, auto = evolution(net, data, alpha=2.0), tangent_kernel(net, data, alpha=2.0)
        >>> torch.allclose(now.total, auto.total, rtol=1e-12)
        True
    """
    jacobian = jacobians(network, samples)
    flat = jacobian.v.flatten(start_dim=1)
    g = jacobian.gamma @ jacobian.gamma.T
    if network.is_local:
        g = block_diagonal(g, samples.client)
    return Evolution(alpha**2 * (flat @ flat.T), g, alpha)


def tangent_kernel(network: Network, samples: Samples, alpha: float) -> Evolution:
    """The same by automatic differentiation, knowing nothing but the forward pass.

    Examples:
        >>> from fedbn.paper.theory.network import initial_network, personalise, random_clients
        >>> data = random_clients(clients=2, per_client=2, dim=4)
        >>> net = personalise(initial_network(4, width=5, alpha=1.0), clients=2)
        >>> float(tangent_kernel(net, data, alpha=1.0).g[0, 2])
        0.0
    """

    def outputs(v: Tensor, gamma: Tensor) -> Tensor:
        return predict(replace(network, v=v, gamma=gamma), samples)

    by_v, by_gamma = jacrev(outputs, argnums=(0, 1))(network.v, network.gamma)
    flat_v, flat_gamma = by_v.flatten(start_dim=1), by_gamma.flatten(start_dim=1)
    return Evolution(alpha**2 * (flat_v @ flat_v.T), flat_gamma @ flat_gamma.T, alpha)
