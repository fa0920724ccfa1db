"""Batches lie in memory as the model's convolutions take them fastest; the numbers stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedbn.fast import channels_last, fastest
from fedbn.models.networks import alexnet, digit_cnn, small_cnn

IMAGES = torch.zeros(2, 3, 16, 16)


class Residual(nn.Module):
    """Operations between the modules: in-place addition, functions, flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        y = self.norm(self.b(x))
        y += x
        return self.head(torch.flatten(self.pool(torch.relu(y)), 1))


class Views(Residual):
    """An operation that takes only the usual layout."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.a(x)).view(len(x), -1)[:, :8])


@pytest.mark.parametrize(
    "model", [digit_cnn(10, (3, 64, 64)), alexnet(10, (3, 64, 64)), Residual()]
)
def test_channels_last_where_a_step_can_be_taken_that_way(model: nn.Module) -> None:
    assert fastest(model, torch.zeros(2, 3, 64, 64)) is channels_last


def test_as_usual_where_the_model_takes_nothing_else() -> None:
    assert fastest(Views(), IMAGES) is Tensor.contiguous
    assert fastest(nn.Linear(3, 2), torch.zeros(2, 3)) is Tensor.contiguous
    assert fastest(small_cnn(10, (3, 16, 16)).double(), IMAGES.double()) is Tensor.contiguous


def test_choosing_changes_neither_the_model_nor_torchs_generator() -> None:
    model = small_cnn(10, (3, 16, 16))
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    fastest(model, IMAGES)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
