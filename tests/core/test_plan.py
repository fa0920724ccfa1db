"""Plans: what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from fedbn.core.federation import Federation
from fedbn.core.plan import remarks
from fedbn.errors import ConfigError, ModelError
from fedbn.methods import parse_method
from fedbn.methods.paper import fedavg, fedbn
from tiny import done, federation, plain_net, plan


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: nn.Linear(3, 5), r"gives \(2, 5\) for 2 samples, but tiny has 2 classes"),
        (lambda: nn.Linear(7, 2), r"fails on inputs of shape \(2, 3\): RuntimeError: mat1 and"),
        (lambda: nn.Flatten(), "no trainable parameter"),
        (lambda: nn.LSTM(3, 2), "gives tuple for 2 samples"),
    ],
    ids=["classes", "inputs", "nothing to train", "no tensor"],
)
def test_a_model_that_does_not_fit_is_refused(build: Callable[[], nn.Module], text: str):
    with pytest.raises(ModelError, match=text):
        plan(fedavg(), federation(4), build).check()


def test_batches_of_one_are_refused_with_batchnorm_only():
    data = federation(4)
    with pytest.raises(ConfigError, match=r"batch_size = 1: BatchNorm cannot normalise one sample"):
        plan(fedavg(), data, batch_size=1).check()
    plan(fedavg(), data, lambda: nn.Linear(3, 2), batch_size=1).check()


@pytest.mark.shows("M06")
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("affine", [True, False])
def test_lazy_models_get_their_shapes_from_the_data(affine: bool, vectors: Federation):
    def lazy() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(affine=affine), nn.Linear(4, 2))

    made = plan(fedbn(), vectors, lazy)
    made.check()
    norm = made.initial_model[1]
    assert norm.running_mean.tolist() == [0] * 4
    assert int(norm.num_batches_tracked) == 0
    assert done(made).round == 2


def test_rounds_that_are_scored():
    made = plan(fedavg(), federation(4), rounds=7, evaluate_every=3)
    assert [r for r in range(1, 8) if made.evaluates(r)] == [3, 6, 7]


def test_a_client_weighs_as_much_as_its_share_of_the_largest():
    data = federation(12, 3)
    for weighting, weights in (("uniform", [1, 1]), ("examples", [1, 0.25])):
        made = plan(fedavg(), data, weighting=weighting)
        assert made.weights(data.clients) == weights
    capped = plan(fedavg(), data, weighting="examples", max_share=0.6)
    assert capped.weights(data.clients) == pytest.approx([0.375, 0.25])  # 0.6 and 0.4 of 0.625


def test_a_small_last_batch_is_pointed_out_once_with_the_key_that_decides():
    # batches of 10: 21 leaves one, 23 three, 27 seven, 28 eight; 7 is less than a batch
    data = federation(21, 23, 27, 28, 7)
    weighted = {"batch_size": 10, "weighting": "examples"}
    one, few = remarks(plan(fedbn(), data, last_batch="keep", **weighted))
    assert one == "a last batch of one sample joins the batch before it (a)"
    assert few.startswith("a last batch of 3 to 7 samples (b, c) is small for BatchNorm")
    assert "training.last_batch = 'merge'" in few
    for last in ("merge", "drop"):
        assert remarks(plan(fedbn(), data, last_batch=last, **weighted)) == []
    assert remarks(plan(fedavg(), data, plain_net, **weighted)) == []
    # two steps of ten never come to the third batch
    assert remarks(plan(fedbn(), federation(23), batch_size=10, local_steps=2)) == []


def test_unequal_clients_that_count_the_same_are_pointed_out_once() -> None:
    (said,) = remarks(plan(fedavg(), federation(21, 10), plain_net))
    assert said.startswith(
        "averaging is uniform: clients with 10 to 21 training samples count the same"
    )
    assert "training.weighting = 'examples'" in said


@pytest.mark.parametrize(
    ("method", "sizes", "training"),
    [
        ("fedavg", (20, 10), {}),  # a factor of two
        ("fedavg", (40, 10), {"weighting": "examples"}),
        ("singleset", (40, 10), {}),  # nothing is averaged
        ("centralized", (40, 10), {}),
        ("fedavg+median", (40, 10), {}),  # no mean, so no weights
        ("scaffold", (40, 10), {}),  # defined for uniform weights alone
    ],
)
def test_no_weighting_is_suggested_where_it_would_change_nothing(
    method: str, sizes: tuple[int, ...], training: dict[str, str]
) -> None:
    data, chosen = federation(*sizes), parse_method(method)
    data = data.pooled() if chosen.pooled else data
    assert remarks(plan(chosen, data, plain_net, batch_size=10, **training)) == []
