"""Optimisers of the server (Reddi et al. 2020): a step along what the clients agreed on.

The combined update less the shared part before the round is a pseudo-gradient. Only trainable
entries take such a step: an adaptive step on a running variance can make it negative. Everything
else takes the combined value as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbn.core.packing import Pack
from fedbn.core.state import State
from fedbn.errors import ConfigError

_Moment = Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class ServerOptimizer:
    r"""One step \(w \leftarrow w + \eta\, m / (\sqrt{v} + \tau)\), or \(w + \eta\, m\) without v.

    Attributes:
        name: The word for it on the command line.
        lr: The server's learning rate, eta.
        beta1: The share of the old momentum that is kept.
        beta2: The share of the old second moment that is kept.
        tau: The degree of adaptivity.
    """

    name: str
    lr: float
    beta1: float
    beta2: float = 0.99
    tau: float = 1e-3

    @property
    def label(self) -> str:
        """As on the command line."""
        values = {
            "momentum": (self.lr, self.beta1),
            "adagrad": (self.lr, self.beta1, self.tau),
        }.get(self.name, (self.lr, self.beta1, self.beta2, self.tau))
        return f"{self.name}({', '.join(f'{value:g}' for value in values)})"

    def step(self, before: Pack, combined: Pack, memory: State) -> tuple[Pack, State]:
        """Move from `before` towards `combined`; returns the new shared part and memory."""
        vectors = dict(combined.vectors)
        kept: State = {}
        for group in (g for g in before.vectors if g.trainable and not g.integer):
            delta = combined.vectors[group] - before.vectors[group]
            move, moments = self._move(delta, memory, group.label)
            kept |= moments
            vectors[group] = before.vectors[group].add(move, alpha=self.lr)
        return Pack(combined.layout, vectors), kept

    def _move(self, delta: Tensor, memory: State, key: str) -> tuple[Tensor, State]:
        first = memory.get(f"m.{key}", torch.zeros_like(delta))
        if self.name not in _SECOND_MOMENT:
            first = self.beta1 * first + delta
            return first, {f"m.{key}": first}
        first = self.beta1 * first + (1 - self.beta1) * delta
        second = memory.get(f"v.{key}", torch.full_like(delta, self.tau**2))
        second = _SECOND_MOMENT[self.name](second, delta.square(), self.beta2)
        return first / (second.sqrt() + self.tau), {f"m.{key}": first, f"v.{key}": second}


# v after a round, from v before it and the squared pseudo-gradient.
_SECOND_MOMENT: dict[str, _Moment] = {
    "adam": lambda v, square, beta: beta * v + (1 - beta) * square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * torch.sign(v - square),
    "adagrad": lambda v, square, _: v + square,
}


def server_momentum(lr: float = 1.0, beta: float = 0.9) -> ServerOptimizer:
    """Build FedAvgM: plain momentum on the server."""
    return _checked(ServerOptimizer("momentum", lr, beta))


def server_adam(
    lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> ServerOptimizer:
    """Build FedAdam."""
    return _checked(ServerOptimizer("adam", lr, beta1, beta2, tau))


def server_yogi(
    lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> ServerOptimizer:
    """Build FedYogi."""
    return _checked(ServerOptimizer("yogi", lr, beta1, beta2, tau))


def server_adagrad(lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> ServerOptimizer:
    """Build FedAdagrad."""
    return _checked(ServerOptimizer("adagrad", lr, beta1, 0.0, tau))


def _checked(optimizer: ServerOptimizer) -> ServerOptimizer:
    legal = {
        "lr": 0 < optimizer.lr < float("inf"),
        "beta1": 0 <= optimizer.beta1 < 1,
        "beta2": 0 <= optimizer.beta2 < 1,
        "tau": 0 < optimizer.tau < float("inf"),
    }
    for name, fine in legal.items():
        if not fine:
            raise ConfigError(
                f"{name} = {getattr(optimizer, name)!r} of the server's {optimizer.name}: "
                "legal are lr > 0, tau > 0 and 0 <= beta < 1"
            )
    return optimizer
