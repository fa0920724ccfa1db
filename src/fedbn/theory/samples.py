"""The data the theory speaks of: samples, the client of each, and each client's second moment.

Section 4.2 of the paper: N clients hold samples `x` with targets `y`, and client `i` normalises
with `S_i = E[x xᵀ]` over its own inputs. Everything here is float64, because the claims are
about least eigenvalues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.errors import ConfigError

Array = Tensor | NDArray[Any] | Sequence[Sequence[float]] | Sequence[float]


@dataclass(frozen=True)
class Samples:
    """All clients' samples in one table, client after client.

    Attributes:
        x: Inputs, one row a sample.
        y: Targets.
        client: The client of each row, counted from 0.
        moments: `S_i`, one matrix a client.
    """

    x: Tensor
    y: Tensor
    client: Tensor
    moments: Tensor

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


def second_moment(x: Tensor) -> Tensor:
    """`S = (1/M) Σ_j x_j x_jᵀ`, the matrix a client's BatchNorm measures.

    Examples:
        >>> second_moment(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).tolist()
        [[0.5, 0.0], [0.0, 2.0]]
    """
    return x.T @ x / x.shape[0]


def pool(
    inputs: Sequence[Array],
    targets: Sequence[Array],
    *,
    center: bool = True,
    moments: Sequence[Array] | None = None,
) -> Samples:
    """Put the clients' samples into one table.

    Args:
        inputs: One matrix a client, a row a sample.
        targets: One vector a client.
        center: Take each client's mean off its inputs, as Assumption 4.1 wants (`E x = 0`).
        moments: `S_i`; where left out, the second moment of the client's own samples.

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
    given = [second_moment(x) for x in tables] if moments is None else list(moments)
    owners = torch.repeat_interleave(
        torch.arange(len(tables)), torch.tensor([x.shape[0] for x in tables])
    )
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
