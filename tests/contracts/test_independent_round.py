"""Every method of the paper against one round in plain torch, alone and in stacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedbn.core.federation import Client, Federation
from fedbn.core.local_training import batches
from fedbn.core.plan import Plan
from fedbn.core.randomness import generator
from fedbn.core.rounds import RunState, select_clients
from fedbn.core.training import Training
from fedbn.experiments.runner import run_plan
from fedbn.methods import paper, parse_method
from fedbn.models.networks import mlp
from independent_round import State, adam, federated_round, kept
from tiny import federation

ROUNDS, LR, MU = 3, 0.1, 0.3


def data(spoilt: float) -> Federation:
    """Five clients of unequal size in float64; the features of one are far too large."""

    def doubled(client: Client) -> Client:
        scale = spoilt if client.name == "b" else 1.0
        return client.change(lambda split: replace(split, x=split.x.double() * scale))

    found = federation(8, 9, 10, 11, 12)
    return replace(found, clients=tuple(map(doubled, found.clients)))


def plan(method: str, engine: str) -> Plan:
    chosen = parse_method(method, {"mu": MU})
    return Plan(
        chosen,
        data(1.0).pooled() if chosen.pooled else data(1e200),
        lambda: mlp(2, (3,), (4,)).double(),
        Training(rounds=ROUNDS, batch_size=5, lr=LR, participation=0.8, fast=engine == "batched"),
        seed=1,
        engine=engine,
    )


def by_hand(made: Plan) -> tuple[State, dict[str, State]]:
    """The shared part and every client's own after all rounds, in plain torch."""
    word, *parts = made.method.name.split("+")
    model, own = made.initial_model, kept(made.initial_model, word)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    shared = {name: value for name, value in start.items() if name not in own}
    homes = {c.name: {name: start[name] for name in own} for c in made.federation.clients}
    trained = {name for name, _ in model.named_parameters()} & shared.keys()
    memory: dict[str, tuple[Tensor, Tensor]] = {}
    for number in range(1, ROUNDS + 1):
        given = {}
        for client in select_clients(made, number):
            draws = generator(made.seed, "order", number, client.name)
            sizes = made.training.sizes(len(client.train))
            order = batches(len(client.train), sizes, made.steps(client), draws)
            given[client.name] = [client.train.batch(index) for index in order]
        pull = MU if "fedprox" in word or any("prox" in part for part in parts) else 0.0
        after = federated_round(model, shared, homes, given, LR, pull)
        if any("adam" in part for part in parts):
            before, mean = ({n: state[n] for n in trained} for state in (shared, after))
            after |= adam(before, mean, memory, 0.05)
        shared = after
    return shared, homes


def states(state: RunState, shared: State, homes: dict[str, State]) -> tuple[list, list]:
    found = [dict(state.shared.state), *(dict(state.local[client].state) for client in homes)]
    return found, [shared, *homes.values()]


@pytest.mark.parametrize("engine", ["plain", "batched"])
@pytest.mark.parametrize("method", [*paper.__all__, "fedbn+prox+adam(0.05)"])
def test_a_method_does_what_plain_torch_does(method: str, engine: str) -> None:
    made = plan(method, engine)
    found, expected = states(run_plan(made), *by_hand(made))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["singleset", "fedavg", "silobn", "fedbn", "centralized"])
def test_where_the_operations_are_the_same_so_are_the_bits(method: str) -> None:
    made = plan(method, "plain")
    found, expected = states(run_plan(made), *by_hand(made))
    for one, other in zip(found, expected, strict=True):
        assert {n for n in one if not torch.equal(one[n], other[n])} == set()


def test_what_is_compared_is_not_the_easy_case() -> None:
    made = plan("fedbn", "plain")
    drawn = [{c.name for c in select_clients(made, number)} for number in range(1, ROUNDS + 1)]
    assert any("b" in names for names in drawn)  # and is refused
    assert all(len(names) == 4 for names in drawn)
    assert len({len(c.train) for c in made.federation.clients}) == 5
