"""Joint descent and federated rounds: equal for FedAvg, and not for FedBN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from fedbn.errors import ConfigError
from fedbn.paper.theory.convergence import descend, federated_round, joint_step
from fedbn.paper.theory.kernels import evolution, least_eigenvalue, spectrum
from fedbn.paper.theory.network import (
    Network,
    Samples,
    initial_network,
    personalise,
    pool,
    predict,
    random_clients,
)

ALPHA = 2.0
SAMPLES = random_clients(clients=3, per_client=4, dim=5, seed=1)
SHARED = initial_network(5, width=40, alpha=ALPHA, seed=1)
LOCAL = personalise(SHARED, 3)


def velocity(before: Network, after: Network, samples: Samples, eta: float) -> Tensor:
    """`df/dt` along the step that was taken: autograd's derivative of f along it."""

    def outputs(v: Tensor, gamma: Tensor) -> Tensor:
        return predict(replace(before, v=v, gamma=gamma), samples)

    by_v, by_gamma = jacrev(outputs, argnums=(0, 1))(before.v, before.gamma)
    along_v = torch.tensordot(by_v, (after.v - before.v) / eta, dims=2)
    along_gamma = torch.tensordot(by_gamma, (after.gamma - before.gamma) / eta, dims=2)
    total: Tensor = along_v + along_gamma
    return total


@pytest.mark.parametrize("network", [SHARED, LOCAL], ids=["fedavg", "fedbn"])
def test_joint_descent_follows_lambda(network: Network) -> None:
    residual = predict(network, SAMPLES) - SAMPLES.y
    moved = velocity(network, joint_step(network, SAMPLES, 0.1), SAMPLES, 0.1)
    total = evolution(network, SAMPLES, ALPHA).total
    assert torch.allclose(moved, -total @ residual, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("network", "boost"), [(SHARED, 1), (LOCAL, 3)], ids=["fedavg", "fedbn"])
def test_rounds_follow_n_times_g_for_fedbn(network: Network, boost: int) -> None:
    residual = predict(network, SAMPLES) - SAMPLES.y
    moved = velocity(network, federated_round(network, SAMPLES, 0.1), SAMPLES, 0.1)
    kernel = evolution(network, SAMPLES, ALPHA).of_rounds(boost)
    assert torch.allclose(moved, -kernel @ residual, rtol=1e-11, atol=1e-12)


def test_fedavg_in_rounds_is_joint_descent() -> None:
    joint = descend(SHARED, SAMPLES, eta=0.1, steps=20)
    rounds = descend(SHARED, SAMPLES, eta=0.1, steps=20, step=federated_round)
    assert rounds.errors == pytest.approx(joint.errors, rel=1e-11)


def test_a_local_scale_steps_n_times_as_far() -> None:
    joint, fed = joint_step(LOCAL, SAMPLES, 0.1), federated_round(LOCAL, SAMPLES, 0.1)
    assert torch.allclose(fed.v, joint.v, rtol=1e-12, atol=1e-14)
    assert torch.allclose(fed.gamma - LOCAL.gamma, 3 * (joint.gamma - LOCAL.gamma), rtol=1e-11)


def test_one_client_alone_knows_no_difference() -> None:
    alone = random_clients(clients=1, per_client=6, dim=5)
    joint, fed = joint_step(SHARED, alone, 0.1), federated_round(SHARED, alone, 0.1)
    assert torch.equal(joint.v, fed.v)
    assert torch.equal(joint.gamma, fed.gamma)


@pytest.mark.parametrize("seed", range(5))
def test_in_rounds_fedbn_is_ahead_in_every_direction(seed: int) -> None:
    # |Σ_i a_i|² ≤ N Σ_i |a_i|² makes N·blocks(G) − G positive semi-definite, and V*(0) = V(0).
    samples = random_clients(seed=seed)
    shared = initial_network(8, width=100, alpha=1.1, seed=seed)
    fedavg = evolution(shared, samples, 1.1).total
    fedbn = evolution(personalise(shared, 3), samples, 1.1).of_rounds(3)
    assert least_eigenvalue(fedbn - fedavg) > -1e-12


def plane(alpha: float) -> tuple[Network, Samples]:
    """Two orthogonal samples, one a client, S = I, and neurons evenly around the circle."""
    angle = (torch.arange(2000, dtype=torch.float64) + 0.5) * (2 * math.pi / 2000)
    v = alpha * torch.stack([angle.cos(), angle.sin()], dim=1)
    gamma = torch.ones(2000, 1, dtype=torch.float64)
    samples = pool(
        [[[1.0, 0.0]], [[0.0, 1.0]]], [[0.0]] * 2, center=False, moments=[torch.eye(2)] * 2
    )
    return Network(v, gamma, gamma[:, 0]), samples


@pytest.mark.parametrize("alpha", [1.2, 2.0])
def test_joint_descent_can_prefer_fedavg(alpha: float) -> None:
    # With a = 1/α²: V_pp = a/4, V_12 = −a/4π (a quarter circle of −cos·sin), G_pp = ¼, G_12 = 1/4π.
    # λmin(Λ) = (1 + a)/4 − |1 − a|/4π and λmin(Λ*) = (1 + a)/4 − a/4π: FedBN is ahead iff α² > 2.
    network, samples = plane(alpha)
    a = 1 / alpha**2
    fedavg = least_eigenvalue(evolution(network, samples, alpha).total)
    fedbn = least_eigenvalue(evolution(personalise(network, 2), samples, alpha).total)
    assert fedavg == pytest.approx((1 + a) / 4 - (1 - a) / (4 * math.pi), abs=1e-6)
    assert fedbn == pytest.approx((1 + a) / 4 - a / (4 * math.pi), abs=1e-6)
    assert (fedbn > fedavg) == (alpha**2 > 2)


def test_in_rounds_with_own_steps_fedbn_can_be_behind_by_its_condition_number() -> None:
    # λmax/λmin of the same two matrices, with 2 G* in the place of G*: (s + o)/(s − o) of each.
    network, samples = plane(1.2)
    followed = (
        evolution(network, samples, 1.2).total,
        evolution(personalise(network, 2), samples, 1.2).of_rounds(2),
    )
    fedavg, fedbn = (float(spectrum(one)[-1] / spectrum(one)[0]) for one in followed)
    a = 1 / 1.2**2
    straight, off = (1 + a) / 4, (1 - a) / (4 * math.pi)
    assert fedavg == pytest.approx((straight + off) / (straight - off), abs=1e-5)
    straight, off = (2 + a) / 4, a / (4 * math.pi)
    assert fedbn == pytest.approx((straight + off) / (straight - off), abs=1e-5)
    assert (round(fedavg, 2), round(fedbn, 2)) == (1.12, 1.18)


def test_networks_are_kept_when_asked() -> None:
    course = descend(SHARED, SAMPLES, eta=0.1, steps=4, keep=(0, 4))
    assert sorted(course.kept) == [0, 4]
    assert course.kept[0] is SHARED
    assert course.errors[4] == pytest.approx(
        float((predict(course.kept[4], SAMPLES) - SAMPLES.y).square().sum())
    )


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match="eta=0"):
        descend(SHARED, SAMPLES, eta=0, steps=1)
    with pytest.raises(ConfigError, match="width=0"):
        initial_network(2, width=0, alpha=1.0)
    with pytest.raises(ConfigError, match="already has 3 columns"):
        personalise(LOCAL, 3)
