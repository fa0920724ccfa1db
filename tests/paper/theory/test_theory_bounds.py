"""The bounds, the width they ask for, and that the printed theorem cannot hold for large α."""

from __future__ import annotations

import math

import pytest

from fedbn.errors import ConfigError
from fedbn.paper.theory.convergence import bound, compare, first_violation, required_width
from fedbn.paper.theory.kernels import evolution, gram_fedavg, least_eigenvalue, start_gram
from fedbn.paper.theory.network import initial_network, personalise, random_clients


def test_bound_by_hand() -> None:
    # 1 − 0.2 · 5/2 = ½.
    assert bound(16.0, eta=0.2, mu=5.0, steps=4) == pytest.approx((16, 8, 4, 2, 1))


def test_a_step_too_long_promises_a_perfect_fit() -> None:
    assert bound(16.0, eta=1.0, mu=5.0, steps=2) == (16, 0, 0)


def test_first_violation() -> None:
    assert first_violation([4.0, 2.0, 1.0], [4.0, 2.0, 1.0]) is None
    assert first_violation([4.0, 2.0, 1.1], [4.0, 2.0, 1.0]) == 2


@pytest.mark.parametrize(
    ("mu", "alpha", "width"),
    [
        (1.0, 1.0, 20**4 * math.log(200)),  # n⁴ log(n/δ): the first term
        (10.0, 10.0, 20**2 * math.log(200) / 100),  # n⁴/10⁸ < n²/10²: the second
        (0.0, 2.0, math.inf),
    ],
)
def test_required_width(mu: float, alpha: float, width: float) -> None:
    assert required_width(20, mu=mu, alpha=alpha, delta=0.1) == pytest.approx(width)


def test_a_wrong_delta_is_named() -> None:
    with pytest.raises(ConfigError, match="delta=1"):
        required_width(20, mu=1.0, alpha=2.0, delta=1)


def test_the_printed_theorem_fails_where_its_width_is_met() -> None:
    # μ0 grows as α², Λ(0) = V(0)/α² + G(0) does not grow at all, and the width asked for shrinks:
    # at α = 20 570 neurons are enough, and λmin(Λ(0)) ≥ μ0/2 is wrong a thousandfold.
    samples, alpha, width = random_clients(), 20.0, 1024
    result = compare(gram_fedavg(samples.x, alpha), samples.client)
    network = initial_network(8, width=width, alpha=alpha)
    assert width > required_width(36, mu=result.mu, alpha=alpha)
    fedavg = evolution(network, samples, alpha).total
    assert least_eigenvalue(fedavg) < result.mu / 2 / 500
    fedbn = evolution(personalise(network, 3), samples, alpha).total
    assert least_eigenvalue(fedbn) < result.mu_star / 2 / 500
    # λmin ≤ trace/n, and trace G(0) = Σ_p σ²/‖v‖_S² ≤ n: not even the mean eigenvalue gets there.
    assert float(fedavg.trace()) / 36 < result.mu / 2


def test_with_the_normalised_matrix_the_claim_is_true_and_the_width_out_of_reach() -> None:
    samples, alpha = random_clients(), 20.0
    result = compare(start_gram(samples), samples.client)
    network = initial_network(8, width=512, alpha=alpha)
    assert least_eigenvalue(evolution(network, samples, alpha).total) > result.mu / 2
    assert required_width(36, mu=result.mu, alpha=alpha) > 1e8
