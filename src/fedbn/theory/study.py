"""One call that computes the paper's theory on one set of clients and trains both networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbn.errors import ConfigError
from fedbn.theory.bounds import bound, first_violation, required_width
from fedbn.theory.checks import compare, dependence
from fedbn.theory.descent import Course, descend, federated_round
from fedbn.theory.evolution import Evolution, evolution, tangent_kernel
from fedbn.theory.gram import (
    block_diagonal,
    gram_fedavg,
    least_eigenvalue,
    monte_carlo_gram,
    spectrum,
)
from fedbn.theory.limit import start_gram
from fedbn.theory.network import Network, initial_network, personalise
from fedbn.theory.report import Bound, Branch, Checks, Kernels, Setting, Study
from fedbn.theory.synthetic import random_clients

if TYPE_CHECKING:
    from torch import Tensor

    from fedbn.theory.samples import Samples


@dataclass(frozen=True)
class _Runs:
    """One method's two trainings and its kernels at a few times of the joint one."""

    joint: Course
    rounds: Course
    kernels: dict[int, Evolution]
    autograd: dict[int, Evolution]
    boost: int


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

    All four trainings (two methods, joint and in rounds) start from the same network and use the
    same `η = step / max λmax(Λ(0))`, the maximum over what they follow.

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
    if not step > 0 or steps < 1:
        raise ConfigError(f"step={step}, steps={steps}: want step above 0 and at least 1 step")
    data = random_clients(seed=seed) if samples is None else samples
    shared = initial_network(data.x.shape[1], width=width, alpha=alpha, seed=seed)
    local = personalise(shared, data.clients)
    first, first_star = evolution(shared, data, alpha), evolution(local, data, alpha)
    followed = (first.total, first_star.total, first_star.of_rounds(data.clients))
    eta = step / max(float(spectrum(kernel)[-1]) for kernel in followed)
    setting = Setting(
        data.clients, data.x.shape[0], data.x.shape[1], width, alpha, eta, steps, delta, seed
    )
    grams = gram_fedavg(data.x, alpha), start_gram(data)
    stars = tuple(block_diagonal(gram, data.client) for gram in grams)
    runs = _train(shared, data, setting), _train(local, data, setting)
    return Study(
        setting=setting,
        fedavg=_branch(setting, grams[0], grams[1], runs[0]),
        fedbn=_branch(setting, stars[0], stars[1], runs[1]),
        checks=_checks(data, setting, grams, runs[0], draws),
    )


def _train(network: Network, data: Samples, setting: Setting) -> _Runs:
    times = sorted({0, *(t for t in (1, 10, 100) if t < setting.steps), setting.steps})
    eta, steps, alpha = setting.eta, setting.steps, setting.alpha
    joint = descend(network, data, eta=eta, steps=steps, keep=times)
    return _Runs(
        joint=joint,
        rounds=descend(network, data, eta=eta, steps=steps, step=federated_round),
        kernels={t: evolution(net, data, alpha) for t, net in joint.kept.items()},
        autograd={t: tangent_kernel(net, data, alpha) for t, net in joint.kept.items()},
        boost=data.clients if network.is_local else 1,
    )


def _branch(setting: Setting, printed: Tensor, start: Tensor, runs: _Runs) -> Branch:
    now = list(runs.kernels.values())
    kernels = Kernels(
        times=tuple(runs.kernels),
        total=tuple(least_eigenvalue(k.total) for k in now),
        magnitude=tuple(least_eigenvalue(k.g) for k in now),
        direction=tuple(least_eigenvalue(k.v) / k.alpha**2 for k in now),
        of_rounds=tuple(least_eigenvalue(k.of_rounds(runs.boost)) for k in now),
        autograd_error=max(_difference(k, runs.autograd[t]) for t, k in runs.kernels.items()),
    )
    return Branch(
        printed=_bound(setting, printed, runs, min(kernels.total)),
        start=_bound(setting, start, runs, min(kernels.total)),
        measured=runs.joint.errors,
        rounds=runs.rounds.errors,
        kernels=kernels,
    )


def _bound(setting: Setting, gram: Tensor, runs: _Runs, least: float) -> Bound:
    values = tuple(spectrum(gram).tolist())
    measured, rounds, mu = runs.joint.errors, runs.rounds.errors, values[0]
    curve = bound(measured[0], eta=setting.eta, mu=mu, steps=setting.steps)
    width = required_width(setting.samples, mu=mu, alpha=setting.alpha, delta=setting.delta)
    return Bound(
        spectrum=values,
        mu=mu,
        curve=curve,
        violation=first_violation(measured, curve),
        rounds_violation=first_violation(rounds, curve),
        width=width,
        width_met=setting.width >= width,
        kernel_holds=least >= mu / 2,
    )


def _checks(
    data: Samples, setting: Setting, grams: tuple[Tensor, Tensor], runs: _Runs, draws: int
) -> Checks:
    printed, start = (compare(gram, data.client) for gram in grams)
    sampled = monte_carlo_gram(data.x, setting.alpha, draws=draws, seed=setting.seed)
    zero = runs.kernels[0]
    pairs = zip(runs.rounds.errors, runs.joint.errors, strict=True)
    return Checks(
        assumption=dependence(data.x).assumption_holds,
        definite=printed.definite and printed.definite_star,
        corollary=printed.holds,
        start_corollary=start.holds,
        monte_carlo_sigmas=float(
            ((sampled.mean - grams[0]).abs() / sampled.error).nan_to_num().max()
        ),
        start_distance=float((zero.g - grams[1]).norm() / grams[1].norm()),
        ratio=printed.mu / start.mu,
        alpha_squared_dim=setting.alpha**2 * setting.dim,
        crossover_alpha=(least_eigenvalue(zero.v) / least_eigenvalue(zero.g)) ** 0.5,
        rounds_are_joint=max(abs(a - b) / b for a, b in pairs),
    )


def _difference(left: Evolution, right: Evolution) -> float:
    pairs = ((left.v, right.v), (left.g, right.g))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
