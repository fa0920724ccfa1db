"""Training the paper's network, and the claims about it: bounds and lemmas (section 4).

It is trained by joint gradient descent, and by federated rounds with E = 1.

With client losses `L_i = ½ Σ_{p of i} (f_p − y_p)²` and `L = Σ_i L_i`:

- joint descent, the dynamics of the paper's proof, moves everything by `−η ∇L`;
- in a round every client moves by `−η_c ∇L_i` and what is shared is averaged, so shared
  parameters move by `−(η_c/N) ∇L` while a γ_i that stays at home moves by the whole `−η_c ∇L_i`.

At `η_c = N η` the two agree on all that is shared. FedAvg is then the same algorithm twice; FedBN
is not: its γ takes steps N times as long as in the proof, and follows `V*/α² + N G*`.

Lemma 4.3 assumes that no sample is a multiple of another. What really makes G∞ singular follows
from the kinks: `σ(vᵀx)` bends on the hyperplane `vᵀx = 0`, and only samples on one line through
the origin share that hyperplane. A combination `Σ c_p σ(vᵀx_p) = 0` must therefore have no bend
line by line, which leaves three ways to have one:

- a sample is zero;
- two samples point the same way (`x_q = κ x_p`, κ > 0): `σ(vᵀx_q) = κ σ(vᵀx_p)`;
- opposite pairs (κ < 0), but never one alone: each yields the straight line
  `σ(vᵀx) − σ(−vᵀx) = vᵀx`, so they must be linearly dependent directions, as three pairs in a
  plane are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count

import torch
from torch import Tensor

from fedbn.errors import ConfigError
from fedbn.paper.theory.kernels import block_diagonal, least_eigenvalue
from fedbn.paper.theory.network import Network, Samples, loss, predict, require_alpha


def joint_step(network: Network, samples: Samples, eta: float) -> Network:
    """One step of gradient descent on all clients' loss: `θ ← θ − η ∇L(θ)`.

    Examples:
        >>> from fedbn.paper.theory.network import initial_network, random_clients
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
        >>> from fedbn.paper.theory.network import initial_network, random_clients
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
    """One training run: `‖f(t) − y‖²` at t = 0, 1, …, and the network at the times asked for."""

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
        >>> from fedbn.paper.theory.network import initial_network, random_clients
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


def bound(start: float, *, eta: float, mu: float, steps: int) -> tuple[float, ...]:
    """`(1 − η μ/2)^t ‖f(0) − y‖²` for t = 0, …, steps.

    A step so long that the factor is negative is outside the theorem; it is taken as 0 then,
    which promises a perfect fit after one step.

    Examples:
        >>> bound(8.0, eta=0.5, mu=2.0, steps=3)
        (8.0, 4.0, 2.0, 1.0)
    """
    factor = max(0.0, 1 - eta * mu / 2)
    return tuple(start * factor**t for t in range(steps + 1))


def first_violation(measured: Sequence[float], limit: Sequence[float]) -> int | None:
    """The first t at which the measured error is above its bound, or None.

    Examples:
        >>> first_violation([8.0, 3.0, 2.5], [8.0, 4.0, 2.0])
        2
    """
    # The two start from the same number; a rounding error is no violation.
    above = (m > b * (1 + 1e-12) for m, b in zip(measured, limit, strict=True))
    return next(compress(count(), above), None)


def required_width(size: int, *, mu: float, alpha: float, delta: float = 0.1) -> float:
    """The width that Theorem 4.4 asks for, its unknown constant taken as 1.

        m ≥ max{ n⁴ log(n/δ) / (α⁴ μ⁴),  n² log(n/δ) / μ² },   n = NM.

    Examples:
        >>> round(required_width(10, mu=1.0, alpha=1.0, delta=0.1))
        46052
    """
    require_alpha(alpha)
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta}: a probability above 0 and below 1 is wanted")
    if mu <= 0:
        return math.inf
    log = math.log(size / delta)
    return max(size**4 * log / (alpha * mu) ** 4, size**2 * log / mu**2)


@dataclass(frozen=True)
class Dependence:
    """The samples that break the assumption of Lemma 4.3, and whether that matters."""

    zeros: tuple[int, ...]  # samples that are zero
    same: tuple[tuple[int, int], ...]  # pairs with `x_q = κ x_p`, κ > 0
    opposite: tuple[tuple[int, int], ...]  # pairs with `x_q = κ x_p`, κ < 0
    singular: bool  # whether G∞ of these samples is singular

    @property
    def assumption_holds(self) -> bool:
        """Whether no sample is a multiple of another, as Assumption 4.1 says (and none zero)."""
        return not (self.zeros or self.same or self.opposite)


def dependence(x: Tensor, *, tolerance: float = 1e-9) -> Dependence:
    """Find zero and proportional samples, and decide from them whether G∞ is singular.

    Directions are the same where their unit vectors are nearer to each other than `tolerance`.

    Examples:
        >>> dependence(torch.tensor([[1.0, 2.0], [2.0, 4.0]])).singular
        True
        >>> dependence(torch.tensor([[1.0, 2.0], [-2.0, -4.0]])).singular
        False
    """
    length = x.norm(dim=1)
    zeros = tuple(torch.nonzero(length == 0).flatten().tolist())
    unit = x / length.clamp_min(torch.finfo(x.dtype).tiny)[:, None]
    usable = (length[:, None] > 0) & (length[None, :] > 0)
    exact = "donot_use_mm_for_euclid_dist"
    apart = [torch.cdist(unit, ends, compute_mode=exact) for ends in (unit, -unit)]
    close = (torch.nonzero((far < tolerance) & usable).tolist() for far in apart)
    same, opposite = (tuple((p, q) for p, q in pairs if p < q) for pairs in close)
    lines = unit[[p for p, _ in opposite]]
    straight = bool(opposite) and int(torch.linalg.matrix_rank(lines)) < len(opposite)
    return Dependence(zeros, same, opposite, bool(zeros or same) or straight)


@dataclass(frozen=True)
class Comparison:
    """Corollary 4.6 on one Gram matrix."""

    mu: float  # λmin of the whole matrix (FedAvg)
    mu_star: float  # λmin of its diagonal blocks (FedBN), the least of `blocks`
    blocks: tuple[float, ...]  # λmin of each client's block
    definite: bool  # whether the whole matrix is positive definite beyond rounding
    definite_star: bool  # whether its blocks are
    holds: bool  # whether `mu_star ≥ mu`, up to rounding


def compare(gram: Tensor, client: Tensor) -> Comparison:
    """λmin of a Gram matrix beside λmin of its clients' blocks (Corollary 4.6, Lemma 4.3).

    Why it always holds: a unit vector that lives on one client has the same quadratic form in
    both matrices, so the minimum over all unit vectors can only be lower.

    Examples:
        >>> gram = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> result = compare(gram, torch.tensor([0, 1]))
        >>> result.mu, result.mu_star, result.holds
        (1.0, 2.0, True)
    """
    members = [client == i for i in torch.unique(client).tolist()]
    blocks = tuple(least_eigenvalue(gram[own][:, own]) for own in members)
    mu, mu_star = least_eigenvalue(gram), least_eigenvalue(block_diagonal(gram, client))
    rounding = gram.shape[0] * torch.finfo(gram.dtype).eps * float(gram.norm())
    return Comparison(
        mu, mu_star, blocks, mu > rounding, mu_star > rounding, mu_star >= mu - rounding
    )
