"""G∞ and G*∞: closed form against numbers worked out by hand, and against sampling."""

from __future__ import annotations

import math

import pytest
import torch

from fedbn.errors import ConfigError
from fedbn.paper.theory.kernels import (
    block_diagonal,
    gram_fedavg,
    gram_fedbn,
    least_eigenvalue,
    monte_carlo_gram,
    spectrum,
)
from fedbn.paper.theory.network import pool, random_clients

PI = math.pi


def rows(*vectors: list[float]) -> torch.Tensor:
    return torch.tensor(vectors, dtype=torch.float64)


@pytest.mark.parametrize(
    ("angle", "kernel"),
    [
        # 2π E σ(a)σ(b) for unit vectors: sin θ + (π − θ) cos θ.
        (0.0, PI),
        (PI / 3, math.sqrt(3) / 2 + PI / 3),
        (PI / 2, 1.0),
        (2 * PI / 3, math.sqrt(3) / 2 - PI / 6),
        (PI, 0.0),
    ],
)
def test_two_unit_vectors(angle: float, kernel: float) -> None:
    x = rows([1.0, 0.0], [math.cos(angle), math.sin(angle)])
    assert gram_fedavg(x)[0, 1].item() == pytest.approx(kernel / (2 * PI), abs=1e-15)


def test_length_and_alpha_come_out_as_factors() -> None:
    # σ(αu·(s x)) = α s σ(u·x) for s > 0.
    x = rows([1.0, 0.0], [0.0, 1.0])
    scaled = gram_fedavg(x * torch.tensor([[2.0], [5.0]]), alpha=3.0)
    assert scaled.tolist() == [
        [pytest.approx(9 * 4 / 2), pytest.approx(9 * 10 / (2 * PI))],
        [pytest.approx(9 * 10 / (2 * PI)), pytest.approx(9 * 25 / 2)],
    ]


def test_least_eigenvalue_of_two_orthogonal_samples() -> None:
    # [[½, 1/2π], [1/2π, ½]] has ½ ± 1/2π; at two clients FedBN keeps ½ twice.
    pair = pool([[[1.0, 0.0]], [[0.0, 1.0]]], [[0.0], [0.0]], center=False)
    assert least_eigenvalue(gram_fedavg(pair.x)) == pytest.approx(0.5 - 1 / (2 * PI))
    assert spectrum(gram_fedbn(pair)).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_sampling_agrees_with_the_closed_form(alpha: float) -> None:
    samples = random_clients(seed=3)
    sampled = monte_carlo_gram(samples.x, alpha, draws=40_000, seed=1)
    distance = (sampled.mean - gram_fedavg(samples.x, alpha)).abs() / sampled.error
    # 666 different entries: the largest of as many normal numbers is near 3.2, 5 is one in 1000.
    assert 1.5 < float(distance.max()) < 5
    assert float((distance < 1).double().mean()) == pytest.approx(0.68, abs=0.15)


def test_the_standard_error_of_one_entry() -> None:
    # σ(v)² for v ~ N(0, 1): mean ½, E σ⁴ = 3/2, so the variance is 3/2 − 1/4 = 5/4.
    sampled = monte_carlo_gram(rows([1.0]), draws=200_000)
    assert sampled.error.item() == pytest.approx(math.sqrt(1.25 / 200_000), rel=0.02)


def test_block_diagonal_is_gram_fedbn() -> None:
    samples = random_clients()
    whole = gram_fedavg(samples.x, 2.0)
    assert torch.equal(gram_fedbn(samples, 2.0), block_diagonal(whole, samples.client))


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_a_wrong_alpha_is_named(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha="):
        gram_fedavg(rows([1.0]), alpha)


def test_wrong_samples_are_named() -> None:
    with pytest.raises(ConfigError, match="client 1 has inputs of shape"):
        pool([[[1.0], [2.0]], [[1.0, 2.0]]], [[0.0, 0.0], [0.0]])
    with pytest.raises(ConfigError, match="inputs of client 0 holds a number that is not finite"):
        pool([[[math.nan]]], [[0.0]])
    with pytest.raises(ConfigError, match="client 0 has only zero inputs"):
        pool([[[1.0, 2.0]]], [[0.0]])
