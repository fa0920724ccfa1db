"""The toy example's two readings: clients, their optima, and the models that averaging makes.

The paper's words leave open what differs between the clients (see `fedbn.data._cosine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbn.data._cosine import CosineClient, Labels, cosine_clients
from fedbn.theory import toy

READINGS: dict[Labels, str] = {
    "latent": "y = cos(w_true z) + ε, x = σ z",
    "observed": "y = cos(w_true x) + ε, to the letter",
}
_POINTS = 1201


@dataclass(frozen=True)
class Place:
    """A model (w, γ) as a client would use it, under a name."""

    name: str
    w: float
    gamma: float


@dataclass(frozen=True)
class Reading:
    """One reading of the toy problem: its clients, their optima and what averaging makes of it."""

    labels: Labels
    clients: tuple[CosineClient, ...]
    optima: tuple[toy.Optimum, ...]

    @property
    def formula(self) -> str:
        """What the targets are."""
        return READINGS[self.labels]

    @property
    def mean_w(self) -> float:
        """w̄, the mean of the clients' w*."""
        return toy.averaged([best.w for best in self.optima])

    @property
    def mean_gamma(self) -> float:
        """γ̄, the mean of the clients' γ*."""
        return toy.averaged([best.gamma for best in self.optima])

    def truth(self, client: CosineClient, w_true: float) -> float:
        """The t of y = cos(t x) that is behind a client's targets."""
        return w_true / client.scale if self.labels == "latent" else w_true

    def places(self, client: int) -> list[Place]:
        """The models whose errors the claim compares, for one client."""
        own = self.optima[client]
        without = toy.averaged([best.w / best.gamma for best in self.optima])
        return [
            Place("own optimum (w*, γ*)", own.w, own.gamma),
            Place("no BN, averaged w", without, 1.0),
            Place("averaged w, averaged γ", self.mean_w, self.mean_gamma),
            Place("averaged w, local γ*", self.mean_w, own.gamma),
        ]

    def curves(self, *, normalised: bool) -> list[toy.Array]:
        """Each client's error over `weights()`, with or without local normalisation."""
        return [
            toy.errors(*arrays(client), weights() / (client.gamma if normalised else 1.0))
            for client in self.clients
        ]

    def likeness(self, *, normalised: bool) -> toy.Likeness:
        """How alike the error curves of the first two clients are."""
        return toy.likeness(*self.curves(normalised=normalised)[:2])


def read(labels: Labels, options: Mapping[str, Any]) -> Reading:
    """Draw the clients of a reading and find their optima."""
    clients = cosine_clients(labels=labels, **options)
    return Reading(labels, clients, tuple(toy.optimum(*arrays(client)) for client in clients))


def arrays(client: CosineClient) -> tuple[toy.Array, toy.Array]:
    """A client's inputs and targets."""
    return client.x.numpy(), client.y.numpy()


def weights(points: int = _POINTS) -> toy.Array:
    """The w that curves and surfaces are drawn over."""
    return np.linspace(*toy.W_RANGE, points)
