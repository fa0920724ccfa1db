"""Which engine serves a job: by its plan alone, whatever else a run has."""

from __future__ import annotations

from typing import Any

from fedbn.experiments.configuration import checked
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import prepare
from tiny import federation


def engines(clients: int, **changes: Any) -> list[str]:
    """What the plans of a run's jobs say."""
    experiment = checked({"model": {"name": "mlp"}, "seeds": [0], "methods": ["fedbn"], **changes})
    planner = Planner(federation=federation(*[6] * clients))
    return [planner.plan(job).engine for job in prepare(experiment, planner)]


def test_many_small_clients_train_in_stacks_and_few_do_not() -> None:
    assert engines(12) == ["batched"]
    assert engines(3) == ["plain"]


def test_what_is_asked_for_is_kept() -> None:
    assert engines(12, engine="plain") == ["plain"]
    assert engines(3, engine="batched") == ["batched"]


def test_what_cannot_be_stacked_is_no_reason_against_stacks_of_the_rest() -> None:
    assert engines(12, methods=["fedbn", "centralized"]) == ["batched", "plain"]
    sweep = {"training": {"optimizer": ["SGD", "Adafactor"]}}
    assert engines(12, sweep=sweep) == ["batched", "plain"]


def test_a_rule_that_stacks_do_not_know_is_left_to_the_plain_engine_and_said_once() -> None:
    raw = {"model": {"name": "mlp"}, "seeds": [0, 1], "methods": ["fedprox", "fedbn+scaffold"]}
    planner = Planner(federation=federation(*[6] * 12))
    prepare(checked(raw), planner)
    said = "clients train one by one: stacks do not know scaffold"
    assert [text for text in planner.warnings if "stacks" in text] == [said]
