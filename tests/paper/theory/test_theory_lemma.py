"""Lemma 4.3 and Corollary 4.6 on random and real clients, and where the assumption fails."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedbn.paper.theory.convergence import compare, dependence
from fedbn.paper.theory.kernels import gram_fedavg, least_eigenvalue, start_gram
from fedbn.paper.theory.network import Samples, pool, random_clients


def rows(*vectors: list[float]) -> Tensor:
    return torch.tensor(vectors, dtype=torch.float64)


def null_value(x: Tensor, weights: list[float]) -> float:
    """`wᵀ G∞ w`, which is the mean square of `Σ w_p σ(vᵀx_p)`."""
    w = torch.tensor(weights, dtype=torch.float64)
    return float(w @ gram_fedavg(x) @ w)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_random_clients(seed: int, shift: float) -> None:
    samples = random_clients(clients=4, per_client=9, dim=6, shift=shift, seed=seed)
    result = compare(gram_fedavg(samples.x, 2.0), samples.client)
    assert result.definite
    assert result.mu_star == pytest.approx(min(result.blocks))
    assert result.mu_star >= result.mu > 0


def real_clients() -> Samples:
    """Handwritten digits at three sites: as they are, inverted, and turned."""
    images = load_digits().images / 16
    parts = images[:30], 1 - images[30:60], np.rot90(images[60:90], axes=(1, 2))
    labels = load_digits().target / 9
    tables = [np.ascontiguousarray(part).reshape(30, 64) for part in parts]
    return pool(tables, [labels[:30], labels[30:60], labels[60:90]])


def test_real_clients() -> None:
    samples = real_clients()
    assert dependence(samples.x).assumption_holds
    for gram in (gram_fedavg(samples.x, 2.0), start_gram(samples, angles=8)):
        result = compare(gram, samples.client)
        assert result.definite
        assert result.mu_star > result.mu > 0


def test_the_papers_own_digits() -> None:
    if "FEDBN_DATA" not in os.environ:
        pytest.skip("set FEDBN_DATA to the folder with digits/*.npz")
    tables, labels = [], []
    for name in ("mnist", "usps", "svhn", "mnist_m"):
        with np.load(Path(os.environ["FEDBN_DATA"]) / "digits" / f"{name}.npz") as file:
            images = torch.tensor(file["train_images"][:25], dtype=torch.float64) / 255
            labels.append(file["train_labels"][:25] / 9)
        grey = images.mean(dim=-1) if images.ndim == 4 else images
        tables.append(torch.nn.functional.adaptive_avg_pool2d(grey, 8).flatten(1))
    samples = pool(tables, labels)
    result = compare(gram_fedavg(samples.x, 2.0), samples.client)
    assert result.definite
    assert result.mu_star > result.mu > 0


def test_same_direction_makes_it_singular() -> None:
    # σ(vᵀ2x) = 2σ(vᵀx), so weights (2, −1) give zero.
    x = rows([1.0, 2.0], [2.0, 4.0], [0.0, 1.0])
    assert dependence(x).same == ((0, 1),)
    assert dependence(x).singular
    assert null_value(x, [2, -1, 0]) == pytest.approx(0, abs=1e-14)
    assert least_eigenvalue(gram_fedavg(x)) == pytest.approx(0, abs=1e-14)


def test_same_direction_at_two_clients_makes_the_printed_matrix_singular() -> None:
    gram = gram_fedavg(rows([1.0, 2.0], [2.0, 4.0]))
    apart = compare(gram, torch.tensor([0, 1]))
    assert (apart.definite, apart.definite_star) == (False, True)
    assert apart.mu_star == pytest.approx(5 / 2)  # ½‖(1, 2)‖², the smaller of the two
    together = compare(gram, torch.tensor([0, 0]))
    assert (together.definite, together.definite_star) == (False, False)


def test_same_direction_at_two_clients_leaves_the_real_kernel_definite() -> None:
    """σ(vᵀx)/‖v‖_S and σ(vᵀx)/‖v‖_S' are no multiples of each other where S and S' are none."""
    clients = [random_clients(clients=1, per_client=6, dim=3, seed=seed).x for seed in (1, 2)]
    clients[1] = torch.cat([2 * clients[0][:1], clients[1]])
    samples = pool(clients, [torch.zeros(len(x)) for x in clients], center=False)
    printed, real = (
        compare(g, samples.client) for g in (gram_fedavg(samples.x), start_gram(samples))
    )
    assert (printed.definite, printed.definite_star) == (False, True)
    assert real.definite
    assert real.mu > 1e-6 > 1e-12 > abs(printed.mu)
    alike = pool(clients, [torch.zeros(len(x)) for x in clients], center=False,
                 moments=[torch.eye(3), 4 * torch.eye(3)])  # fmt: skip
    assert not compare(start_gram(alike), alike.client).definite  # S' = 4 S: multiples again


def test_one_opposite_pair_does_no_harm() -> None:
    # σ(s) and σ(−s) are never both positive: the entry is 0 and the matrix diagonal.
    x = rows([1.0, 2.0], [-2.0, -4.0])
    assert dependence(x).opposite == ((0, 1),)
    assert not dependence(x).assumption_holds
    assert not dependence(x).singular
    assert gram_fedavg(x).flatten().tolist() == pytest.approx([2.5, 0, 0, 10], abs=1e-14)


def test_opposite_pairs_on_dependent_lines_are_singular() -> None:
    # σ(s) − σ(−s) = s turns each pair into the line vᵀx, and (1,0) + (0,1) − (1,1) = 0.
    lines = rows([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    x = torch.cat([lines, -lines])
    assert not dependence(x[[0, 1, 3, 4]]).singular
    assert least_eigenvalue(gram_fedavg(x[[0, 1, 3, 4]])) > 0.1
    assert dependence(x).singular
    assert not dependence(x).same
    assert null_value(x, [1, 1, -1, -1, -1, 1]) == pytest.approx(0, abs=1e-14)


def test_a_zero_sample_passes_the_printed_assumption_but_is_singular() -> None:
    # No κ ≠ 0 makes (0, 0) = κ (1, 2), yet σ(vᵀ0) = 0 is a zero row.
    x = rows([0.0, 0.0], [1.0, 2.0])
    found = dependence(x)
    assert (found.zeros, found.same, found.opposite) == ((0,), (), ())
    assert found.singular
    assert least_eigenvalue(gram_fedavg(x)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_verdict_agrees_with_the_eigenvalues(seed: int) -> None:
    x = random_clients(clients=1, per_client=6, dim=3, seed=seed).x
    for extra in (x[:0], 0.5 * x[:1], -x[:1], -x[:3], -x[:4]):
        both = torch.cat([x, extra])
        gram = gram_fedavg(both)
        singular = least_eigenvalue(gram) < 1e-12 * float(gram.norm())
        assert dependence(both).singular == singular


def test_pinching_keeps_the_trace_and_narrows_the_spectrum() -> None:
    samples = random_clients(seed=4)
    gram = gram_fedavg(samples.x)
    same = samples.client[:, None] == samples.client[None, :]
    whole, blocks = torch.linalg.eigvalsh(gram), torch.linalg.eigvalsh(gram * same)
    assert float(whole.sum()) == pytest.approx(float(blocks.sum()))
    assert blocks[0] > whole[0]
    assert blocks[-1] < whole[-1]
