"""Runs that must be equal to the last bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedbn.core.aggregation import server_momentum
from fedbn.core.federation import Federation, Split
from fedbn.core.method import Method, proximal
from fedbn.core.plan import Plan
from fedbn.core.randomness import generator
from fedbn.experiments.runner import run_plan as run
from fedbn.methods.paper import centralized, fedavg, fedbn, fedprox, silobn, singleset
from tiny import bn_net, dropout_net, federation, plain_net, plan, same, same_runs, state_of


def trained_alone(
    made: Plan, client: str, data: Split, sizes: list[int]
) -> dict[str, torch.Tensor]:
    """Plain PyTorch: a fresh SGD a round, batches in the order that the client's draws give."""
    model = copy.deepcopy(made.initial_model).train()
    for round in range(1, made.training.rounds + 1):
        sgd = torch.optim.SGD(model.parameters(), lr=made.training.lr)
        draws = generator(made.seed, "order", round, client)
        for index in torch.randperm(len(data), generator=draws).split(sizes):
            sgd.zero_grad()
            nn.functional.cross_entropy(model(data.x[index]), data.y[index]).backward()
            sgd.step()
    return model.state_dict()


def test_one_client_fedavg_is_plain_training():
    made = plan(fedavg(), federation(12), rounds=3)
    expected = trained_alone(made, "a", made.federation.clients[0].train, [5, 5, 2])
    assert same(run(made).shared, expected)


def test_singleset_is_each_client_alone():
    data = federation(12, 11, 8)
    made = plan(singleset(), data)
    state = run(made)
    assert not state.shared.state
    for client, sizes in zip(data.clients, ([5, 5, 2], [5, 6], [5, 3]), strict=True):
        expected = trained_alone(made, client.name, client.train, sizes)
        assert same(state.local[client.name], expected)


def test_centralized_is_training_on_the_pooled_data():
    data = federation(6, 8)
    made = plan(centralized(), data.pooled())
    whole = Split(*(torch.cat([getattr(c.train, n) for c in data.clients]) for n in "xy"))
    assert same(run(made).shared, trained_alone(made, "all", whole, [5, 5, 4]))


@pytest.mark.parametrize("model", [bn_net, plain_net])
def test_fedprox_without_its_term_is_fedavg(model):
    data = federation(12, 7, 9)
    zero, none = (run(plan(m, data, model, rounds=3)) for m in (fedprox(0.0), fedavg()))
    assert same_runs(zero, none)


def test_fedbn_with_a_term_of_zero_is_fedbn():
    data = federation(12, 7)
    zero, none = (run(plan(m, data)) for m in (fedbn() | proximal(0.0), fedbn()))
    assert same_runs(zero, none)


@pytest.mark.parametrize("method", [fedbn(), silobn()], ids=lambda m: m.name)
def test_without_batchnorm_all_is_fedavg(method: Method):
    data = federation(12, 7)
    made = plan(method, data, plain_net)
    made.check(allow_no_batchnorm=True)
    assert same_runs(run(made), run(plan(fedavg(), data, plain_net)))


def test_momentum_of_nothing_is_fedavg():
    """Up to rounding: w + (mean − w) is not always the mean."""
    data = federation(12, 7)
    a, b = run(plan(fedavg() | server_momentum(1.0, 0.0), data)), run(plan(fedavg(), data))
    for name, value in a.shared.state.items():
        torch.testing.assert_close(value, b.shared.state[name])


def test_weighting_equal_clients_by_examples_is_uniform(vectors: Federation):
    runs = [run(plan(fedbn(), vectors, weighting=w)) for w in ("uniform", "examples")]
    assert same_runs(*runs)


def test_weighting_unequal_clients_by_examples_is_not():
    data = federation(12, 4)
    runs = [run(plan(fedavg(), data, weighting=w, rounds=1)) for w in ("uniform", "examples")]
    # with weights 12 : 4 the result lies nearer to the first client than with 1 : 1
    first = run(plan(fedavg(), replace(data, clients=data.clients[:1]), rounds=1)).shared.state
    uniform, examples = (r.shared.state["0.weight"] for r in runs)
    torch.testing.assert_close(
        (examples - first["0.weight"]), 0.5 * (uniform - first["0.weight"]), atol=1e-6, rtol=1e-4
    )


def test_equal_clients_stay_equal_and_agree_with_one():
    """Clients with the same data and full batches differ in nothing; their mean is either."""
    one = federation(8)
    twins = tuple(replace(one.clients[0], name=name) for name in ("a", "b"))
    two = replace(one, clients=twins)
    runs = [run(plan(m, d, batch_size=None)) for m in (fedavg(), fedbn()) for d in (one, two)]
    for single, double in (runs[:2], runs[2:]):
        for name, value in state_of(double, "b").items():
            torch.testing.assert_close(value, state_of(single, "a")[name])


@pytest.mark.parametrize("model", [bn_net, plain_net, dropout_net])
@pytest.mark.parametrize("method", [fedavg(), fedbn() | proximal(0.1)], ids=lambda m: m.name)
def test_the_number_of_workers_changes_no_bit(model, method: Method):
    data = federation(12, 7, 9, 11)
    one, two = (run(plan(method, data, model, participation=0.75), workers=w) for w in (1, 2))
    assert same_runs(one, two)


def test_another_seed_is_another_run(vectors: Federation):
    first, again, other = (run(plan(fedbn(), vectors, seed=s)) for s in (0, 0, 1))
    assert same_runs(first, again)
    assert not same_runs(first, other)


def test_every_method_of_a_seed_starts_from_the_same_model(vectors: Federation):
    starts = [plan(m, vectors).initial_model.state_dict() for m in (fedavg(), fedbn(), singleset())]
    assert same(starts[0], starts[1])
    assert same(starts[0], starts[2])
