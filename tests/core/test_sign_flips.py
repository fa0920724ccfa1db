"""A client that sends the opposite of what it learnt: what the aggregators make of it.

Five domains of digits, FedBN, one client hostile from the first round on; the accuracy is that of
the other four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from fedbn.core.federation import Client, Federation
from fedbn.core.plan import Plan
from fedbn.core.replica import Replica
from fedbn.core.rounds import Outcome, RunState, Train, Update, initial_state, run_round
from fedbn.core.scoring import score_client
from fedbn.datasets.digits_mini import digits_mini
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.experiments.planner import Planner
from tiny import Trainer

ROUNDS = 8


@cache
def digits() -> Federation:
    """The five domains, with fewer test samples."""
    data = digits_mini()

    def cut(client: Client) -> Client:
        tests = {d: t.take(torch.arange(100)) for d, t in client.tests.items()}
        return replace(client, tests=tests)

    return replace(data, clients=tuple(map(cut, data.clients)))


def plan_of(method: str) -> Plan:
    training = {"rounds": ROUNDS, "local_steps": 8}
    raw = {"methods": [method], "training": training, "model": {"name": "small_cnn"}}
    return Planner(federation=digits()).plan(jobs(checked(raw))[0])


def flipping(plan: Plan, factor: float) -> Train:
    """The last client's step points the other way, and is `factor` times as long."""
    trainer, bad = Trainer(plan), plan.federation.clients[-1].name

    def train(chosen: Sequence[Client], state: RunState) -> list[Outcome]:
        outcomes = trainer(chosen, state)
        for outcome in outcomes:
            if isinstance(outcome, Update) and outcome.client == bad:
                for group, vector in outcome.shared.vectors.items():
                    if group.trainable:
                        before = state.shared.vectors[group]
                        vector.copy_(before - factor * (vector - before))
        return outcomes

    return train


@cache
def accuracy(method: str, factor: float | None) -> float:
    """The mean test accuracy of the honest clients; without a factor nobody is hostile."""
    plan = plan_of(method)
    train = Trainer(plan) if factor is None else flipping(plan, factor)
    state, replica = initial_state(plan), Replica(plan.initial_model, plan.method)
    for _ in range(ROUNDS):
        state = run_round(plan, state, train).state
    scores = [
        record.value
        for client in plan.federation.clients[:-1]
        for record in score_client(plan, replica, client, state)
        if (record.split, record.metric, record.domain) == ("test", "accuracy", client.domain)
    ]
    return sum(scores) / len(scores)


def test_the_plain_mean_is_carried_away() -> None:
    assert accuracy("fedbn", 10) < accuracy("fedbn", None) - 0.3


@pytest.mark.shows("F29")
@pytest.mark.parametrize("rule", ["median", "trimmed(0.2)", "multikrum(1)"])
def test_a_robust_aggregator_stays_near_the_clean_accuracy(rule: str) -> None:
    assert accuracy(f"fedbn+{rule}", 10) > accuracy("fedbn", None) - 0.1
