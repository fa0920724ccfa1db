"""Exact statistics: what one training-mode pass over all data at once leaves behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbn.core.bn_statistics import estimate_statistics
from fedbn.errors import DataError, ModelError

N = 23


def images(*shape: int) -> Tensor:
    return 3 * torch.randn(N, *shape, generator=torch.Generator().manual_seed(1)) + 1


class Branches(nn.Module):
    """Two branches, each with its own BatchNorm, that meet in a third."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=0.3), nn.Tanh())
        self.out = nn.Sequential(nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6 * 16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.one(x), self.two(x)], dim=1))


class Twice(nn.Module):
    """One BatchNorm in two places, the second behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.between, self.out = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.between(self.norm(x).relu())))


class Mine(nn.BatchNorm1d):
    """A user's own subclass."""


MODELS = {
    "1d": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), Mine(4)), (3,)),
    "1d signals": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3)), (2, 5)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.ReLU()), (1, 3, 3, 3)),
    "no affine": (lambda: nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)), (3,)),
    "branches": (Branches, (2, 6, 6)),
    "one layer twice": (Twice, (3,)),
}


def at_once(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Torch's own: layers reset, momentum None, one training-mode pass over everything."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.reset_running_stats()
            layer.momentum = None
    model.train()(x)
    return model.state_dict()


@pytest.mark.parametrize("chunk", [1, 2, 7, N, 100])
@pytest.mark.parametrize("name", MODELS)
def test_any_chunks_give_the_statistics_of_one_giant_batch(name: str, chunk: int):
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), images(*shape)
    expected = at_once(model, x)
    estimate_statistics(model, x, chunk)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-5)


def test_by_hand():
    """1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14, over n − 1 = 2."""
    layer = nn.BatchNorm1d(1)
    estimate_statistics(layer, torch.tensor([[1.0], [2.0], [6.0]]), chunk=2)
    assert layer.running_mean.tolist() == [3.0]
    assert layer.running_var.tolist() == [7.0]
    assert int(layer.num_batches_tracked) == 1


def test_a_sync_layer_is_a_batchnorm_like_the_others():
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    for model in (plain, synced):
        estimate_statistics(model, images(3), chunk=5)
    assert torch.equal(plain[1].running_var, synced[1].running_var)


def test_uint8_is_scaled_as_in_training():
    layer = nn.BatchNorm1d(1)
    estimate_statistics(layer, torch.tensor([[0], [255]], dtype=torch.uint8))
    assert layer.running_mean.tolist() == [0.0]


def test_layers_that_track_nothing_and_all_other_entries_stay():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Dropout(), Mine(3)
    )
    before = copy.deepcopy(model.state_dict())
    estimate_statistics(model, images(3), chunk=N)
    same = {key for key, value in model.state_dict().items() if torch.equal(value, before[key])}
    assert same == before.keys() - {f"3.{k}" for k in ("running_mean", "running_var")} - {
        "3.num_batches_tracked"
    }


class Choosy(nn.Module):
    """Whether a layer is called depends on the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.mean()) > 1 else self.b(x)


def test_layers_called_for_some_samples_only_are_refused():
    x = torch.cat([torch.zeros(4, 3), torch.full((4, 3), 9.0)])
    with pytest.raises(ModelError, match="depends on the samples"):
        estimate_statistics(Choosy(), x, chunk=4)


def test_one_sample_and_a_failing_model_are_refused():
    with pytest.raises(DataError, match="at least 2"):
        estimate_statistics(nn.BatchNorm1d(3), torch.zeros(1, 3))
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(4, 1))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ModelError, match="the model fails: RuntimeError"):
        estimate_statistics(model, images(3))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
