"""GroupNorm in the place of BatchNorm, and BatchNorm of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedbn.core import state
from fedbn.core.bn_replacement import with_groupnorm
from fedbn.core.bn_statistics import estimate_statistics
from fedbn.core.state import Kind, entries, kinds, register_batchnorm
from fedbn.errors import ModelError
from fedbn.methods.paper import fedavg, fedbn
from tiny import bn_net, done, federation, plain_net, plan


@pytest.mark.parametrize(
    ("channels", "groups"), [(4, 1), (16, 1), (32, 2), (33, 1), (48, 3), (512, 32)]
)
def test_a_group_has_sixteen_channels_or_more(channels: int, groups: int) -> None:
    norm = with_groupnorm(nn.Sequential(nn.BatchNorm2d(channels)))[0]
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


def test_affine_values_are_kept_and_one_layer_in_two_places_stays_one() -> None:
    norm = nn.BatchNorm1d(4)
    nn.init.constant_(norm.weight, 3.0)
    norm.bias.requires_grad_(False)
    model = with_groupnorm(nn.Sequential(norm, nn.ModuleDict({"again": norm})))
    assert model[0] is model[1]["again"]
    assert model[0].weight.tolist() == [3.0] * 4
    assert not model[0].bias.requires_grad
    assert not with_groupnorm(nn.Sequential(nn.BatchNorm1d(4, affine=False)))[0].affine
    assert isinstance(with_groupnorm(nn.BatchNorm2d(4)), nn.GroupNorm)


def test_fedavg_runs_without_any_batchnorm_and_fedbn_says_there_is_none() -> None:
    made = plan(fedavg(), federation(8, 9), lambda: with_groupnorm(bn_net()))
    assert {str(e.kind) for e in entries(made.initial_model)} == {"weight", "norm_affine"}
    assert done(made).shared.unusable() is None
    with pytest.raises(ModelError, match=r"fedbn keeps .* add \+local\(norm\)"):
        plan(fedbn(), federation(8, 9), lambda: with_groupnorm(bn_net())).check()


def test_a_model_without_batchnorm_has_nothing_to_replace() -> None:
    with pytest.raises(ModelError, match="has no BatchNorm to replace"):
        with_groupnorm(plain_net())


class OwnNorm(nn.Module):
    """BatchNorm without a bias, by hand."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x):
        return self.scale * nn.functional.batch_norm(
            x, self.running_mean, self.running_var, training=self.training
        )


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_batchnorm", known := [*state._batchnorm])
    families = ((known, Kind.BN_AFFINE, Kind.BN_STATISTIC), *state._FAMILIES[1:])
    monkeypatch.setattr(state, "_FAMILIES", families)
    register_batchnorm(OwnNorm)


def own_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), OwnNorm(4), nn.ReLU(), nn.Linear(4, 2))


def test_a_class_that_is_said_to_be_batchnorm_stays_with_the_client(registered: None) -> None:
    assert kinds(own_net())["1.scale"] is Kind.BN_AFFINE
    made = plan(fedbn(), federation(8, 9), own_net)
    made.check()
    assert made.method.remarks(entries(made.initial_model)) == []
    assert "1.running_mean" not in done(made).shared.state


def test_and_its_statistics_can_be_measured(registered: None) -> None:
    layer = OwnNorm(1)
    estimate_statistics(nn.Sequential(layer), torch.tensor([[1.0], [2.0], [6.0]]), chunk=2)
    assert (layer.running_mean.tolist(), layer.running_var.tolist()) == ([3.0], [7.0])


def test_without_being_said_it_is_shared_and_pointed_out() -> None:
    (said,) = fedbn().remarks(entries(own_net()))
    assert "fedbn.register_batchnorm says that their class is BatchNorm" in said


@pytest.mark.parametrize("wrong", [OwnNorm(2), int, "OwnNorm"])
def test_what_is_no_class_of_modules_cannot_be_registered(wrong: object) -> None:
    with pytest.raises(ModelError, match="is not a class of modules"):
        register_batchnorm(wrong)  # type: ignore[arg-type]
