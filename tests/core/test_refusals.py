"""Bad updates: refused, named, and never let into the global model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedbn.core.aggregation import (
    Aggregator,
    ServerOptimizer,
    krum,
    median,
    multi_krum,
    server_adagrad,
    server_adam,
    server_momentum,
    server_yogi,
    trimmed_mean,
)
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.method import Method
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import (
    Outcome,
    Rejection,
    RunState,
    Train,
    Update,
    initial_state,
    round_records,
    run_round,
)
from fedbn.core.scoring import score_client
from fedbn.errors import TooFewClients
from fedbn.fast import make_crew
from fedbn.methods.paper import fedavg, fedbn
from fedbn.tasks.standard import regression as regression_task
from tiny import Trainer, bn_net, done, federation, plan, same

BOTH = pytest.mark.parametrize("method", [fedavg(), fedbn()], ids=lambda m: m.name)


def without(data: Federation, name: str) -> Federation:
    return replace(data, clients=tuple(c for c in data.clients if c.name != name))


def spoiled(data: Federation, *names: str, value: float = 3e38) -> Federation:
    """Clients whose samples are all one value; the largest overflow in the first layer."""

    def spoil(client: Client) -> Client:
        x = torch.full_like(client.train.x, value)
        return replace(client, train=replace(client.train, x=x))

    return replace(data, clients=tuple(spoil(c) if c.name in names else c for c in data.clients))


@pytest.mark.shows("F26", "F27")
@pytest.mark.parametrize("bad", ["a", "b", "c"])
@BOTH
def test_an_update_with_nan_is_refused_and_named(method: Method, bad: str, vectors: Federation):
    made = plan(method, spoiled(vectors, bad), rounds=1)
    result = run_round(made, initial_state(made), Trainer(made))
    state = result.state
    (refusal,) = result.rejected.values()
    assert refusal.client == bad
    reason = "its training diverged: features reach 3e+38; standardise them, or lower training.lr"
    assert refusal.reason == f"{reason} (0.1)"
    # the others' round is the one they would have had alone, and the bad one keeps its start
    rest = done(plan(method, without(vectors, bad), rounds=1))
    assert same(state.shared, rest.shared)
    assert same(state.local[bad], initial_state(made).local[bad])
    named = [r.metric for r in round_records(made, result) if r.client == bad]
    assert named == ["refused"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("entry", ["0.bias", "1.running_var"])
@BOTH
def test_no_entry_may_be_poisoned(method: Method, entry: str, value: float, vectors: Federation):
    """Whether shared or local: a client with a broken BatchNorm would fail for ever."""

    class Poisoned(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and bool((x > 1000).any()):
                with torch.no_grad():
                    self.state_dict(keep_vars=True)[entry][0] = value
            return super().forward(x)

    data = spoiled(vectors, "b", value=2000.0)
    made = plan(method, data, lambda: Poisoned(*bn_net()), rounds=1)
    result = run_round(made, initial_state(made), Trainer(made))
    state = result.state
    assert [*result.rejected] == ["b"]
    assert state.shared.unusable() is None
    assert all(part.unusable() is None for part in state.local.values())


class Raises(nn.Sequential):
    """Fails in training on samples beyond 1000."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x > 1000).any()):
            raise RuntimeError("no such\n  scanner")
        return super().forward(x)


@pytest.mark.shows("F18", "M14")
def test_a_client_that_raises_is_named_and_the_round_goes_on(vectors: Federation):
    made = plan(fedbn(), spoiled(vectors, "a"), lambda: Raises(*bn_net()), rounds=1)
    result = run_round(made, initial_state(made), Trainer(made))
    state = result.state
    assert [*result.rejected.values()] == [
        Rejection("a", "RuntimeError: no such scanner", "RuntimeError")
    ]
    assert list(result.accepted) == ["b", "c"]
    rest = plan(fedbn(), without(vectors, "a"), lambda: Raises(*bn_net()), rounds=1)
    assert same(state.shared, done(rest).shared)


@pytest.mark.shows("F19")
@pytest.mark.parametrize("method", [fedavg(), fedavg() | median(), fedbn()])
def test_too_few_usable_updates_end_the_run(method: Method, vectors: Federation):
    made = plan(method, spoiled(vectors, "a", "b", "c"))
    with pytest.raises(TooFewClients, match=r"round 1: 0 of 3 .*min_clients = 1 \(a: its .*c: its"):
        done(made)


def test_as_many_as_min_clients_are_enough(vectors: Federation):
    data = spoiled(vectors, "b")
    assert done(plan(fedavg(), data, min_clients=2)).round == 2
    with pytest.raises(TooFewClients, match=r"2 of 3 clients gave a usable.*min_clients = 3"):
        done(plan(fedavg(), data, min_clients=3))


