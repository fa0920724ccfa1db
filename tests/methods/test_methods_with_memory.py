"""Every shipped method against a loop in plain torch, in float64.

Three clients of unequal size, three rounds; the second client is away in round 2 and comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import independent_methods as by_hand
from fedbn.core.federation import Client, Federation
from fedbn.core.local_training import batches
from fedbn.core.plan import Plan
from fedbn.core.randomness import generator
from fedbn.core.rounds import Outcome, Rejection, RunState, initial_state, run_round
from fedbn.core.state import Kind, entries
from fedbn.core.training import Training
from fedbn.methods import parse_method
from fedbn.models.networks import mlp
from fedbn.runs import checkpoints
from tiny import Trainer, federation, same_runs

ROUNDS, LR = 3, 0.1
BN = {Kind.BN_AFFINE, Kind.BN_STATISTIC}
METHODS = {
    "scaffold": by_hand.Scaffold,
    "fedbn+scaffold": by_hand.Scaffold,
    "feddyn(0.3)": by_hand.FedDyn,
    "fedbn+feddyn(0.3)": by_hand.FedDyn,
    "ditto(0.5)": by_hand.Ditto,
    "fedbn+ditto(0.5)": by_hand.Ditto,
    "fedper": by_hand.FedAvg,
    "fedbn+fedper": by_hand.FedAvg,
    "lgfedavg": by_hand.FedAvg,
    "fedrep(head_epochs=2)": by_hand.FedRep,
    "fedbn+fedrep(head_epochs=2)": by_hand.FedRep,
    "fixbn(0.34)": by_hand.FixBN,
    "fedavgm(0.5, 0.9)": by_hand.FedAvgM,
    "fedadam(0.05)": by_hand.FedAdam,
    "fedyogi(0.05)": by_hand.FedYogi,
    "fedadagrad(0.05)": by_hand.FedAdagrad,
}


def data() -> Federation:
    found = federation(8, 11, 14)
    clients = (c.change(lambda s: replace(s, x=s.x.double())) for c in found.clients)
    return replace(found, clients=tuple(clients))


def plan(method: str, **training: object) -> Plan:
    chosen = Training(**{"rounds": ROUNDS, "batch_size": 5, "lr": LR, "fast": False, **training})
    made = Plan(parse_method(method), data(), lambda: mlp(2, (3,), (4,)).double(), chosen, seed=1)
    made.check()
    return made


class Resting(Trainer):
    """The second client is away in the second round."""

    def __call__(self, chosen: Sequence[Client], state: RunState) -> list[Outcome]:
        found = super().__call__(chosen, state)
        return [
            Rejection("b", "away") if state.round == 1 and o.client == "b" else o for o in found
        ]


def done(made: Plan) -> RunState:
    state, train = initial_state(made), Resting(made)
    for _ in range(made.training.rounds):
        state = run_round(made, state, train).state
    return state


def passes(made: Plan, client: Client, round: int) -> dict[str, list]:
    """The batches of each pass that a client makes, in the order that the run draws."""
    found = {}
    for purpose, epochs in {"order": 1, "order personal": 1, "order head": 2}.items():
        sizes = made.training.sizes(len(client.train))
        draws = generator(made.seed, purpose, round, client.name)
        order = batches(len(client.train), sizes, made.steps(client, epochs), draws)
        found[purpose] = [client.train.batch(index) for index in order]
    return found


def kept(made: Plan) -> set[str]:
    """What stays at the client, by what the papers say and the kinds of the model's layers."""
    words = [piece.partition("(")[0] for piece in made.method.name.split("+")]
    found = entries(made.initial_model)
    head, everything = {"3.weight", "3.bias"}, {e.name for e in found}
    own = {e.name for e in found if e.kind in BN} if "fedbn" in words else set()
    own |= head if {"fedper", "fedrep"} & {*words} else set()
    return own | (everything - head if "lgfedavg" in words else set())


def expected(made: Plan) -> tuple[by_hand.FedAvg, dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    model, own = made.initial_model, kept(made)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    method = METHODS[made.method.name](model, LR, start.keys() - own, len(data().clients))
    given = [
        {
            c.name: passes(made, c, number)
            for c in made.federation.clients
            if (c.name, number) != ("b", 2)
        }
        for number in range(1, ROUNDS + 1)
    ]
    lrs = [LR / 2**i if made.training.schedule else LR for i in range(ROUNDS)]
    return method, *by_hand.run(method, start, own, given, lrs)


REMEMBERED = {  # the names of a client's memory and of the federation's, shared or the server's
    "scaffold": ("scaffold.c_i", "scaffold.c"),
    "feddyn": ("feddyn.g", "feddyn.h"),
    "ditto": ("ditto.personal", ""),
}


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max((float((found[n] - wanted[n]).abs().max()) for n in wanted), default=0.0)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_papers_equations(name: str) -> None:
    assert apart(name, plan(name)) < 1e-13


def test_scaffold_divides_by_the_learning_rate_of_the_round() -> None:
    halved = {"schedule": "ExponentialLR", "schedule_args": {"gamma": 0.5}}
    assert apart("scaffold", plan("scaffold", **halved)) < 1e-13


def apart(name: str, made: Plan) -> float:
    """The largest difference of anything that a run and its loop in plain torch hold."""
    state = done(made)
    method, shared, homes = expected(made)
    word = next((w for w in REMEMBERED if w in name), None)
    own, joint = REMEMBERED.get(word, ("", ""))
    if joint:
        remembered = {f"{joint}/{n}": v for n, v in method.joint.items()}
        shared |= {} if "h" in joint.partition(".")[2] else remembered
    found = [distance(dict(state.shared.state), shared)]
    for client, home in homes.items():
        local = dict(state.local[client].state)
        rounds = local.pop("rule.rounds", None)
        assert rounds is None or int(rounds) == (2 if client == "b" else 3)
        mine = {f"{own}/{n}": v for n, v in method.own[client].items()} if own else {}
        found.append(distance(local, home | mine))
    if word == "feddyn":
        found.append(distance(state.server.hooks, remembered))
    print(f"{name}: {max(found):.2e}")
    return max(found)


def test_what_is_compared_is_not_fedavg_again() -> None:
    plain = done(plan("fedavg")).shared.state
    for name in METHODS:
        state = done(plan(name)).shared.state
        same = [torch.equal(plain[n], state[n]) for n in plain if n in state]
        assert not all(same) or name == "ditto(0.5)", name  # Ditto's joint model is FedAvg's


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_resumed_from_disk_is_uninterrupted(name: str, after: int, tmp_path: Path) -> None:
    made = plan(name, participation=0.67)
    states = [initial_state(made)]
    for _ in range(ROUNDS):
        states.append(run_round(made, states[-1], Trainer(made)).state)
    checkpoints.save(tmp_path, states[after], {})
    again = plan(name, participation=0.67)
    state, _ = checkpoints.newest(tmp_path, initial_state(again))
    assert state is not None
    assert same_runs(state, states[after])
    for _ in range(ROUNDS - after):
        state = run_round(again, state, Trainer(again)).state
    assert same_runs(state, states[-1])
