"""Penalties: FedProx's term, and that its two forms are one."""

from __future__ import annotations

import pytest
import torch

from fedbn.core.method import Penalty, Proximal, ProximalGradient, proximal
from fedbn.errors import ConfigError


def test_the_value_by_hand():
    # 0.5/2 · ((3−1)² + (1−1)² + (0−2)²) = 0.25 · 8
    current = [torch.tensor([3.0, 1.0]), torch.tensor([[0.0]])]
    anchor = [torch.tensor([1.0, 1.0]), torch.tensor([[2.0]])]
    assert Proximal(0.5).value(current, anchor) == 2


def test_the_gradient_by_hand_is_added_to_what_is_there():
    weight = torch.tensor([3.0, 1.0], requires_grad=True)
    weight.grad = torch.tensor([10.0, 20.0])
    ProximalGradient(0.5, [weight], [torch.tensor([1.0, 1.0])])()
    # 10 + 0.5 · (3 − 1), 20 + 0.5 · 0
    assert weight.grad.tolist() == [11, 20]


def test_autograd_agrees_with_the_direct_gradient():
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    anchor = torch.randn(5, dtype=torch.float64)
    (by_graph,) = torch.autograd.grad(Proximal(0.3).value([weight], [anchor]), weight)
    weight.grad = torch.zeros_like(weight)
    ProximalGradient(0.3, [weight], [anchor])()
    torch.testing.assert_close(weight.grad, by_graph)


def test_an_unused_parameter_is_left_alone():
    weight = torch.ones(1, requires_grad=True)
    ProximalGradient(1.0, [weight], [torch.zeros(1)])()
    assert weight.grad is None


def test_mu_is_a_hundredth_unless_said():
    assert proximal() == Proximal(0.01)
    assert proximal(1).label == "prox(1)"
    assert isinstance(proximal(), Penalty)


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_an_illegal_mu_is_refused(mu: float):
    with pytest.raises(ConfigError, match=r"mu = .* of the proximal term: legal are finite"):
        proximal(mu)
