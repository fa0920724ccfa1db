"""One call that computes the paper's theory on one set of clients and trains both networks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from fedbn.errors import ConfigError
from fedbn.paper.theory import convergence, kernels
from fedbn.paper.theory.kernels import least_eigenvalue, spectrum
from fedbn.paper.theory.network import (
    Network,
    Samples,
    initial_network,
    personalise,
    random_clients,
)
from fedbn.text import plain

Errors = tuple[float, ...]

# The numbers of the largest table, what every weight does to every sample: 2 GiB.
_LARGEST = 1 << 28


def check_size(samples: Samples, width: int) -> None:
    """Refuse what no machine computes with."""
    if (size := samples.x.numel() * width) > _LARGEST:
        tables = f"width={width} for {len(samples.x)} samples of {samples.x.shape[1]} inputs"
        raise ConfigError(f"{tables}: a table of {size:.3g} numbers; at most {_LARGEST:.3g}")


@dataclass(frozen=True)
class Setting:
    """What was studied: the sizes, α, the common step η, its length `step`, δ and the seed."""

    clients: int
    samples: int
    dim: int
    width: int
    alpha: float
    eta: float
    step: float
    steps: int
    delta: float
    seed: int


@dataclass(frozen=True)
class Bound:
    """A Gram matrix, and Theorem 4.4 (Corollary 4.5 for FedBN) as it would hold with it."""

    spectrum: tuple[float, ...]  # eigenvalues of the matrix, smallest first
    mu: float  # the least of them
    curve: tuple[float, ...]  # `(1 − η μ/2)^t ‖f(0) − y‖²`
    # First t at which joint descent is above the curve; None where it never is.
    violation: int | None
    rounds_violation: int | None  # the same for federated rounds
    width: float  # the width asked for, its unknown constant taken as 1
    width_met: bool  # whether the width of the study is as large
    kernel_holds: bool  # whether `λmin(Λ(t)) ≥ μ/2` at every time looked at


@dataclass(frozen=True)
class Kernels:
    """Least eigenvalues along joint descent, and the formulas against autograd."""

    times: tuple[int, ...]  # the steps looked at
    total: tuple[float, ...]  # λmin of Λ(t)
    magnitude: tuple[float, ...]  # λmin of G(t)
    direction: tuple[float, ...]  # λmin of V(t)/α²
    of_rounds: tuple[float, ...]  # λmin of what federated rounds follow (N·G* in place of G*)
    # Largest difference between formula and autograd, relative to the largest entry, over V, G and
    # the times.
    autograd_error: float


@dataclass(frozen=True)
class OwnStep:
    """A method with the longest step that its own kernel at t = 0 allows, as the theorem has it."""

    eta: float  # `step / λmax` of what it follows
    condition: float  # `λmax / λmin` of the same, which decides its rate in the end
    errors: tuple[float, ...]  # `‖f(t) − y‖²`


@dataclass(frozen=True)
class Branch:
    """One of the two methods."""

    printed: Bound  # the bound with G∞ as the paper defines it
    start: Bound  # the bound with G°, what G(0) tends to
    # `‖f(t) − y‖²` under joint gradient descent, with the step common to all.
    measured: tuple[float, ...]
    rounds: tuple[float, ...]  # the same in federated rounds with E = 1
    own: OwnStep  # joint descent with the method's own step
    own_rounds: OwnStep  # federated rounds with their own step
    kernels: Kernels  # the evolution matrices along joint descent


@dataclass(frozen=True)
class Checks:
    """Claims of the paper on these samples."""

    assumption: bool  # no sample is zero or a multiple of another (Assumption 4.1)
    definite: bool  # G∞ and G*∞ are positive definite (Lemma 4.3)
    start_definite: bool  # G° is
    corollary: bool  # `λmin(G*∞) ≥ λmin(G∞)` (Corollary 4.6)
    start_corollary: bool  # the same for G°
    # Largest distance of sampled G∞ from the closed form, in standard errors.
    monte_carlo_sigmas: float
    start_distance: float  # `‖G(0) − G°‖ / ‖G°‖` at the width of the study
    ratio: float  # `λmin(G∞) / λmin(G°)`; `alpha_squared_dim` where every `S_i = I`
    alpha_squared_dim: float  # `α² d`
    crossover_alpha: float  # the α beyond which G(0) has the larger least eigenvalue than V(0)/α²
    rounds_are_joint: float  # largest relative difference of FedAvg's rounds from joint descent


@dataclass(frozen=True)
class Study:
    """Everything one call of `study` computed."""

    setting: Setting
    fedavg: Branch
    fedbn: Branch
    checks: Checks

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers; a number that is not finite becomes None."""
        return dict(plain(asdict(self)))

    def to_json(self) -> str:
        """The same as a JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)


def study(
    samples: Samples | None = None,
    *,
    width: int = 1024,
    alpha: float = 4.0,
    steps: int = 200,
    step: float = 1.0,
    delta: float = 0.1,
    draws: int = 100_000,
    seed: int = 0,
) -> Study:
    """Gram matrices, bounds, kernels and measured curves of FedAvg and FedBN, from one seed.

    Two methods train jointly and in rounds, from the same network: once with one step for all,
    `η = step / max λmax(Λ(0))` over what they follow, and once each with its own,
    `step / λmax(Λ(0))`, which is what Theorem 4.4 and Corollary 4.5 allow.

    Args:
        samples: The clients' data; `random_clients(seed=seed)` where left out.
        width: m, the number of neurons.
        alpha: α, the deviation of the first layer at the start; the theorem wants it above 1.
        steps: Steps of joint descent, and rounds.
        step: η relative to the longest step that the kernel at t = 0 allows without overshooting.
        delta: The probability with which the theorem may fail.
        draws: Samples of v for the Monte Carlo estimate of G∞.
        seed: Decides the clients (where not given), the network and the draws.

    Examples:
        >>> tiny = random_clients(clients=2, per_client=4, dim=3)
        >>> found = study(tiny, width=64, steps=5, draws=1000)
        >>> found.checks.corollary, len(found.fedbn.measured)
        (True, 6)
    """
    if not 0 < step <= 1 or steps < 1:
        raise ConfigError(f"step={step}, steps={steps}: want step above 0, at most 1, and steps")
    data = random_clients(seed=seed) if samples is None else samples
    check_size(data, width)
    shared = initial_network(data.x.shape[1], width=width, alpha=alpha, seed=seed)
    local = personalise(shared, data.clients)
    first, first_star = (kernels.evolution(net, data, alpha) for net in (shared, local))
    followed = (first.total, first_star.total, first_star.of_rounds(data.clients))
    eta = step / max(float(spectrum(kernel)[-1]) for kernel in followed)
    setting = Setting(
        data.clients, data.x.shape[0], data.x.shape[1], width, alpha, eta, step, steps, delta, seed
    )
    grams = kernels.gram_fedavg(data.x, alpha), kernels.start_gram(data)
    stars = tuple(kernels.block_diagonal(gram, data.client) for gram in grams)
    fedavg = _branch(shared, data, setting, *grams)
    return Study(
        setting=setting,
        fedavg=fedavg,
        fedbn=_branch(local, data, setting, *stars),
        checks=_checks(data, setting, grams, fedavg, first, draws),
    )


def _branch(
    network: Network, data: Samples, setting: Setting, printed: Tensor, start: Tensor
) -> Branch:
    """Train a method in all ways, and look at its kernels at a few times of joint descent."""
    times = sorted({0, *(t for t in (1, 10, 100) if t < setting.steps), setting.steps})
    eta, steps, alpha = setting.eta, setting.steps, setting.alpha
    joint = convergence.descend(network, data, eta=eta, steps=steps, keep=times)
    rounds = convergence.descend(
        network, data, eta=eta, steps=steps, step=convergence.federated_round
    ).errors
    boost = data.clients if network.is_local else 1
    now = [kernels.evolution(net, data, alpha) for net in joint.kept.values()]
    autograd = [kernels.tangent_kernel(net, data, alpha) for net in joint.kept.values()]
    seen = Kernels(
        times=tuple(joint.kept),
        total=tuple(least_eigenvalue(k.total) for k in now),
        magnitude=tuple(least_eigenvalue(k.g) for k in now),
        direction=tuple(least_eigenvalue(k.v) / k.alpha**2 for k in now),
        of_rounds=tuple(least_eigenvalue(k.of_rounds(boost)) for k in now),
        autograd_error=max(
            float((a - b).abs().max() / b.abs().max())
            for found, auto in zip(now, autograd, strict=True)
            for a, b in ((found.v, auto.v), (found.g, auto.g))
        ),
    )

    def own(kernel: Tensor, step: Callable[[Network, Samples, float], Network]) -> OwnStep:
        values = spectrum(kernel)
        eta = setting.step / float(values[-1])
        errors = convergence.descend(network, data, eta=eta, steps=steps, step=step).errors
        return OwnStep(eta, float(values[-1] / values[0]), errors)

    return Branch(
        printed=_bound(setting, printed, joint.errors, rounds, min(seen.total)),
        start=_bound(setting, start, joint.errors, rounds, min(seen.total)),
        measured=joint.errors,
        rounds=rounds,
        own=own(now[0].total, convergence.joint_step),
        own_rounds=own(now[0].of_rounds(boost), convergence.federated_round),
        kernels=seen,
    )


def _bound(setting: Setting, gram: Tensor, measured: Errors, rounds: Errors, least: float) -> Bound:
    values = tuple(spectrum(gram).tolist())
    mu = values[0]
    curve = convergence.bound(measured[0], eta=setting.eta, mu=mu, steps=setting.steps)
    width = convergence.required_width(
        setting.samples, mu=mu, alpha=setting.alpha, delta=setting.delta
    )
    return Bound(
        spectrum=values,
        mu=mu,
        curve=curve,
        violation=convergence.first_violation(measured, curve),
        rounds_violation=convergence.first_violation(rounds, curve),
        width=width,
        width_met=setting.width >= width,
        kernel_holds=least >= mu / 2,
    )


def _checks(
    data: Samples,
    setting: Setting,
    grams: tuple[Tensor, Tensor],
    fedavg: Branch,
    zero: kernels.Evolution,
    draws: int,
) -> Checks:
    printed, start = (convergence.compare(gram, data.client) for gram in grams)
    sampled = kernels.monte_carlo_gram(data.x, setting.alpha, draws=draws, seed=setting.seed)
    sigmas = (sampled.mean - grams[0]).abs() / sampled.error
    least = least_eigenvalue(zero.g)
    pairs = zip(fedavg.rounds, fedavg.measured, strict=True)
    return Checks(
        assumption=convergence.dependence(data.x).assumption_holds,
        definite=printed.definite and printed.definite_star,
        start_definite=start.definite,
        corollary=printed.holds,
        start_corollary=start.holds,
        monte_carlo_sigmas=float(sigmas.nan_to_num().max()),
        start_distance=float((zero.g - grams[1]).norm() / grams[1].norm()),
        ratio=printed.mu / start.mu if start.mu else math.inf,
        alpha_squared_dim=setting.alpha**2 * setting.dim,
        crossover_alpha=(least_eigenvalue(zero.v) / least) ** 0.5 if least else math.inf,
        rounds_are_joint=max(abs(a - b) / b for a, b in pairs),
    )
