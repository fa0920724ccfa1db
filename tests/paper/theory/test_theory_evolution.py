"""V(t), G(t) and Λ(t): the appendix's formulas against automatic differentiation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbn.paper.theory.convergence import joint_step
from fedbn.paper.theory.kernels import evolution, jacobians, least_eigenvalue, tangent_kernel
from fedbn.paper.theory.network import (
    Network,
    Samples,
    initial_network,
    loss,
    personalise,
    pool,
    predict,
    random_clients,
)

ALPHA = 2.0


def trained(*, local: bool, steps: int = 3) -> tuple[Network, Samples]:
    """A network a few steps away from its start, so that no two γ are equal any more."""
    samples = random_clients(clients=3, per_client=4, dim=5, seed=1)
    network = initial_network(5, width=40, alpha=ALPHA, seed=1)
    network = personalise(network, 3) if local else network
    for _ in range(steps):
        network = joint_step(network, samples, 0.1)
    return network, samples


def printed_kernels(network: Network, samples: Samples) -> tuple[Tensor, Tensor]:
    """V(t) and G(t) letter by letter from the paper: loops, `1{vᵀx ≥ 0}` and `σ(vᵀx)`."""
    v, c, x = network.v.numpy(), network.c.numpy(), samples.x.numpy()
    owner, size, width = samples.client.numpy(), len(samples.y), network.width
    gamma = network.gamma.expand(-1, samples.clients).numpy()
    big_v, big_g = np.zeros((size, size)), np.zeros((size, size))
    for k in range(width):
        tangent, norm = np.zeros_like(x), np.zeros(size)
        for p in range(size):
            s = samples.moments[owner[p]].numpy()
            norm[p] = math.sqrt(v[k] @ s @ v[k])
            projector = np.eye(x.shape[1]) - s @ np.outer(v[k], v[k]) / norm[p] ** 2
            tangent[p] = projector @ x[p] * (v[k] @ x[p] >= 0)
        outer = np.outer(1 / norm, 1 / norm) / width
        own = gamma[k, owner]
        big_v += (ALPHA * c[k]) ** 2 * np.outer(own, own) * outer * (tangent @ tangent.T)
        hidden = np.maximum(x @ v[k], 0)
        big_g += c[k] ** 2 * outer * np.outer(hidden, hidden)
    if network.is_local:
        big_g *= owner[:, None] == owner[None, :]
    return torch.from_numpy(big_v), torch.from_numpy(big_g)


@pytest.mark.parametrize("local", [False, True], ids=["fedavg", "fedbn"])
def test_formulas_are_autograd(local: bool) -> None:
    network, samples = trained(local=local)
    formula, auto = evolution(network, samples, ALPHA), tangent_kernel(network, samples, ALPHA)
    assert torch.allclose(formula.v, auto.v, rtol=1e-12, atol=1e-13)
    assert torch.allclose(formula.g, auto.g, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("local", [False, True], ids=["fedavg", "fedbn"])
def test_the_printed_formulas_agree_while_every_scale_is_positive(local: bool) -> None:
    network, samples = trained(local=local)
    assert bool((network.gamma > 0).all())
    auto = tangent_kernel(network, samples, ALPHA)
    v, g = printed_kernels(network, samples)
    assert torch.allclose(v, auto.v, rtol=1e-12, atol=1e-13)
    assert torch.allclose(g, auto.g, rtol=1e-12, atol=1e-13)


def test_the_printed_formulas_fail_for_a_negative_scale() -> None:
    # v = 1, γ = −1, x = ±2, S = 4: vᵀx/‖v‖_S = ±1, and σ(−(±1)) fires on the negative sample.
    # There ∂f/∂γ = −1, so G = 1 on that sample; the paper's σ(vᵀx) puts it on the other one.
    samples = pool([[[2.0], [-2.0]]], [[0.0, 0.0]])
    network = Network(*(torch.tensor(p, dtype=torch.float64) for p in ([[1]], [[-1]], [1])))
    assert predict(network, samples).tolist() == [0, 1]
    assert tangent_kernel(network, samples, ALPHA).g.tolist() == [[0, 0], [0, 1]]
    assert evolution(network, samples, ALPHA).g.tolist() == [[0, 0], [0, 1]]
    assert printed_kernels(network, samples)[1].tolist() == [[1, 0], [0, 0]]


def test_formulas_hold_for_negative_scales_too() -> None:
    network, samples = trained(local=True)
    flipped = replace(network, gamma=network.gamma * network.c[:, None])
    formula, auto = evolution(flipped, samples, ALPHA), tangent_kernel(flipped, samples, ALPHA)
    assert torch.allclose(formula.total, auto.total, rtol=1e-12, atol=1e-13)


def test_the_projection_by_hand() -> None:
    # S = diag(1, 4), v = (1, 1): ‖v‖_S² = 5, Svvᵀ = [[1, 1], [4, 4]]. For x = (1, 0):
    # x⊥ = (1, 0) − (1, 4)/5 = (0.8, −0.8), orthogonal to v itself, and not to Sv.
    samples = pool([[[1.0, 0.0]]], [[0.0]], center=False, moments=[[[1.0, 0.0], [0.0, 4.0]]])
    network = Network(*(torch.tensor(p, dtype=torch.float64) for p in ([[1, 1]], [[1]], [1])))
    gradient = jacobians(network, samples).v[0, 0] * 5**0.5
    assert gradient.tolist() == pytest.approx([0.8, -0.8])


def test_first_layer_gradients_are_orthogonal_to_it() -> None:
    # f does not change with the length of v, so no gradient points along v.
    network, samples = trained(local=False)
    along = torch.einsum("pkd,kd->pk", jacobians(network, samples).v, network.v)
    assert float(along.abs().max()) < 1e-13


def test_equation_3_is_another_loss_than_the_appendix_has() -> None:
    # ∇ (1/NM)‖f − y‖² = (2/NM) Jᵀ(f − y); the appendix writes Jᵀ(f − y), that of ½‖f − y‖².
    network, samples = trained(local=False)
    residual = predict(network, samples) - samples.y
    appendix = jacobians(network, samples).gamma.T @ residual
    gamma = network.gamma.clone().requires_grad_()
    ours = loss(replace(network, gamma=gamma), samples)
    equation_3 = (predict(replace(network, gamma=gamma), samples) - samples.y).square().mean()
    (of_ours,) = torch.autograd.grad(ours, gamma)
    (of_equation_3,) = torch.autograd.grad(equation_3, gamma)
    assert torch.allclose(of_ours[:, 0], appendix, rtol=1e-12)
    assert torch.allclose(of_equation_3[:, 0], appendix * 2 / 12, rtol=1e-12)


def test_at_the_start_alpha_moves_only_the_weight_of_v() -> None:
    # γ/‖v‖_S = (‖v‖/‖v‖_S)/α: V(0) and G(0) see the direction of v alone, so Λ(0) = V/α² + G.
    samples = random_clients(seed=2)
    one, ten = (
        evolution(initial_network(8, width=100, alpha=alpha, seed=2), samples, alpha)
        for alpha in (1.0, 10.0)
    )
    assert torch.allclose(one.v, ten.v, rtol=1e-11)
    assert torch.allclose(one.g, ten.g, rtol=1e-11)
    assert torch.allclose(ten.total, one.v / 100 + one.g, rtol=1e-11)


def test_fedavg_and_fedbn_start_equal_but_for_the_cross_blocks_of_g() -> None:
    samples = random_clients(seed=3)
    shared = initial_network(8, width=200, alpha=ALPHA)
    local = personalise(shared, 3)
    assert torch.equal(predict(shared, samples), predict(local, samples))
    first, star = evolution(shared, samples, ALPHA), evolution(local, samples, ALPHA)
    same = samples.client[:, None] == samples.client[None, :]
    assert torch.equal(first.v, star.v)
    assert torch.equal(first.g * same, star.g)
    assert least_eigenvalue(star.g) >= least_eigenvalue(first.g)
