"""Scoring in pieces: whoever scores which piece, the numbers are those of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedbn.core import scoring
from fedbn.core.bn_folding import fold
from fedbn.core.engine import OneByOne
from fedbn.core.federation import Federation
from fedbn.core.metric import first_metric
from fedbn.core.replica import Replica, Speedups
from fedbn.core.rounds import Rejection
from fedbn.core.scoring import ClientScores, pieces_of, put_together, score_client, score_pieces
from fedbn.methods.paper import fedbn
from tiny import done, federation, plan


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_PART", 3)


def test_the_pieces_of_a_client_are_all_its_samples_once(vectors: Federation, small_parts: None):
    client = vectors.clients[0]
    found = pieces_of(client)
    for name, data in (("train", client.train), ("test", client.tests[client.domain])):
        taken = [i for p in found if p.split == name for i in range(p.part.start, p.part.stop)]
        assert taken == list(range(len(data)))
    assert all(0 < piece.part.stop - piece.part.start <= 3 for piece in found)


def test_pieces_scored_by_two_models_give_what_one_gives(vectors: Federation, small_parts: None):
    made = plan(fedbn(), vectors)
    state, client = done(made), vectors.clients[1]
    one, other = (Replica(made.initial_model, made.method) for _ in range(2))
    pieces = pieces_of(client)
    halves = [
        score_pieces(made, one, client, pieces[:3], state),
        score_pieces(made, other, client, pieces[3:], state),
    ]
    together = put_together(made, client, halves, state.round)
    assert isinstance(together, ClientScores)
    assert together.records == score_client(made, one, client, state)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_threads_changes_no_score(
    vectors: Federation, small_parts: None, monkeypatch: pytest.MonkeyPatch, workers: int
):
    monkeypatch.setattr("fedbn.core.engine._WORTH_LOADING", 4)
    made = plan(fedbn(), vectors)
    state = done(made)
    found = []
    for count in (1, workers):
        crew = OneByOne(made, count)
        found.append(crew.score(vectors.clients, state))
        crew.close()
    assert found[0] == found[1]
    assert not found[0][1]


def test_a_model_that_holds_a_client_follows_its_new_state(vectors: Federation):
    made = plan(fedbn(), vectors)
    client, state = vectors.clients[0], done(made)
    later = replace(state, shared=state.shared.clone())
    for vector in later.shared.vectors.values():
        vector.mul_(0.5)
    folding = Speedups(scoring=lambda model: fold(model, torch.zeros(2, 3)))
    replica = Replica(made.initial_model, made.method, speedups=folding)
    assert replica.folded
    before = score_client(made, replica, client, state)
    assert score_client(made, replica, client, later) != before
    assert score_client(made, replica, client, state) == before


def test_one_bad_piece_refuses_the_client(vectors: Federation, small_parts: None):
    made = plan(fedbn(), vectors)
    client, state = vectors.clients[0], done(made)
    replica = Replica(made.initial_model, made.method)
    good = score_pieces(made, replica, client, pieces_of(client)[:1], state)
    bad = Rejection(client.name, "cannot be scored: ValueError: odd")
    assert put_together(made, client, [good, bad], state.round) is bad


def test_a_run_that_names_no_metric_is_judged_by_accuracy():
    named = {"metrics": [{"name": "mae", "higher": False, "unit": ""}]}
    found = [
        first_metric(environment).name for environment in ({}, {"task": None}, {"task": named})
    ]
    assert found == ["accuracy", "accuracy", "mae"]


class InPlace(torch.nn.Module):
    """Writes into what it is given, as a normalisation by hand may."""

    def __init__(self, in_place: bool):
        super().__init__()
        self.norm, self.out, self.in_place = (
            torch.nn.BatchNorm1d(3),
            torch.nn.Linear(3, 2),
            in_place,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mul_(0.5).add_(1.0) if self.in_place else x * 0.5 + 1.0
        made: torch.Tensor = self.out(self.norm(x))
        return made


def test_a_model_that_writes_into_its_input_leaves_the_data_alone() -> None:
    def states(in_place: bool) -> tuple[torch.Tensor, list[object]]:
        import fedbn as product

        data = federation(8, 12)
        before = [client.train.x.clone() for client in data.clients]
        made = product.fit(data, lambda: InPlace(in_place), "fedbn", rounds=3)
        assert all(torch.equal(c.train.x, x) for c, x in zip(data.clients, before, strict=True))
        return made.state.shared.state["out.weight"], [r.value for r in made.records]

    (weight, values), (other, others) = states(True), states(False)
    assert torch.equal(weight, other)
    assert values == others
