"""Models whose BatchNorm tracks no statistics are scored in one way, whoever scores."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbn.core.engine import OneByOne
from fedbn.core.federation import Client, Federation
from fedbn.core.plan import remarks
from fedbn.core.replica import Replica
from fedbn.core.rounds import initial_state
from fedbn.core.scoring import evaluate, score_client
from fedbn.core.task import CLASSIFICATION
from fedbn.errors import DataError
from fedbn.fast import make_crew
from fedbn.methods.paper import fedavg
from fedbn.trained.trained_run import predictions
from tiny import bn_net, federation, plan, vectors

SIZES = [6, 128, 130, 513, 700]  # test samples; 513 leave one beside 512


def untracked_net() -> nn.Module:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.ReLU(), nn.Linear(4, 2))


class FunctionalNorm(nn.Module):
    """BatchNorm by a function that never gets statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, self.gain, training=True)


def functional_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), FunctionalNorm(), nn.ReLU(), nn.Linear(4, 2))


def data() -> Federation:
    clients = (
        Client(f"c{n}", f"c{n}", vectors(20, 1.0, n), {f"c{n}": vectors(n, 1.0, n + 1)})
        for n in SIZES
    )
    return Federation("sizes", tuple(clients), ("left", "right"))


def test_the_score_does_not_depend_on_the_evaluation_batch_size() -> None:
    model = untracked_net()
    for n in SIZES:
        split = vectors(n, 1.0, n)
        first, *others = (evaluate(model, split, size) for size in (1, 7, 128, 1000))
        assert all(one == first for one in others)


def test_predictions_do_not_depend_on_the_chunk_and_give_the_score_of_the_run() -> None:
    model, split = untracked_net(), vectors(700, 1.0, 3)
    first, *others = (predictions(CLASSIFICATION, model, split.x, size) for size in (1, 256, 700))
    assert all((one == first).all() for one in others)
    right = (torch.from_numpy(first).argmax(dim=1) == split.y).double().mean()
    assert evaluate(model, split).metrics["accuracy"] == pytest.approx(float(right), abs=1e-12)


def test_a_function_that_normalises_by_the_batch_is_scored_in_the_same_way() -> None:
    made = plan(fedavg(), data(), functional_net)
    assert made.by_batch
    model, split = made.initial_model, vectors(513, 1.0, 3)
    assert len({evaluate(model, split, batch_size=size).loss for size in (1, 7, 128, 513)}) == 1
    (said,) = remarks(plan(fedavg(), federation(10, 10), functional_net))
    assert "batches of 128 samples" in said


def test_one_sample_cannot_be_predicted_where_the_batch_decides() -> None:
    with pytest.raises(DataError, match="one sample: BatchNorm of this model normalises by the"):
        predictions(CLASSIFICATION, untracked_net(), torch.zeros(1, 3))


@pytest.mark.parametrize("fast", [True, False])
def test_engines_and_sites_score_alike(fast: bool) -> None:
    made = plan(fedavg(), data(), untracked_net, fast=fast)
    state, replica = initial_state(made), Replica(made.initial_model, made.method)
    at_a_site = [r for c in made.federation.clients for r in score_client(made, replica, c, state)]
    for crew in (OneByOne(made, 1), OneByOne(made, 4), make_crew(made, 2)):
        with closing(crew):
            assert crew.score(made.federation.clients, state) == (at_a_site, [])


def test_a_run_says_how_such_a_model_is_scored() -> None:
    (said,) = remarks(plan(fedavg(), federation(10, 10), untracked_net))
    assert "batches of 128 samples" in said
    assert remarks(plan(fedavg(), federation(10, 10), bn_net)) == []
