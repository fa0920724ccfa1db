"""Who is scored, and on what: `evaluation.clients`, `evaluation.train`; and where batches go."""

from __future__ import annotations

import pytest
import torch

from fedbn.core.federation import Federation, Split
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record, select_clients
from fedbn.core.training import Training
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import Memory, run_plan
from fedbn.methods import parse_method
from tiny import bn_net, federation

TRAINING = Training(rounds=3, batch_size=4, participation=0.5)


def ran(engine: str, **how: bool) -> tuple[Plan, list[Record]]:
    data = federation(8, 8, 8, 8)
    plan = Plan(parse_method("fedbn"), data, bn_net, TRAINING, engine=engine, **how)  # type: ignore[arg-type]
    memory = Memory()
    run_plan(plan, memory)
    return plan, memory.records


@pytest.mark.parametrize("engine", ["plain", "batched"])
def test_only_those_that_take_part_are_scored_and_at_the_end_all(engine: str) -> None:
    plan, records = ran(engine, score_all=False)
    for round in (1, 2, 3):
        tested = {r.client for r in records if (r.round, r.split) == (round, "test")}
        part = {client.name for client in select_clients(plan, round)}
        assert tested == (set("abcd") if round == 3 else part)


@pytest.mark.parametrize("engine", ["plain", "batched"])
def test_who_is_scored_and_on_what_changes_no_number(engine: str) -> None:
    _, whole = ran(engine)
    _, less = ran(engine, score_all=False, score_train=False)
    kept = set(less)
    assert [record for record in whole if record in kept] == less
    assert {r.metric for r in less if r.split == "train"} <= {"training_loss", "untrained"}
    assert {r.metric for r in less if r.split == "test"} == {"loss", "accuracy"}


def many(count: int) -> Federation:
    return federation(*[4] * count)


@pytest.mark.parametrize(
    ("count", "asked", "everyone"),
    [
        (12, {}, False),
        (5, {}, True),
        (12, {"clients": "all"}, True),
        (5, {"clients": "taking part"}, False),
    ],
)
def test_many_clients_are_not_all_scored_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, count: int, asked: dict[str, str], everyone: bool
) -> None:
    monkeypatch.setattr("fedbn.experiments.planner._MANY", 10)
    planner = Planner(many(count), bn_net)
    raw = {"methods": ["fedavg"], "seeds": [0], "evaluation": asked}
    plan = planner.plan(jobs(checked(raw))[0])
    assert plan.score_all is everyone
    said = any("those that take part are scored, all at the end" in t for t in planner.warnings)
    assert said is (not everyone and not asked)


def test_rounds_that_are_compared_need_all_clients() -> None:
    raw = {"evaluation": {"clients": "taking part", "report": "best", "validation": 0.2}}
    with pytest.raises(ConfigError, match="excludes choosing on validation data"):
        checked(raw)


def test_samples_stay_where_they_are_and_batches_go_to_the_device() -> None:
    """A device without memory stands for a GPU: what was moved there is gone."""
    pixels = torch.arange(12, dtype=torch.uint8).view(4, 3)
    split = Split(pixels, torch.tensor([0, 1, 0, 1])).to("meta")
    x, y = split.batch(torch.tensor([2, 0]))
    assert (x.device.type, y.device.type, x.shape) == ("meta", "meta", (2, 3))
    assert split.x is pixels
    assert split.take(torch.tensor([1])).device.type == "meta"
    assert split.to("cpu").batch(slice(0, 1))[0][0, 0] == -1.0
