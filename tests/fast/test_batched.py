"""Stacks against the plain engine: the same training, up to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedbn.core.engine import OneByOne
from fedbn.core.federation import Federation, Split
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, Rejection, RunState, initial_state, run_round
from fedbn.core.selectors import local
from fedbn.core.task import CLASSIFICATION
from fedbn.core.training import Training
from fedbn.experiments.runner import Memory, run_plan as run
from fedbn.fast.stacked_models import unstackable
from fedbn.fast.stacked_training import ROW_BY_ROW, Stacks, stack_size, unbatchable
from fedbn.methods import parse_method
from fedbn.tasks.metrics import METRICS
from tiny import bn_net, federation

UNEQUAL = (12, 7, 16, 9)  # with batches of 5: remainders of 2, 2, 1 (joined) and 4


def doubled(data: Federation) -> Federation:
    """The same data in float64."""
    clients = tuple(
        replace(
            c,
            train=Split(c.train.x.double(), c.train.y),
            tests={d: Split(t.x.double(), t.y) for d, t in c.tests.items()},
        )
        for c in data.clients
    )
    return replace(data, clients=clients)


def both(plan: Plan) -> tuple[tuple[RunState, list[Record]], tuple[RunState, list[Record]]]:
    found = []
    for engine in ("plain", "batched"):
        memory = Memory()
        found.append((run(replace(plan, engine=engine), memory), memory.records))
    return found[0], found[1]


def distance(a: RunState, b: RunState) -> float:
    """The largest difference of any number; of one above 1, as a share of it."""
    parts = [(a.shared, b.shared), *((a.local[c], b.local[c]) for c in a.local)]
    pairs = [(x.state[k].double(), y.state[k].double()) for x, y in parts for k in x.state]
    return max(float(((x - y).abs() / x.abs().clamp(min=1)).max()) for x, y in pairs)


def float64_net() -> nn.Module:
    return bn_net().double()


@pytest.mark.parametrize("sizes", [(10, 10, 10), UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("spec", ["fedbn", "fedavg", "fedprox(0.5)", "silobn", "singleset"])
def test_equal_to_the_plain_engine_after_five_rounds(spec, epochs, sizes):
    training = Training(rounds=5, local_epochs=epochs, batch_size=5, lr=0.1)
    plan = Plan(parse_method(spec), doubled(federation(*sizes)), float64_net, training)

    (plain, numbers), (batched, stacked_numbers) = both(plan)

    assert distance(plain, batched) < 1e-9
    assert len(numbers) == len(stacked_numbers)
    for a, b in zip(numbers, stacked_numbers, strict=True):
        assert replace(a, value=0.0) == replace(b, value=0.0)
        assert a.value == pytest.approx(b.value, abs=1e-9)


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer_args": {"momentum": 0.9, "weight_decay": 0.01}},
        {"batch_size": None},
        {"local_steps": 2},
        {"unequal": "repeat"},
        {"last_batch": "merge"},
        {"last_batch": "drop"},
        {"participation": 0.5},
        {"weighting": "examples"},
    ],
    ids=lambda training: next(iter(training)),
)
def test_equal_for_every_way_of_training(training):
    chosen = Training(**{"rounds": 4, "batch_size": 5, "lr": 0.1, **training})
    plan = Plan(parse_method("fedbn"), doubled(federation(*UNEQUAL)), float64_net, chosen)

    (plain, _), (batched, _) = both(plan)

    assert distance(plain, batched) < 1e-9


@pytest.mark.shows("M02", "M03", "M04")
@pytest.mark.parametrize(
    "norm",
    [
        {"momentum": None},
        {"affine": False},
        {"track_running_stats": False},
    ],
    ids=lambda norm: next(iter(norm)),
)
def test_equal_for_every_kind_of_batch_norm(norm):
    def build() -> nn.Module:
        layers = (nn.Linear(3, 4), nn.BatchNorm1d(4, **norm), nn.Tanh(), nn.Linear(4, 2))
        return nn.Sequential(nn.Flatten(), nn.Sequential(*layers)).double()

    training = Training(rounds=3, batch_size=5, lr=0.1)
    plan = Plan(parse_method("fedavg"), doubled(federation(*UNEQUAL)), build, training)

    (plain, _), (batched, _) = both(plan)

    assert distance(plain, batched) < 1e-9


def test_equal_in_float32_after_one_step():
    training = Training(rounds=1, local_steps=1, batch_size=5, lr=0.1)
    plan = Plan(parse_method("fedbn"), federation(*UNEQUAL), bn_net, training)

    (plain, _), (batched, _) = both(plan)

    assert distance(plain, batched) < 1e-5


def test_workers_change_no_bit(monkeypatch):
    monkeypatch.setattr("fedbn.fast.stacked_training.stack_size", lambda plan: 2)
    training = Training(rounds=2, batch_size=5, lr=0.1)
    plan = Plan(parse_method("fedbn"), federation(*UNEQUAL), bn_net, training, engine="batched")

    one, two = run(plan, workers=1), run(plan, workers=2)

    assert distance(one, two) == 0


def test_a_client_that_fails_is_named_and_the_others_train():
    data = federation(8, 8, 8)
    broken = replace(data.clients[1], train=Split(data.clients[1].train.x, torch.full((8,), 9)))
    data = replace(data, clients=(data.clients[0], broken, data.clients[2]))
    training = Training(rounds=1, batch_size=4)
    plan = Plan(parse_method("fedbn"), data, bn_net, training, engine="batched")
    crew = Stacks(plan, 1)

    result = run_round(plan, initial_state(plan), crew.train)
    state = result.state
    crew.close()

    assert [*result.rejected] == ["b"]
    assert sorted(result.accepted) == ["a", "c"]
    assert state.shared.unusable() is None


def test_a_nan_of_one_client_stays_its_own():
    data = federation(8, 8)
    poisoned = data.clients[0].train.x.clone()
    poisoned[0] = float("nan")
    bad = replace(data.clients[0], train=Split(poisoned, data.clients[0].train.y))
    data = replace(data, clients=(bad, data.clients[1]))
    training = Training(rounds=1, batch_size=4)
    plan = Plan(parse_method("fedavg"), data, bn_net, training, engine="batched")
    crew = Stacks(plan, 1)

    outcomes = list(crew.train(data.clients, initial_state(plan)))
    crew.close()

    assert isinstance(outcomes[0], Rejection)
    assert not isinstance(outcomes[1], Rejection)


ADAM = {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.01, "maximize": True}
TRIED = {
    "SGD": [
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "maximize": True},
        {"momentum": 0.9, "dampening": 0.5},
    ],
    "Adam": [{**ADAM, "amsgrad": True, "decoupled_weight_decay": True}],
    "AdamW": [{**ADAM, "amsgrad": True}],
    "Adamax": [ADAM],
    "NAdam": [{**ADAM, "momentum_decay": 0.01, "decoupled_weight_decay": True}],
    "RAdam": [{**ADAM, "decoupled_weight_decay": True}],
    "Adagrad": [
        {
            "lr_decay": 0.1,
            "weight_decay": 0.01,
            "initial_accumulator_value": 0.1,
            "eps": 1e-6,
            "maximize": True,
        }
    ],
    "Adadelta": [{"rho": 0.8, "eps": 1e-4, "weight_decay": 0.01, "maximize": True}],
    "RMSprop": [
        {
            "alpha": 0.9,
            "eps": 1e-6,
            "weight_decay": 0.01,
            "momentum": 0.9,
            "centered": True,
            "maximize": True,
        }
    ],
    "Rprop": [{"etas": (0.4, 1.3), "step_sizes": (1e-4, 1.0), "maximize": True}],
    "ASGD": [{"lambd": 0.01, "alpha": 0.5, "t0": 2.0, "weight_decay": 0.01, "maximize": True}],
}


def optimised(name: str, options: dict[str, object], factor: float = 1.0) -> Plan:
    """A plan for an optimiser; the first client's samples are `factor` times as large."""
    data = doubled(federation(*UNEQUAL))
    first = replace(
        data.clients[0], train=Split(factor * data.clients[0].train.x, data.clients[0].train.y)
    )
    training = Training(rounds=1, batch_size=5, lr=0.01, optimizer=name, optimizer_args=options)

    def build() -> nn.Module:  # no bias before BatchNorm: its gradient is rounding alone
        layers = (nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        return nn.Sequential(*layers).double()

    method = parse_method("singleset")
    data = replace(data, clients=(first, *data.clients[1:]))
    return Plan(method, data, build, training, engine="batched")


def apart(a: RunState, b: RunState, client: str) -> float:
    """The largest difference of a client's numbers."""
    one, two = a.local[client].state, b.local[client].state
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_no_optimiser_that_is_stacked_mixes_clients(name):
    assert {key for options in TRIED[name] for key in options} == ROW_BY_ROW[name]
    for options in ({}, *TRIED[name]):
        plan = optimised(name, options)
        assert unbatchable(plan) is None

        (plain, _), (batched, _) = both(plan)
        other = run(optimised(name, options, factor=100.0))

        assert distance(plain, batched) < 1e-7
        assert apart(batched, other, "a") > 0
        assert [apart(batched, other, client) for client in "bcd"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("Adafactor", {}, "training.optimizer is Adafactor, legal here are SGD, Adam, "),
        ("Muon", {}, "training.optimizer is Muon"),
        ("Adam", {"fused": True}, "training.optimizer_args has fused"),
    ],
)
def test_other_optimisers_are_left_to_the_plain_engine(name, options, reason):
    assert unbatchable(optimised(name, options)).startswith(reason)


