"""The paper's two-layer network with a normalised first layer (equations 1 to 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbn.errors import ConfigError
from fedbn.theory.gram import require_alpha

if TYPE_CHECKING:
    from fedbn.theory.samples import Samples


@dataclass(frozen=True)
class Network:
    """The parameters of f (one column of γ, shared) or of f* (a column a client).

    Attributes:
        v: First layer, one row a neuron: (m, d).
        gamma: BN's scale: (m, 1) for FedAvg, (m, N) for FedBN.
        c: Top layer of signs, never trained: (m,).
    """

    v: Tensor
    gamma: Tensor
    c: Tensor

    @property
    def width(self) -> int:
        """m, the number of neurons."""
        return self.v.shape[0]

    @property
    def is_local(self) -> bool:
        """Whether each client has a γ of its own."""
        return self.gamma.shape[1] > 1


def initial_network(dim: int, *, width: int, alpha: float, seed: int = 0) -> Network:
    """Draw FedAvg's network at t = 0 (equation 2).

    `v_k ~ N(0, α² I)`, `c_k = ±1` with equal chance, `γ_k = ‖v_k‖₂ / α`. The draw of the
    directions does not depend on α.

    Examples:
        >>> net = initial_network(3, width=4, alpha=2.0)
        >>> torch.allclose(net.gamma[:, 0] * 2.0, net.v.norm(dim=1))
        True
    """
    require_alpha(alpha)
    if min(dim, width) < 1:
        raise ConfigError(f"dim={dim}, width={width}: both must be at least 1")
    draw = torch.Generator().manual_seed(seed)
    unit = torch.randn(width, dim, generator=draw, dtype=torch.float64)
    sign = torch.randint(0, 2, (width,), generator=draw).to(torch.float64) * 2 - 1
    return Network(alpha * unit, unit.norm(dim=1, keepdim=True), sign)


def personalise(network: Network, clients: int) -> Network:
    """Give every client its own copy of γ: the FedBN network f* that starts equal to f.

    Examples:
        >>> personalise(initial_network(3, width=4, alpha=1.0), clients=2).gamma.shape
        torch.Size([4, 2])
    """
    if network.is_local or clients < 1:
        raise ConfigError(
            f"cannot give {clients} clients a γ each: γ already has {network.gamma.shape[1]}"
            " columns; want a shared γ and at least 1 client"
        )
    return replace(network, gamma=network.gamma.repeat(1, clients))


def norms(v: Tensor, moments: Tensor) -> Tensor:
    """`‖v_k‖_{S_i} = sqrt(v_kᵀ S_i v_k)` for every neuron and client: (m, N).

    Examples:
        >>> moments = torch.stack([torch.eye(2), 4 * torch.eye(2)])
        >>> norms(torch.tensor([[3.0, 4.0]]), moments).tolist()
        [[5.0, 10.0]]
    """
    return torch.einsum("kd,ide,ke->ki", v, moments, v).sqrt()


def predict(network: Network, samples: Samples) -> Tensor:
    """Predict every sample with f or f*, normalised by its client's `S_i` (equation 1).

        f(x) = (1/√m) Σ_k c_k σ(γ_{k,i} v_kᵀx / ‖v_k‖_{S_i}),   i the client of x.

    Examples:
        >>> from fedbn.theory import pool
        >>> one = pool([[[2.0], [-2.0]]], [[0.0, 0.0]])
        >>> net = Network(*(torch.tensor(p, dtype=torch.float64) for p in ([[1]], [[3]], [1])))
        >>> predict(net, one).tolist()
        [3.0, 0.0]
    """
    scaled = network.v @ samples.x.T / samples.spread(norms(network.v, samples.moments))
    gamma = samples.spread(network.gamma.expand(-1, samples.clients))
    hidden = (gamma * scaled).relu()
    outputs: Tensor = network.c @ hidden / network.width**0.5
    return outputs


def loss(network: Network, samples: Samples) -> Tensor:
    """`L = ½ ‖f − y‖²`, the loss whose gradients the paper's appendix writes down.

    Equation 3 prints `(1/NM) ‖f − y‖²` instead, whose gradients are `2/(NM)` times these.

    Examples:
        >>> from fedbn.theory import pool
        >>> one = pool([[[2.0], [-2.0]]], [[1.0, 1.0]])
        >>> net = Network(*(torch.tensor(p, dtype=torch.float64) for p in ([[1]], [[3]], [1])))
        >>> loss(net, one).item()
        2.5
    """
    return (predict(network, samples) - samples.y).square().sum() / 2
