"""Methods as values: composing them, and refusing models they would be meaningless on."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

from fedbn.core.aggregation import Krum, Mean, krum, mean, median, server_adam, server_momentum
from fedbn.core.method import Method, Proximal, ServerState, proximal
from fedbn.core.packing import StateLayout
from fedbn.core.selectors import local
from fedbn.core.state import Kind, entries
from fedbn.errors import ConfigError, ModelError
from fedbn.methods import parse_method
from fedbn.methods.paper import centralized, fedavg, fedbn, fedprox, silobn, singleset
from tiny import bn_net, plain_net


def test_parts_add_up():
    method = fedbn() | proximal(0.1) | server_adam(0.5) | krum(1) | local("norm")
    assert method.name == "fedbn+prox(0.1)+adam(0.5, 0.9, 0.99, 0.001)+krum(1)+local(norm_affine)"
    assert method.rules == (Proximal(0.1),)
    assert method.server == server_adam(0.5)
    assert method.aggregator == Krum(1)
    assert method.share.local_kinds == {Kind.BN_AFFINE, Kind.BN_STATISTIC, Kind.NORM_AFFINE}


def test_penalties_add_and_of_what_there_is_one_of_two_are_refused():
    assert (fedavg() | median() | mean()).aggregator == Mean()
    with pytest.raises(ConfigError, match="each has an optimiser at the server; choose one"):
        _ = fedavg() | server_adam() | server_momentum()
    assert (fedavg() | proximal(1) | proximal(2)).rules == (Proximal(1), Proximal(2))


def test_a_method_is_never_changed():
    method = fedbn()
    _ = method | proximal(0.1)
    assert method == fedbn()
    with pytest.raises(FrozenInstanceError):
        method.name = "other"


def test_fedprox_is_fedavg_and_a_term():
    assert fedprox().rules == (Proximal(0.01),)
    assert fedprox().share == fedavg().share
    assert (fedprox().name, fedprox(0.5).name) == ("fedprox", "fedprox(0.5)")


def test_only_centralized_pools():
    pooled = {m.name: m.pooled for m in (centralized(), fedavg(), fedbn(), singleset(), silobn())}
    assert [name for name, flag in pooled.items() if flag] == ["centralized"]


@pytest.mark.parametrize("part", [3, None, "prox", proximal, fedavg, object()])
def test_what_is_no_part_cannot_be_added(part: object):
    with pytest.raises(ConfigError, match="cannot be added to fedbn"):
        fedbn() | part


def test_methods_add_up():
    both = fedbn() | fedprox(0.5)
    assert (both.name, both.share) == ("fedbn+fedprox(0.5)", fedbn().share)
    assert both.rules == (Proximal(0.5),)
    with pytest.raises(ConfigError, match=r"fedbn\+centralized: one of them brings all data"):
        fedbn() | centralized()


def untracked() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))


@pytest.mark.shows("M01")
@pytest.mark.parametrize(
    ("method", "model"),
    [
        (fedbn(), plain_net()),
        (silobn(), plain_net()),
        (silobn(), untracked()),
        (fedbn() | proximal(0.1), nn.Sequential(nn.GroupNorm(1, 2))),
        (fedbn(), nn.BatchNorm1d(2, affine=False, track_running_stats=False)),
    ],
    ids=["fedbn", "silobn", "silobn untracked", "groupnorm", "bare bn"],
)
def test_a_model_with_nothing_to_keep_is_an_error_that_explains(method: Method, model: nn.Module):
    found = entries(model) or entries(plain_net())
    with pytest.raises(ModelError) as caught:
        method.check(found)
    text = str(caught.value)
    assert text.startswith(f"{method.name} keeps ")
    for word in ("the model has no such entry", "FedAvg", "allow_no_batchnorm = true"):
        assert word in text
    method.check(found, allow_no_batchnorm=True)


class OwnNorm(nn.Module):
    """BatchNorm by its buffers, and not by its type."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))


def two_norms() -> nn.Module:
    return nn.ModuleDict({"own": OwnNorm(2), "bn": nn.BatchNorm1d(2), "fc": nn.Linear(2, 2)})


def test_a_layer_like_batchnorm_is_pointed_out_with_what_decides():
    found = entries(two_norms())
    (text,) = fedbn().remarks(found)
    assert text.startswith("own.*: running statistics in a layer that is no BatchNorm of torch")
    decided = parse_method(text.split("; ")[1].split(" keeps")[0])
    assert {e.name for e in decided.local(found)} >= {"own.scale", "own.running_mean"}
    assert decided.remarks(found) == []
    (alone,) = fedbn().remarks(entries(nn.Sequential(OwnNorm(2), OwnNorm(2), nn.BatchNorm1d(2))))
    assert "fedbn+local('0.*', '1.*') keeps" in alone


@pytest.mark.parametrize("method", [fedavg(), singleset(), fedavg() | local("bn.*")])
def test_nothing_is_pointed_out_where_batchnorm_is_shared_as_well(method: Method):
    assert method.remarks(entries(two_norms())) == []
    tracked = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.BatchNorm1d(2))
    assert fedbn().remarks(entries(tracked)) == []


@pytest.mark.parametrize(
    ("method", "model", "advice"),
    [
        (fedbn() | local("instance"), nn.Sequential(nn.Linear(1, 1), nn.InstanceNorm1d(2)), ""),
        (fedbn(), nn.Sequential(nn.InstanceNorm1d(2, affine=True)), "local(instance)"),
        (fedbn(), nn.Sequential(nn.LayerNorm(2)), "local(norm)"),
        (
            fedbn(),
            nn.Sequential(OwnNorm(2), nn.LayerNorm(2), nn.Linear(2, 1)),
            "local(norm, '0.*')",
        ),
    ],
)
def test_advice_is_given_where_it_keeps_something(method: Method, model: nn.Module, advice: str):
    found = entries(model)
    with pytest.raises(ModelError) as caught:
        method.check(found)
    text = str(caught.value).partition("FedAvg. ")[2]
    assert (f"add +{advice} for its other norms" if advice else "'fedavg', or set ") in text
    assert advice or "+local" not in text
    if advice:
        parse_method(f"{method.name}+{advice}").check(found)


@pytest.mark.parametrize(
    ("method", "model"),
    [
        (fedavg(), plain_net()),
        (singleset(), plain_net()),
        (centralized(), plain_net()),
        (fedbn(), bn_net()),
        (silobn(), bn_net()),
        (fedbn(), untracked()),
        (fedbn() | local("norm"), nn.Sequential(nn.GroupNorm(1, 2))),
    ],
)
def test_models_with_something_to_keep_pass(method: Method, model: nn.Module):
    method.check(entries(model))


def test_without_updates_and_a_server_optimizer_everything_stays():
    before = StateLayout.of(entries(nn.Linear(1, 1))).zeros()
    server = ServerState({"rule.h/weight": torch.ones(1)}, {"m": torch.ones(1)})
    shared, after = fedavg().begin_round(before, server, 3, torch.Generator()).finish()
    assert shared is before
    assert after == server