@pytest.mark.parametrize("rule", [krum(1), multi_krum(1), trimmed_mean(0.2)])
def test_a_rule_never_works_on_fewer_updates_than_it_needs(rule: Aggregator):
    """Of three updates Krum with one hostile client may well choose the hostile one."""
    data = federation(*[10] * 5)
    made = plan(fedavg() | rule, spoiled(data, "b", "d"))
    with pytest.raises(TooFewClients, match=r"3 of 5 .* update, fedavg\+.* needs 5 \(b: its .*d: "):
        done(made)
    assert done(plan(fedavg() | rule, data)).round == 2


def hostile(made: Plan, factor: float) -> Train:
    """The second client sends its honest step times a factor."""
    trainer = Trainer(made)

    def train(chosen: Sequence[Client], state: RunState) -> list[Outcome]:
        outcomes = trainer(chosen, state)
        bad = outcomes[1]
        assert isinstance(bad, Update)
        for group, vector in bad.shared.vectors.items():
            if group.trainable:
                before = state.shared.vectors[group]
                vector.copy_(before + factor * (vector - before))
        return outcomes

    return train


def distance(a: RunState, b: RunState) -> float:
    """The largest difference of any shared weight."""
    names = [name for name in a.shared.state if name.endswith(("weight", "bias"))]
    return max(float((a.shared.state[n] - b.shared.state[n]).abs().max()) for n in names)


@pytest.mark.shows("F29")
@pytest.mark.parametrize("rule", [median(), trimmed_mean(0.2), krum(1), multi_krum(1)])
@pytest.mark.parametrize("factor", [-1.0, 1e3], ids=["sign", "norm"])
def test_a_robust_run_stays_near_the_clean_one(rule: Aggregator, factor: float):
    """Over three rounds of five like clients; a factor of 1000 carries the plain mean away."""
    one = federation(30).clients[0]
    clients = tuple(replace(one, name=name) for name in "abcde")
    data = Federation("alike", clients, ("left", "right"))
    clean = done(plan(fedavg(), data, rounds=3))
    robust, plain = (plan(m, data, rounds=3) for m in (fedavg() | rule, fedavg()))
    assert distance(clean, done(robust, hostile(robust, factor))) < 0.1
    if factor == 1e3:
        assert distance(clean, done(plain, hostile(plain, factor))) > 10


@pytest.mark.shows("F28")
@BOTH
def test_a_step_a_million_times_too_long_is_refused_and_named(method: Method, vectors: Federation):
    made = plan(method, vectors, rounds=1)
    result = run_round(made, initial_state(made), hostile(made, 1e6))
    state = result.state
    (refusal,) = result.rejected.values()
    assert refusal.client == "b"
    assert refusal.reason.startswith("its update moves the model by")
    assert same(state.shared, done(plan(method, without(vectors, "b"), rounds=1)).shared)
    assert same(state.local["b"], initial_state(made).local["b"])


@pytest.mark.parametrize(
    "server", [server_momentum(), server_adam(1.0), server_yogi(1.0), server_adagrad(1.0)]
)
@BOTH
def test_server_optimisers_leave_variances_positive(
    server: ServerOptimizer, method: Method, vectors: Federation
):
    state = done(plan(method | server, vectors, rounds=6))
    for part in (state.shared, *state.local.values()):
        assert part.unusable() is None
        for name, value in part.state.items():
            assert not name.endswith("running_var") or bool((value > 0).all())
    assert all(key.endswith("float32.trainable") for key in state.server.optimizer)


def test_a_loss_that_is_no_number_is_recorded_as_none(vectors: Federation):
    data = spoiled(vectors, "a")
    made = plan(fedavg(), data)
    replica = Replica(made.initial_model, made.method)
    first = score_client(made, replica, data.clients[0], initial_state(made))[0]
    assert (first.metric, first.value) == ("loss", None)


def regression(scale: float) -> Federation:
    """Two clients whose targets are numbers of this size."""
    made = []
    for client in federation(20, 20).clients:
        y = scale * client.train.x[:, :1]
        tests = {name: Split(test.x, scale * test.x[:, :1]) for name, test in client.tests.items()}
        made.append(replace(client, train=Split(client.train.x, y), tests=tests))
    return Federation("numbers", tuple(made), ("price",))


@pytest.mark.parametrize("scale", [1e4, 1e12])
def test_divergence_on_large_targets_names_the_targets(scale: float):
    data = regression(scale)
    made = replace(
        plan(fedavg(), data, lambda: nn.Linear(3, 1), lr=0.1, local_epochs=20),
        task=regression_task(),
    )
    with pytest.raises(TooFewClients, match=r"its training diverged: targets reach .*standardise"):
        done(made)


@pytest.mark.parametrize("engine", ["plain", "batched"])
def test_divergence_by_the_learning_rate_names_the_learning_rate(engine: str):
    made = replace(plan(fedbn(), federation(20, 20), lr=1e6, local_epochs=20), engine=engine)
    with (
        closing(make_crew(made, 1)) as crew,
        pytest.raises(TooFewClients, match=r"diverged: training.lr = 1e\+06 is too large") as told,
    ):
        done(made, crew.train)
    assert "running_var" not in str(told.value)
