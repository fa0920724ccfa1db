"""How the predictions move: V(t), G(t) and Λ(t) from the paper's formulas, and from autograd.

Appendix B.1: under gradient flow on `½‖f − y‖²`, `df/dt = −Λ(t)(f − y)` with
`Λ(t) = V(t)/α² + G(t)`; V comes from the directions v, G from the scales γ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev

from fedbn.theory.gram import block_diagonal
from fedbn.theory.network import Network, norms, predict

if TYPE_CHECKING:
    from fedbn.theory.samples import Samples


@dataclass(frozen=True)
class Evolution:
    """The kernel of one network at one time.

    Attributes:
        v: V(t), or V*(t) for FedBN, with the factor α² the paper gives it.
        g: G(t), or G*(t) for FedBN.
        alpha: α, which only undoes the factor in `v`.
    """

    v: Tensor
    g: Tensor
    alpha: float

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
        >>> from fedbn.theory import initial_network, random_clients
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
        >>> from fedbn.theory import initial_network, random_clients
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
        >>> from fedbn.theory import initial_network, personalise, random_clients
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
