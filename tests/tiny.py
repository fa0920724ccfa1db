"""The smallest federation, models and plans that show what a test is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.method import Method
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import Outcome, RunState, Train, initial_state, run_round, train_client
from fedbn.core.training import Training


def vectors(n: int, scale: float, seed: int) -> Split:
    """n vectors of three numbers; the sign of the first is the class."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return Split(scale * x, (x[:, 0] > 0).long())


def federation(*sizes: int) -> Federation:
    """Clients `a`, `b`, ... of the sizes given; each next one's features are four times larger."""
    clients = []
    for i, n in enumerate(sizes):
        name = chr(ord("a") + i)
        test = vectors(6, 4.0**i, 100 + i)
        clients.append(
            Client(name, f"domain {name}", vectors(n, 4.0**i, i), {f"domain {name}": test})
        )
    return Federation("tiny", tuple(clients), ("left", "right"))


def bn_net() -> nn.Module:
    """Linear, BatchNorm, ReLU, Linear."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def plain_net() -> nn.Module:
    """The same without BatchNorm."""
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def dropout_net() -> nn.Module:
    """A network whose training draws from torch's global generator."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def plan(
    method: Method,
    data: Federation,
    model: Callable[[], nn.Module] = bn_net,
    seed: int = 0,
    evaluate_every: int = 1,
    **training: Any,
) -> Plan:
    """Make a plan with batches of 5, the last one kept, and a learning rate of 0.1 unless said."""
    defaults = {"rounds": 2, "batch_size": 5, "last_batch": "keep", "lr": 0.1}
    chosen = Training(**{**defaults, **training})
    return Plan(method, data, model, chosen, seed=seed, evaluate_every=evaluate_every)


def state_of(state: RunState, client: str) -> dict[str, Tensor]:
    """A client's joined state."""
    return {**state.shared.state, **state.local[client].state}


def same(a: Mapping[str, Tensor] | Pack, b: Mapping[str, Tensor] | Pack) -> bool:
    """Tell whether two states are equal to the last bit."""
    first, second = (s.state if isinstance(s, Pack) else s for s in (a, b))
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def same_runs(a: RunState, b: RunState) -> bool:
    """Tell whether two runs hold the same state to the last bit."""
    return (
        a.round == b.round
        and same(a.shared, b.shared)
        and same(a.server.hooks, b.server.hooks)
        and same(a.server.optimizer, b.server.optimizer)
        and a.local.keys() == b.local.keys()
        and all(same(a.local[name], b.local[name]) for name in a.local)
        and a.untrained.keys() == b.untrained.keys()
        and all(same(a.untrained[name], b.untrained[name]) for name in a.untrained)
    )


class Trainer:
    """Trains clients one after another, and notes whose local part each one started from."""

    def __init__(self, made: Plan):
        self.plan = made
        self.replica = Replica(made.initial_model, made.method)
        self.started: list[tuple[str, Pack]] = []

    def __call__(self, chosen: Sequence[Client], state: RunState) -> list[Outcome]:
        self.started += [(client.name, state.local[client.name]) for client in chosen]
        return [train_client(self.plan, self.replica, client, state) for client in chosen]


def done(made: Plan, train: Train | None = None) -> RunState:
    """The state after a plan's last round."""
    state, train = initial_state(made), train or Trainer(made)
    for _ in range(made.training.rounds):
        state = run_round(made, state, train).state
    return state
