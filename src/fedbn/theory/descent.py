"""Training the paper's network: by joint gradient descent, and by federated rounds with E = 1.

With client losses `L_i = ½ Σ_{p of i} (f_p − y_p)²` and `L = Σ_i L_i`:

- joint descent, the dynamics of the paper's proof, moves everything by `−η ∇L`;
- in a round every client moves by `−η_c ∇L_i` and what is shared is averaged, so shared
  parameters move by `−(η_c/N) ∇L` while a γ_i that stays at home moves by the whole `−η_c ∇L_i`.

At `η_c = N η` the two agree on all that is shared. FedAvg is then the same algorithm twice; FedBN
is not: its γ takes steps N times as long as in the proof, and follows `V*/α² + N G*`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fedbn.errors import ConfigError
from fedbn.theory.network import Network, loss, predict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fedbn.theory.samples import Samples


def joint_step(network: Network, samples: Samples, eta: float) -> Network:
    """One step of gradient descent on all clients' loss: `θ ← θ − η ∇L(θ)`.

    Examples:
        >>> from fedbn.theory import initial_network, random_clients
        >>> data = random_clients(clients=2, per_client=3, dim=4)
        >>> net = initial_network(4, width=20, alpha=1.0)
        >>> bool(loss(joint_step(net, data, 0.1), data) < loss(net, data))
        True
    """
    v, gamma = (p.detach().requires_grad_() for p in (network.v, network.gamma))
    with torch.enable_grad():
        objective = loss(replace(network, v=v, gamma=gamma), samples)
    slope_v, slope_gamma = torch.autograd.grad(objective, (v, gamma))
    return replace(network, v=network.v - eta * slope_v, gamma=network.gamma - eta * slope_gamma)


def federated_round(network: Network, samples: Samples, eta: float) -> Network:
    """One round with E = 1: each client steps on its own loss, then what is shared is averaged.

    `v ← mean_i(v − N η ∇_v L_i)`, a shared γ likewise; a local γ_i keeps its client's step. The
    clients' step is `N η`, so that `eta` means the same as in `joint_step` for shared parameters.

    Examples:
        >>> from fedbn.theory import initial_network, random_clients
        >>> data = random_clients(clients=2, per_client=3, dim=4)
        >>> net = initial_network(4, width=20, alpha=1.0)
        >>> torch.allclose(federated_round(net, data, 0.1).v, joint_step(net, data, 0.1).v)
        True
    """
    count = samples.clients
    trained = [joint_step(network, samples.only(i), count * eta) for i in range(count)]
    v = torch.stack([t.v for t in trained]).mean(dim=0)
    if network.is_local:
        gamma = torch.stack([t.gamma[:, i] for i, t in enumerate(trained)], dim=1)
    else:
        gamma = torch.stack([t.gamma for t in trained]).mean(dim=0)
    return replace(network, v=v, gamma=gamma)


@dataclass(frozen=True)
class Course:
    """One training run.

    Attributes:
        errors: `‖f(t) − y‖²` at t = 0, 1, …, steps.
        kept: The network at the times asked for.
    """

    errors: tuple[float, ...]
    kept: dict[int, Network]


def descend(
    network: Network,
    samples: Samples,
    *,
    eta: float,
    steps: int,
    step: Callable[[Network, Samples, float], Network] = joint_step,
    keep: Collection[int] = (),
) -> Course:
    """Train for a number of steps (`joint_step`) or rounds (`federated_round`).

    Examples:
        >>> from fedbn.theory import initial_network, random_clients
        >>> data = random_clients(clients=2, per_client=3, dim=4)
        >>> course = descend(initial_network(4, width=20, alpha=1.0), data, eta=0.1, steps=3)
        >>> len(course.errors), course.errors[3] < course.errors[0]
        (4, True)
    """
    if not eta > 0 or steps < 0:
        raise ConfigError(f"eta={eta}, steps={steps}: want eta above 0 and steps of at least 0")
    errors, kept = [], {}
    for t in range(steps + 1):
        errors.append(float((predict(network, samples) - samples.y).square().sum()))
        if t in keep:
            kept[t] = network
        if t < steps:
            network = step(network, samples, eta)
    return Course(tuple(errors), kept)
