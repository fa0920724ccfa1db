"""Batches lie in memory as the model's convolutions take them fastest; the numbers stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedbn.fast.memory_formats import as_usual, blocked, channels_last, fastest, prepare
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


class Means(Residual):
    """An operation that does not know blocks."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.a(x)).mean((2, 3)))


class Views(Residual):
    """An operation that takes only the usual layout."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.a(x)).view(len(x), -1)[:, :8])


def between(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *layers,
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Flatten(),
        nn.LazyLinear(4),
    )


@pytest.mark.parametrize(
    "model",
    [
        digit_cnn(10, (3, 16, 16)),
        small_cnn(10, (3, 16, 16)),
        Residual(),
        between(nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.MaxPool2d(2)),
    ],
)
def test_blocks_where_all_convolutions_can_hand_them_on(model: nn.Module) -> None:
    model(torch.rand(4, 3, 16, 16))
    assert fastest(model, IMAGES) is blocked


@pytest.mark.parametrize(
    "model",
    [
        alexnet(10, (3, 64, 64)),
        Means(),
        between(nn.BatchNorm2d(8, affine=False)),
        between(nn.SiLU()),
        between(nn.MaxPool2d(3, 2)),
    ],
)
def test_channels_last_where_blocks_would_not_pass(model: nn.Module) -> None:
    images = torch.zeros(2, 3, 64, 64)
    model(torch.rand(4, 3, 64, 64))
    assert fastest(model, images) is channels_last


def test_as_usual_where_the_model_takes_nothing_else() -> None:
    assert fastest(Views(), IMAGES) is as_usual
    assert fastest(nn.Linear(3, 2), torch.zeros(2, 3)) is as_usual
    assert fastest(small_cnn(10, (3, 16, 16)).double(), IMAGES.double()) is as_usual


class WrongInBlocks(nn.ReLU):
    """Gives something else in blocks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 if x.is_mkldnn else x)


def test_blocks_that_change_the_numbers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = between(WrongInBlocks())
    model(torch.rand(4, 3, 16, 16))
    monkeypatch.setattr(
        "fedbn.fast.memory_formats._takes_blocks",
        lambda module: isinstance(module, nn.Conv2d | nn.ReLU),
    )
    assert fastest(model, IMAGES) is channels_last


def test_choosing_changes_neither_the_model_nor_torchs_generator() -> None:
    model = small_cnn(10, (3, 16, 16))
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    fastest(model, IMAGES)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_prepared_model_still_takes_ordinary_images() -> None:
    model = small_cnn(10, (3, 16, 16))
    plain = copy.deepcopy(model)
    prepare(model, blocked)
    x = torch.rand(6, 3, 16, 16)
    assert torch.equal(model.train()(x), plain.train()(x))
    assert torch.equal(model.eval()(x), plain.eval()(x))
    torch.testing.assert_close(model.train()(blocked(x)), plain.train()(x))
