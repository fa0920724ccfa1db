"""What G(0) tends to, and how that relates to G∞."""

from __future__ import annotations

import pytest
import torch

from fedbn.paper.theory.convergence import compare
from fedbn.paper.theory.kernels import (
    block_diagonal,
    gram_fedavg,
    jacobians,
    least_eigenvalue,
    start_gram,
)
from fedbn.paper.theory.network import initial_network, pool, random_clients


@pytest.mark.parametrize("dim", [2, 5, 20])
def test_with_identity_moments_it_is_g_infinity_over_alpha_squared_d(dim: int) -> None:
    # ‖v‖ is independent of v/‖v‖ and E‖v‖² = α²d, so E σσ = α²d · E σσ/‖v‖².
    drawn = random_clients(clients=2, per_client=4, dim=dim)
    unit = pool(
        [drawn.only(i).x for i in range(2)], [torch.zeros(4)] * 2, moments=[torch.eye(dim)] * 2
    )
    expected = gram_fedavg(unit.x, alpha=3.0) / (9 * dim)
    assert torch.allclose(start_gram(unit), expected, rtol=1e-11, atol=1e-14)


def test_one_dimension_by_hand() -> None:
    # v/|v| = ±1: half the neurons see the positive samples, with x/√S; S = (1+9)/2 = 5 and 4.
    two = pool([[[1.0], [3.0]], [[2.0], [-2.0]]], [[0.0, 0.0]] * 2, center=False)
    a, b, c = 1 / 5**0.5, 3 / 5**0.5, 1.0
    half = torch.tensor([[a], [b], [c], [0.0]], dtype=torch.float64)
    expected = half @ half.T / 2
    expected[3, 3] = 0.5
    assert torch.allclose(start_gram(two), expected, rtol=1e-9, atol=1e-12)


def test_wide_networks_tend_to_it() -> None:
    samples = random_clients(clients=2, per_client=6, dim=4, shift=2.0, seed=5)
    gamma = jacobians(initial_network(4, width=50_000, alpha=3.0), samples).gamma
    products = torch.einsum("pk,qk->pqk", gamma, gamma) * gamma.shape[1]
    error = products.std(dim=2) / gamma.shape[1] ** 0.5
    distance = (products.mean(dim=2) - start_gram(samples)).abs() / error.clamp_min(1e-12)
    assert float(distance.max()) < 4.5


def test_more_angles_change_nothing() -> None:
    samples = random_clients(seed=1)
    assert torch.allclose(start_gram(samples), start_gram(samples, angles=96), rtol=1e-12)


def test_a_client_may_change_its_unit_of_length() -> None:
    # x → 7x makes ‖v‖_S seven times as large too: BatchNorm does not see the unit, G∞ does.
    first = random_clients(clients=2, seed=2)
    parts = [first.only(0).x, 7 * first.only(1).x]
    second = pool(parts, [torch.zeros(12)] * 2)
    assert torch.allclose(start_gram(first), start_gram(second), rtol=1e-9)
    assert gram_fedavg(second.x)[-1, -1] == pytest.approx(49 * gram_fedavg(first.x)[-1, -1].item())


def test_within_a_client_it_lies_between_two_multiples_of_g_infinity() -> None:
    # λmin(S)‖v‖² ≤ ‖v‖_S² ≤ λmax(S)‖v‖² inside E (Σ a_p σ(vᵀx_p))² / ‖v‖_S².
    samples = random_clients(seed=6)
    start, printed = start_gram(samples), gram_fedavg(samples.x, 2.0) / (4 * 8)
    for i in range(samples.clients):
        own = samples.client == i
        low, *_, high = torch.linalg.eigvalsh(samples.moments[i]).tolist()
        mine, theirs = start[own][:, own], printed[own][:, own]
        assert least_eigenvalue(mine - theirs / high) > 0
        assert least_eigenvalue(theirs / low - mine) > 0


def test_corollary_holds_for_it_as_well() -> None:
    samples = random_clients(seed=7)
    result = compare(start_gram(samples), samples.client)
    assert result.definite
    assert result.mu_star > result.mu


def test_own_second_moment_makes_the_blocks_trace_half_of_m() -> None:
    # Σ_p (vᵀx_p)² / ‖v‖_S² = M whatever v is, and by symmetry of v half of it passes the ReLU.
    samples = random_clients(seed=8)
    trace = float(block_diagonal(start_gram(samples), samples.client).trace())
    assert trace == pytest.approx(samples.x.shape[0] / 2, rel=1e-9)
