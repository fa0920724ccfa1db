"""Random clients with feature shift, the data of a study that was given none."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbn.errors import ConfigError
from fedbn.theory.samples import Samples, pool


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
    draw = torch.Generator().manual_seed(seed)
    teacher = _normal(draw, dim) / dim**0.5
    deviations = torch.linspace(-shift / 2, shift / 2, dim, dtype=torch.float64).exp()
    tables = []
    for _ in range(clients):
        rotation = torch.linalg.qr(_normal(draw, dim, dim)).Q
        tables.append((_normal(draw, per_client, dim) * deviations) @ rotation.T)
    return pool(tables, [torch.tanh(x @ teacher) for x in tables])


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)
