"""Samples at clients, and the two-layer network with a normalised first layer (equations 1 to 3).

Section 4.2 of the paper: N clients hold samples `x` with targets `y`, and client `i` normalises
with `S_i = E[x xᵀ]` over its own inputs. Everything here is float64, because the claims are
about least eigenvalues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.randomness import generator
from fedbn.errors import ConfigError

Array = Tensor | NDArray[Any] | Sequence[Sequence[float]] | Sequence[float]


@dataclass(frozen=True)
class Samples:
    """All clients' samples in one table, client after client."""

    x: Tensor  # inputs, one row a sample
    y: Tensor  # targets
    client: Tensor  # the client of each row, counted from 0
    moments: Tensor  # `S_i`, one matrix a client

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return self.moments.shape[0]

    def spread(self, per_client: Tensor) -> Tensor:
        """Give each sample its client's column: (m, N) becomes (m, n).

        A product with a 0/1 matrix is exact, and its backward pass many times as fast as that of
        indexing.
        """
        ids = torch.arange(self.clients)
        return per_client @ (ids[:, None] == self.client[None, :]).to(per_client.dtype)

    def only(self, client: int) -> Samples:
        """The rows of one client, with all the second moments kept."""
        rows = self.client == client
        return replace(self, x=self.x[rows], y=self.y[rows], client=self.client[rows])


def as_double(values: Array, what: str) -> Tensor:
    """A float64 copy of an array, refused where a number is not finite."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    if not bool(torch.isfinite(tensor).all()):
        raise ConfigError(f"{what} holds a number that is not finite: give finite numbers only")
    return tensor


def pool(
    inputs: Sequence[Array],
    targets: Sequence[Array],
    *,
    center: bool = True,
    moments: Sequence[Array] | None = None,
) -> Samples:
    """Put the clients' samples into one table: of each a matrix, a row a sample, and a vector.

    `center` takes each client's mean off its inputs, as Assumption 4.1 wants (`E x = 0`); `moments`
    are `S_i`, where left out the second moment of the client's own samples.

    Examples:
        >>> two = pool([[[1.0], [3.0]], [[5.0], [9.0]]], [[0.0, 1.0], [0.0, 1.0]])
        >>> two.x.flatten().tolist(), two.client.tolist()
        ([-1.0, 1.0, -2.0, 2.0], [0, 0, 1, 1])
        >>> two.moments.flatten().tolist()
        [1.0, 4.0]
    """
    tables = [as_double(x, f"inputs of client {i}") for i, x in enumerate(inputs)]
    labels = [as_double(y, f"targets of client {i}") for i, y in enumerate(targets)]
    _check_shapes(tables, labels)
    if center:
        tables = [x - x.mean(dim=0) for x in tables]
    given = [x.T @ x / len(x) for x in tables] if moments is None else list(moments)
    owners = torch.repeat_interleave(torch.tensor([len(x) for x in tables]))
    stacked = torch.stack([as_double(s, f"moment of client {i}") for i, s in enumerate(given)])
    _check_moments(stacked, len(tables), tables[0].shape[1])
    return Samples(torch.cat(tables), torch.cat(labels), owners, stacked)


def _check_shapes(tables: list[Tensor], labels: list[Tensor]) -> None:
    if not tables or len(tables) != len(labels):
        raise ConfigError(
            f"{len(tables)} clients have inputs and {len(labels)} have targets:"
            " give both for each of at least one client"
        )
    for i, (x, y) in enumerate(zip(tables, labels, strict=True)):
        if x.ndim != 2 or y.shape != x.shape[:1] or x.shape[1] != tables[0].shape[-1]:
            raise ConfigError(
                f"client {i} has inputs of shape {tuple(x.shape)} and targets of shape"
                f" {tuple(y.shape)}: want (M, {tables[0].shape[-1]}) and (M,)"
            )


def _check_moments(moments: Tensor, clients: int, dim: int) -> None:
    if moments.shape != (clients, dim, dim):
        raise ConfigError(
            f"moments have shape {tuple(moments.shape)}: want ({clients}, {dim}, {dim})"
        )
    for i, moment in enumerate(moments):
        if not bool(moment.any()):
            raise ConfigError(f"client {i} has only zero inputs: ‖v‖_S would be zero")


def random_clients(
    *, clients: int = 3, per_client: int = 12, dim: int = 8, shift: float = 1.0, seed: int = 0
) -> Samples:
    """Gaussian clients with feature shift: the same task, another covariance at each.

    Client `i` draws `x ~ N(0, R_i D R_iᵀ)` with a random rotation `R_i` and variances `D`
    spaced evenly on a log scale from `exp(−shift)` to `exp(shift)`; `shift=0` is no shift.
    One teacher labels everything: `y = tanh(wᵀx)`.

    Examples:
        >>> random_clients(clients=2, per_client=3, dim=5).x.shape
        torch.Size([6, 5])
    """
    if min(clients, per_client, dim) < 1:
        raise ConfigError(f"clients={clients}, per_client={per_client}, dim={dim}: all must be ≥ 1")
    draw = generator(seed, "theory: clients")
    teacher = _normal(draw, dim) / dim**0.5
    deviations = torch.linspace(-shift / 2, shift / 2, dim, dtype=torch.float64).exp()
    tables = []
    for _ in range(clients):
        rotation = torch.linalg.qr(_normal(draw, dim, dim)).Q
        tables.append((_normal(draw, per_client, dim) * deviations) @ rotation.T)
    return pool(tables, [torch.tanh(x @ teacher) for x in tables])


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def require_alpha(alpha: float) -> None:
    """Refuse an α that is not a positive, finite number."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha={alpha}: must be a finite number above 0")


@dataclass(frozen=True)
class Network:
    """The parameters of f (one column of γ, shared) or of f* (a column a client)."""

    v: Tensor  # first layer, one row a neuron: (m, d)
    gamma: Tensor  # BN's scale: (m, 1) for FedAvg, (m, N) for FedBN
    c: Tensor  # top layer of signs, never trained: (m,)

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
    draw = generator(seed, "theory: network")
    unit = _normal(draw, width, dim)
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
        >>> one = pool([[[2.0], [-2.0]]], [[1.0, 1.0]])
        >>> net = Network(*(torch.tensor(p, dtype=torch.float64) for p in ([[1]], [[3]], [1])))
        >>> loss(net, one).item()
        2.5
    """
    return (predict(network, samples) - samples.y).square().sum() / 2
