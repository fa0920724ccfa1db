"""FedAvg keeps each client's own running statistics for scoring: they are SiloBN's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedbn.core.own_statistics import can_follow, following, statistics_of
from fedbn.core.rounds import RunState, initial_state
from fedbn.core.state import Kind, entries
from fedbn.experiments.runner import Memory, run_plan
from fedbn.methods import parse_method
from fedbn.runs import checkpoints
from tiny import bn_net, federation, plan

SIZES = (10, 14, 23, 9)


def cumulative_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, 3)),
        nn.Conv2d(1, 4, 1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


def run(method: str, model: Callable[[], nn.Module] = bn_net, **training: object) -> RunState:
    engine = training.pop("engine", "plain")
    made = plan(parse_method(method), federation(*SIZES), model, rounds=4, **training)
    made = replace(made, final_statistics=("running", "local"), engine=engine)
    return run_plan(made, Memory())


def assert_copies_are_silobn(averaged: RunState, silobn: RunState) -> None:
    for client, kept in averaged.own_statistics.items():
        for name, value in kept.state.items():
            assert torch.equal(value, silobn.local[client].state[name]), (client, name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"participation": 0.5},
        {"local_epochs": 2, "optimizer": "Adam"},
        {"last_batch": "merge"},
        {"engine": "batched"},
        {"engine": "batched", "participation": 0.5},
        {"fast": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [bn_net, cumulative_net])
def test_own_statistics_equal_silobns(model: Callable[[], nn.Module], options: dict) -> None:
    averaged, silobn = (run(method, model, **options) for method in ("fedavg", "silobn"))
    assert_copies_are_silobn(averaged, silobn)
    assert averaged.own_statistics.keys() == {"a", "b", "c", "d"}


@pytest.mark.parametrize("model", [dropout_net, conv_net])
def test_own_statistics_equal_silobns_for_other_layers(model: Callable[[], nn.Module]) -> None:
    assert_copies_are_silobn(run("fedavg", model), run("silobn", model))


@pytest.mark.parametrize("engine", ["plain", "batched"])
def test_fedavg_and_silobn_train_the_same_shared_weights(engine: str) -> None:
    averaged, silobn = (run(method, engine=engine) for method in ("fedavg", "silobn"))
    assert silobn.shared.state
    for name, value in silobn.shared.state.items():
        assert torch.equal(value, averaged.shared.state[name]), name


@pytest.mark.parametrize("engine", ["plain", "batched"])
def test_keeping_statistics_changes_no_bit_of_the_run(engine: str) -> None:
    made = plan(parse_method("fedavg"), federation(*SIZES), rounds=3)
    made = replace(made, engine=engine)
    without, with_copies = (
        run_plan(replace(made, final_statistics=kinds), Memory()) for kinds in ((), ("local",))
    )
    assert not without.own_statistics
    assert with_copies.own_statistics
    for name, value in without.shared.state.items():
        assert torch.equal(value, with_copies.shared.state[name]), name


def test_a_client_that_never_trained_is_scored_as_silobn_scores_it() -> None:
    """One of four clients takes part in one round: three have no statistics of their own yet."""
    found = {}
    for method, kind in (("fedavg", "local"), ("silobn", "running")):
        made = plan(parse_method(method), federation(*SIZES), rounds=1, participation=0.25)
        memory = Memory()
        run_plan(replace(made, final_statistics=("running", "local")), memory)
        found[method] = {
            (r.client, r.split, r.metric): r.value
            for r in memory.records
            if r.statistics == kind and r.metric in ("loss", "accuracy")
        }
    assert found["fedavg"] == found["silobn"]
    assert len({client for client, *_ in found["fedavg"]}) == 4


def test_own_statistics_are_saved_and_resumed(tmp_path: Path) -> None:
    made = plan(parse_method("fedavg"), federation(*SIZES), rounds=4, participation=0.5)
    made = replace(made, final_statistics=("local",))
    whole = run_plan(made, Memory())
    half = run_plan(replace(made, training=replace(made.training, rounds=2)), Memory())
    checkpoints.save(tmp_path, half, {"method": "fedavg", "setting": "default", "seed": 0})
    read, damaged = checkpoints.newest(tmp_path, initial_state(made))
    assert read is not None
    assert not damaged
    resumed = run_plan(made, Memory(), start=read)
    for client, kept in whole.own_statistics.items():
        for name, value in kept.state.items():
            assert torch.equal(value, resumed.own_statistics[client].state[name])


def test_a_method_that_keeps_statistics_local_has_no_copy_of_them() -> None:
    assert not run("silobn").own_statistics
    assert not run("fedbn").own_statistics
    assert not run("centralized").own_statistics


class Functional(nn.Module):
    """BatchNorm called as a function, with the buffers of a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = self.norm.running_mean, self.norm.running_var
        return self.out(functional.batch_norm(x, mean, var, training=self.training))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_batchnorm_that_cannot_be_followed_has_no_copy() -> None:
    sample = torch.randn(4, 3)
    assert can_follow(bn_net(), sample)
    assert not can_follow(Functional(), sample)
    assert not can_follow(torch.jit.script(bn_net()), sample)
    assert not can_follow(nn.Sequential(nn.Linear(3, 2)), sample)
    made = plan(parse_method("fedavg"), federation(*SIZES), Functional)
    made = replace(made, final_statistics=None)
    assert made.scored_statistics(final=True) == ("running", "batch")


def test_following_leaves_the_model_without_hooks() -> None:
    model = bn_net().train()
    kept = statistics_of(model)
    with following(model, kept):
        model(torch.randn(8, 3))
    assert not any(module._forward_pre_hooks for module in model.modules())
    changed = {e.name for e in entries(model) if e.kind is Kind.BN_STATISTIC}
    assert kept.state.keys() == changed
    for name in changed:
        assert torch.equal(kept.state[name], model.state_dict()[name])