def test_what_cannot_be_stacked_is_said():
    shared = nn.BatchNorm1d(4)
    assert "Dropout" in unstackable(nn.Sequential(nn.Linear(3, 4), nn.Dropout()))
    assert "tied" in unstackable(nn.Sequential(nn.Linear(3, 4), shared, shared))
    assert "not an nn.Sequential" in unstackable(nn.Linear(3, 4))
    assert "no running" in unstackable(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    )
    hooked = [nn.Sequential(nn.Linear(3, 4)) for _ in range(4)]
    hooked[0][0].register_forward_hook(lambda module, given, made: 2 * made)
    hooked[1].register_forward_pre_hook(lambda module, given: None)
    hooked[2][0].register_full_backward_hook(lambda module, given, made: None)
    hooked[3][0].weight.register_hook(lambda slope: slope.clamp(-1, 1))
    assert {unstackable(model) for model in hooked} == {"a module or a parameter has a hook"}
    plan = Plan(parse_method("fedbn"), federation(8, 8), bn_net, Training(device="cuda"))
    assert "device" in unbatchable(plan)


def test_a_selector_by_name_is_stacked_too():
    method = parse_method("fedbn") | local("3.*")
    training = Training(rounds=3, batch_size=5, lr=0.1)
    plan = Plan(method, doubled(federation(*UNEQUAL)), float64_net, training)

    (plain, _), (batched, _) = both(plan)

    assert distance(plain, batched) < 1e-9


