"""The reported round is scored with several kinds of BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedbn.core.bn_statistics import average_statistics, estimate_statistics
from fedbn.core.federation import Federation, Split
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import Record, RunState
from fedbn.experiments.runner import Memory, run_plan
from fedbn.methods import parse_method
from tiny import bn_net, federation, plan

KINDS = ("running", "local", "exact", "batch")


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def evaluated(
    method: str, data: Federation, model: Callable[[], nn.Module] = bn_net, **changes: object
) -> tuple[Plan, RunState, list[Record]]:
    made = plan(parse_method(method), data, model, rounds=3)
    made = replace(made, **{"final_statistics": KINDS, **changes})
    memory = Memory()
    state = run_plan(made, memory)
    return made, memory.state or state, memory.records


def accuracies(records: list[Record], kind: str, split: str = "test") -> dict[str, float | None]:
    last = max(r.round for r in records)
    asked = (last, split, "accuracy", kind)
    return {
        r.client: r.value for r in records if (r.round, r.split, r.metric, r.statistics) == asked
    }


def in_plain_torch(made: Plan, state: RunState, client: int, kind: str) -> float:
    """Score a client's model with statistics that hooks collect, without this library's code."""
    one = made.federation.clients[client]
    model = made.model()
    model.load_state_dict({**state.shared.state, **state.local[one.name].state})
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    model.eval()
    if kind in ("exact", "batch"):
        size = 128 if kind == "batch" else len(one.train)
        assert len(one.train) <= size  # one batch, so both are its mean and unbiased variance
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = 1.0
            norm.train()
        with torch.no_grad():
            model(one.train.x)
        model.eval()
    test = one.tests[one.domain]
    with torch.no_grad():
        return float((model(test.x).argmax(dim=1) == test.y).double().mean())


@pytest.mark.parametrize("engine", ["plain", "batched"])
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
@pytest.mark.parametrize("kind", ["running", "exact", "batch"])
def test_scores_agree_with_plain_torch(kind: str, method: str, engine: str) -> None:
    made, state, records = evaluated(method, federation(40, 60, 90), engine=engine)
    found = accuracies(records, kind)
    expected = [in_plain_torch(made, state, i, kind) for i in range(3)]
    assert list(found.values()) == pytest.approx(expected, abs=1e-12)


def test_dropout_is_off_while_statistics_are_computed() -> None:
    made, state, records = evaluated("fedavg", federation(40, 60), dropout_net)
    for kind in ("exact", "batch"):
        expected = [in_plain_torch(made, state, i, kind) for i in range(2)]
        assert list(accuracies(records, kind).values()) == pytest.approx(expected, abs=1e-12)


def test_augmentation_is_not_applied_while_statistics_are_computed() -> None:
    data = federation(40, 60)
    wild = [
        replace(c, train=replace(c.train, augment=lambda x, generator: 100 * x))
        for c in data.clients
    ]
    for compute in (estimate_statistics, average_statistics):
        replica = Replica(bn_net(), parse_method("fedavg"))
        compute(replica.model, data.clients[0].train)
        before = replica.statistics
        compute(replica.model, wild[0].train)
        for name, value in before.state.items():
            assert torch.equal(value, replica.statistics.state[name])


def test_labels_do_not_enter_statistics() -> None:
    split = federation(40).clients[0].train
    assert isinstance(split, Split)
    model, found = bn_net(), []
    for y in (split.y, 1 - split.y):
        replica = Replica(model, parse_method("fedavg"))
        estimate_statistics(replica.model, replace(split, y=y))
        found.append(replica.statistics)
    assert all(torch.equal(v, found[1].state[n]) for n, v in found[0].state.items())


def test_average_statistics_are_torchs_cumulative_averages() -> None:
    x = torch.randn(70, 3, generator=torch.Generator().manual_seed(0))
    ours, plain = bn_net(), bn_net()
    plain.load_state_dict(ours.state_dict())
    average_statistics(ours, x, batch_size=32)
    norm = next(module for module in plain.modules() if isinstance(module, nn.BatchNorm1d))
    norm.reset_running_stats()
    norm.momentum = None
    with torch.no_grad():
        plain.train()(x[:32])
        plain(x[32:])  # six samples are left over and join the last batch
    for name, value in plain.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name
    assert not ours.training
    assert [m.momentum for m in ours.modules() if isinstance(m, nn.BatchNorm1d)] == [0.1]


def test_the_best_round_is_evaluated_where_it_is_reported() -> None:
    data = federation(30, 30)
    valid = [replace(c, valid=c.tests[c.domain]) for c in data.clients]
    data = replace(data, clients=tuple(valid))
    made = plan(parse_method("fedavg"), data, rounds=6, lr=10.0, seed=1)
    made = replace(made, final_statistics=("running", "exact"))
    memory = Memory(keep_best=True)
    last = run_plan(made, memory, reported=memory.reported)
    assert memory.state is not None
    assert memory.state.round < last.round  # else the test shows nothing
    assert {r.round for r in memory.records if r.statistics == "exact"} == {memory.state.round}


def test_a_model_without_batchnorm_is_scored_once() -> None:
    def linear() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2))

    made = plan(parse_method("fedavg"), federation(20, 20), linear)
    assert replace(made, final_statistics=None).scored_statistics(final=True) == ("running",)


def test_a_score_that_cannot_be_computed_is_null_and_the_run_goes_on() -> None:
    """One client's model fails in statistics: it meets values that only its data has."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = bn_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training and len(x) == 61:  # a pass over all training data of client b
                raise ValueError("this pass fails")
            return self.net(x)

    data = federation(40, 61)
    made = plan(parse_method("fedavg"), data, Picky, rounds=2)
    made = replace(made, final_statistics=("running", "exact"), score_train=False)
    memory, notes = Memory(), []
    run_plan(made, memory, lambda event: notes.append(event.text))
    assert accuracies(memory.records, "exact")["b"] is None
    assert accuracies(memory.records, "exact")["a"] is not None
    assert accuracies(memory.records, "running")["b"] is not None
    assert any(text.startswith("exact statistics of b: ") for text in notes)


def test_the_default_is_batch_where_exact_statistics_cost_over_five_per_cent() -> None:
    data = federation(600, 600)
    short, long = (
        replace(plan(parse_method("fedavg"), data, rounds=n), final_statistics=None)
        for n in (5, 40)
    )
    assert short.scored_statistics(final=True) == ("running", "local", "batch")
    assert long.scored_statistics(final=True) == ("running", "local", "exact")
    assert long.exact_share < 0.05 < short.exact_share


def test_kinds_can_be_scored_in_every_round() -> None:
    made = plan(parse_method("fedavg"), federation(20, 20), rounds=3)
    memory = Memory()
    run_plan(replace(made, statistics=("running", "exact", "local")), memory)
    for kind in ("running", "exact", "local"):
        assert {r.round for r in memory.records if r.statistics == kind} == {1, 2, 3}
