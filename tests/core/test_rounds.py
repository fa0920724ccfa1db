"""The round: who takes part, who keeps what, and what is exchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedbn.core.aggregation import server_adam
from fedbn.core.federation import Federation
from fedbn.core.method import Method, ServerState
from fedbn.core.replica import Replica
from fedbn.core.rounds import initial_state, record, run_round, select_clients
from fedbn.core.scoring import score_client
from fedbn.methods.paper import fedavg, fedbn, fedprox, silobn
from tiny import Trainer, bn_net, done, federation, plan, same


@pytest.mark.parametrize(
    ("clients", "share", "least", "wanted"),
    [
        (3, 1.0, 1, 3),
        (3, 1 / 3, 1, 1),
        (3, 0.34, 1, 2),
        (3, 0.01, 1, 1),
        (3, 0.01, 2, 2),
        (20, 0.55, 1, 11),  # 0.55 · 20 is 11.000000000000002 in floats
        (100, 0.07, 1, 7),
    ],
)
def test_how_many_take_part(clients: int, share: float, least: int, wanted: int):
    made = plan(fedavg(), federation(*[2] * clients), participation=share, min_clients=least)
    chosen = select_clients(made, 1)
    assert len(chosen) == wanted
    names = [client.name for client in made.federation.clients]
    assert [c.name for c in chosen] == [n for n in names if n in {c.name for c in chosen}]


def test_who_takes_part_follows_from_seed_and_round_alone():
    data = federation(*[2] * 10)
    draws = [
        [
            [c.name for c in select_clients(plan(m, data, seed=s, participation=0.3), r)]
            for r in range(9)
        ]
        for m, s in ((fedavg(), 0), (fedbn(), 0), (fedavg(), 1))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert {name for names in draws[0] for name in names} == set("abcdefghij")


def test_a_record_says_with_which_statistics_a_client_was_scored(vectors: Federation):
    made, client = plan(fedbn(), vectors), vectors.clients[0]
    usual = record(made, 1, client, "test", "loss", 0.5)
    exact = record(made, 1, client, "test", "loss", 0.5, statistics="exact")
    assert (usual.statistics, exact.statistics) == ("running", "exact")
    assert replace(exact, statistics="running") == usual


@pytest.mark.shows("F35")
def test_local_parts_are_merged_never_replaced(vectors: Federation):
    """Who was away comes back with its own BatchNorm; who never trained, with the first."""
    made = plan(fedbn(), vectors, rounds=8, participation=1 / 3)
    trainer, state = Trainer(made), initial_state(made)
    newest = dict(state.local)
    for round in range(1, 9):
        (chosen,) = select_clients(made, round)
        result = run_round(made, state, trainer)
        state = result.state
        name, started_from = trainer.started[-1]
        assert name == chosen.name
        assert same(started_from, newest[name])
        newest[name] = result.accepted[name].local
        assert all(state.local[client] is newest[client] for client in "abc")
    names = [name for name, _ in trainer.started]
    away = [names[i + 1 :].index(name) for i, name in enumerate(names) if name in names[i + 1 :]]
    assert max(away) >= 2  # someone was away for at least two rounds, and came back
    assert len(set(names)) == 3


@pytest.mark.shows("F36")
def test_a_client_that_joins_late_starts_from_the_initial_local_part(vectors: Federation):
    made = plan(fedbn(), vectors, participation=1 / 3, rounds=4)
    first = initial_state(made)
    late = next(c.name for c in vectors.clients if c != select_clients(made, 1)[0])
    state = run_round(made, first, Trainer(made)).state
    assert same(state.local[late], first.local[late])
    assert not same(state.shared, first.shared)


@pytest.mark.shows("F37")
def test_a_client_that_leaves_for_good_keeps_what_it_had(vectors: Federation):
    made = plan(fedbn(), vectors)
    state = run_round(made, initial_state(made), Trainer(made)).state
    left = replace(made, federation=replace(vectors, clients=vectors.clients[:2]))
    after = run_round(left, state, Trainer(left)).state
    assert same(after.local["c"], state.local["c"])
    assert after.round == 2


def test_a_round_changes_nothing_it_was_given(vectors: Federation):
    made = plan(fedbn() | server_adam(), vectors)
    state = initial_state(made)
    copies = state.shared.clone(), state.local["a"].clone()
    run_round(made, state, Trainer(made))
    assert same(state.shared, copies[0])
    assert same(state.local["a"], copies[1])
    assert state.server == ServerState()


@pytest.mark.parametrize(
    ("method", "local"),
    [
        (fedavg(), set()),
        (fedprox(), set()),
        (silobn(), {"1.running_mean", "1.running_var", "1.num_batches_tracked"}),
        (
            fedbn(),
            {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"},
        ),
    ],
    ids=["fedavg", "fedprox", "silobn", "fedbn"],
)
def test_only_the_shared_part_is_shared(method: Method, local: set[str], vectors: Federation):
    state = done(plan(method, vectors))
    everything = set(bn_net().state_dict())
    assert set(state.shared.state) == everything - local
    assert all(set(part.state) == local for part in state.local.values())
    if local:
        assert not same(state.local["a"], state.local["b"])


def test_fedavg_shares_the_statistics_of_batchnorm(vectors: Federation):
    """The mean of three clients' running means, whose features differ by factors of four."""
    made = plan(fedavg(), vectors, rounds=1)
    updates = Trainer(made)(vectors.clients, initial_state(made))
    state = done(made)
    for name in ("1.running_mean", "1.running_var"):
        mean = sum(u.shared.state[name] for u in updates) / 3
        torch.testing.assert_close(state.shared.state[name], mean)


def test_counters_take_the_maximum():
    # batches of 5: 12 samples are three, 7 are two
    state = done(plan(fedavg(), federation(12, 7), rounds=2))
    counter = state.shared.state["1.num_batches_tracked"]
    assert (int(counter), counter.dtype) == (6, torch.int64)


def test_fedprox_pulls_towards_what_was_received(vectors: Federation):
    start = initial_state(plan(fedavg(), vectors)).shared.state["0.weight"]
    moved = [
        float((done(plan(fedprox(mu), vectors, rounds=1)).shared.state["0.weight"] - start).norm())
        for mu in (0.0, 1.0, 9.0)
    ]
    assert moved[0] > moved[1] > moved[2]


def test_scores_are_of_the_joined_model_on_each_domain():
    data = federation(12, 12).pooled()
    made = plan(fedavg(), data, rounds=1)
    replica = Replica(made.initial_model, made.method)
    records = score_client(made, replica, data.clients[0], done(made))
    rows = [(r.client, r.domain, r.split, r.metric) for r in records]
    assert rows == [
        ("all", domain, split, metric)
        for split, domain in (("train", "all"), ("test", "domain a"), ("test", "domain b"))
        for metric in ("loss", "accuracy")
    ]
    assert all(
        (r.method, r.setting, r.seed, r.round) == ("fedavg", "default", 0, 1) for r in records
    )