def test_an_activation_used_twice_is_applied_twice():
    def build() -> nn.Module:
        act = nn.Tanh()
        layers = (nn.Linear(3, 4), nn.BatchNorm1d(4), act, nn.Linear(4, 4), act, nn.Linear(4, 2))
        return nn.Sequential(*layers).double()

    training = Training(rounds=2, batch_size=5, lr=0.1)
    plan = Plan(parse_method("fedbn"), doubled(federation(*UNEQUAL)), build, training)

    (plain, _), (batched, _) = both(plan)

    assert distance(plain, batched) < 1e-9


def test_stacks_are_of_equal_size():
    plan = Plan(parse_method("fedbn"), federation(*[4] * 10), bn_net, Training())
    assert stack_size(plan) == 10


def test_however_many_steps_are_gathered_at_once_the_bits_are_the_same(monkeypatch):
    monkeypatch.setattr("fedbn.fast.stacked_training.stack_size", lambda plan: 4)
    training = Training(rounds=2, local_epochs=3, batch_size=5, lr=0.1)
    plan = Plan(parse_method("fedbn"), federation(*UNEQUAL), bn_net, training, engine="batched")

    many = run(plan)
    monkeypatch.setattr("fedbn.fast.stacked_training._BATCH_NUMBERS", 1)
    one = run(plan)

    assert distance(many, one) == 0


@pytest.mark.parametrize("sizes", [(10, 10, 10), UNEQUAL], ids=["equal", "unequal"])
def test_samples_gathered_at_once_are_those_of_each_client(sizes, monkeypatch):
    training = Training(rounds=2, batch_size=5, lr=0.1, participation=0.75)
    plan = Plan(parse_method("fedbn"), federation(*sizes), bn_net, training, engine="batched")

    together = run(plan)
    monkeypatch.setattr("fedbn.fast.stacked_training._COPIED_BYTES", 0)
    apart = run(plan)

    assert distance(together, apart) == 0


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "made anew"])
@pytest.mark.parametrize("sizes", [(10, 10, 10), UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("metrics", [("accuracy",), ("accuracy", "macro_f1")], ids=len)
def test_scores_of_a_stack_are_those_of_each_client(metrics, sizes, kept, monkeypatch):
    if not kept:
        monkeypatch.setattr("fedbn.fast.stacked_training._COPIED_BYTES", 0)
    data = doubled(federation(*sizes))
    first = data.clients[0]
    grouped = replace(first.train, groups=torch.arange(len(first.train)) // 2)
    one = replace(first, train=replace(grouped, y=torch.zeros_like(grouped.y)), valid=first.train)
    data = replace(data, clients=(one, *data.clients[1:]))
    task = replace(CLASSIFICATION, metrics=tuple(METRICS[name] for name in metrics))
    training = Training(rounds=3, batch_size=5, lr=0.1)
    plan = Plan(parse_method("fedbn"), data, float64_net, training, task=task)

    plain, stacked = ([{**vars(r)} for r in records] for _, records in both(plan))

    assert {r["metric"] for r in plain} >= {*metrics, "loss", "group_accuracy"}
    values = [[r.pop("value") for r in records] for records in (plain, stacked)]
    assert plain == stacked
    assert values[0] == pytest.approx(values[1], abs=1e-12)


def test_an_absurd_update_in_a_stack_is_refused_as_it_is_alone():
    data = federation(8, 8, 8)
    far = replace(data.clients[1], train=Split(1e7 * data.clients[1].train.x, torch.ones(8).long()))
    data = replace(data, clients=(data.clients[0], far, data.clients[2]))
    training = Training(rounds=1, batch_size=4, lr=0.1)
    plan = Plan(parse_method("fedavg"), data, lambda: nn.Sequential(nn.Linear(3, 2)), training)

    refused = []
    for crew in (Stacks(plan, 1), OneByOne(plan, 1)):
        result = run_round(plan, initial_state(plan), crew.train)
        crew.close()
        refused.append([*result.rejected.values()])

    assert [refusal.client for refusal in refused[0]] == ["b"]
    assert "moves the model by" in refused[0][0].reason
    assert refused[0][0].client == refused[1][0].client
