"""Clients that train in threads leave the process's generators to whoever else draws from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedbn
from fedbn.core.aggregation import (
    Aggregation,
    Aggregator,
    ClientUpdate,
    CollectingAggregator,
    Mean,
)
from fedbn.core.engine import OneByOne
from fedbn.core.method import Method
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.rounds import RunState, initial_state, run_round
from tiny import bn_net, dropout_net, federation, plan, same_runs


@dataclass(frozen=True)
class Noisy(CollectingAggregator):
    """The mean of updates, with noise from torch's global generator."""

    label = "noisy"

    def aggregate(
        self, updates: Sequence[ClientUpdate], before: Pack, generator: torch.Generator
    ) -> Pack:
        return fedbn.core.aggregation.mean_of(moved(update.shared) for update in updates)


@dataclass(frozen=True)
class NoisySum:
    """The same, one update at a time, with noise from the generator of the aggregation."""

    label = "noisy"

    def begin(self, before: Pack, generator: torch.Generator) -> Aggregation:
        inner = Mean().begin(before, generator)

        class Noise:
            def add(self, update: ClientUpdate) -> None:
                inner.add(replace(update, shared=moved(update.shared, generator)))

            def finish(self) -> Pack:
                return inner.finish()

        return Noise()


def moved(pack: Pack, generator: torch.Generator | None = None) -> Pack:
    vectors = {
        group: vector
        if group.integer
        else vector + 0.01 * torch.randn(vector.shape, generator=generator)
        for group, vector in pack.vectors.items()
    }
    return Pack(pack.layout, vectors)


class Slow(nn.Module):
    """Takes so long that a client still trains while the update before it is aggregated."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.01)
        return x


def slow_dropout_net() -> nn.Module:
    """Return a network that draws while it trains, and takes its time before it does."""
    return nn.Sequential(Slow(), dropout_net())


def after_rounds(made: Plan, workers: int, gathered: bool = False) -> RunState:
    """Return the state after the last round; `gathered` trains all clients before aggregation."""
    state = initial_state(made)
    with closing(OneByOne(made, workers)) as crew:
        for _ in range(made.training.rounds):
            train = (lambda some, at: [*crew.train(some, at)]) if gathered else crew.train
            state = run_round(made, state, train).state
    return state


@pytest.fixture
def large_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every update as too large to wait for the others, so that they are used one by one."""
    monkeypatch.setattr("fedbn.core.engine._KEPT_BYTES", 0)


def drawing(
    model: Callable[[], nn.Module] = slow_dropout_net, aggregator: Aggregator | None = None
) -> Plan:
    method = fedbn.fedavg() | (aggregator or Noisy())
    assert isinstance(method, Method)
    return plan(method, federation(10, 10, 10, 10, 10), model, rounds=2)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_model_and_an_aggregator_that_both_draw_do_not_disturb_each_other(workers: int) -> None:
    expected = after_rounds(drawing(), 1, gathered=True)
    assert same_runs(after_rounds(drawing(), workers), expected)


@pytest.mark.usefixtures("large_updates")
def test_nor_do_they_where_updates_are_aggregated_one_by_one() -> None:
    for aggregator in (Noisy(), NoisySum()):
        expected = after_rounds(drawing(aggregator=aggregator), 1, gathered=True)
        assert same_runs(after_rounds(drawing(aggregator=aggregator), 4), expected)


class Jittered(Dataset[tuple[Tensor, int]]):
    """Samples with noise from torch's global generator, drawn anew whenever one is read."""

    def __init__(self, scale: float):
        self.x = scale * torch.randn(12, 3, generator=torch.Generator().manual_seed(int(scale)))
        self.targets = (self.x[:, 0] > 0).long().tolist()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.001)
        return self.x[index] + torch.randn(3), self.targets[index]


@pytest.mark.usefixtures("large_updates")
def test_samples_that_are_read_while_training_do_not_disturb_an_aggregator() -> None:
    sites = {name: (Jittered(1.0 + i), Jittered(20.0 + i)) for i, name in enumerate("abcde")}

    def trained(workers: int) -> RunState:
        method = fedbn.fedavg() | Noisy()
        return fedbn.fit(sites, bn_net, method, rounds=2, workers=workers).state

    expected = trained(1)
    assert all(same_runs(trained(workers), expected) for workers in (2, 4))
