"""Local training: batches, steps, losses, and scoring."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fedbn.core.federation import Split
from fedbn.core.local_training import (
    ClientWork,
    PlainSGD,
    batches,
    local_train,
    make_optimizer,
)
from fedbn.core.method import Proximal
from fedbn.core.scoring import evaluate
from fedbn.core.task import CLASSIFICATION, measure
from fedbn.core.training import Training
from fedbn.errors import ModelError
from fedbn.experiments.schema import TrainingSection
from fedbn.methods.paper import fedavg
from tiny import bn_net, done, federation, plain_net, plan, same, vectors


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 40), st.none() | st.integers(2, 50), st.integers(1, 3))
def test_each_pass_covers_every_sample_once(n: int, size: int | None, passes: int):
    training = Training(batch_size=size, local_epochs=passes, last_batch="keep")
    made = list(batches(n, training.sizes(n), training.steps(n, n), draws()))
    assert sorted(torch.cat(made).tolist()) == sorted(list(range(n)) * passes)
    assert all(len(batch) > 1 for batch in made) or n == 1
    assert all(len(batch) <= (size or n) + 1 for batch in made)


@pytest.mark.shows("D04")
@pytest.mark.parametrize(
    ("n", "size", "steps", "sizes"),
    [
        (7, 3, 2, [3, 4]),  # a remainder of one joins the batch before it
        (8, 3, 3, [3, 3, 2]),
        (6, 3, 2, [3, 3]),
        (4, 3, 1, [4]),
        (3, 9, 1, [3]),  # a batch larger than the client
        (5, None, 1, [5]),  # full batch
        (3, 1, 3, [1, 1, 1]),  # asked for: legal without BatchNorm
        (1, 3, 2, [1, 1]),
        (7, 3, 5, [3, 4, 3, 4, 3]),  # steps beyond a pass begin the next
    ],
)
def test_batch_sizes(n: int, size: int | None, steps: int, sizes: list[int]):
    cut = Training(batch_size=size, last_batch="keep").sizes(n)
    assert [len(batch) for batch in batches(n, cut, steps, draws())] == sizes


def test_left_over_samples_join_the_batch_before_by_default():
    assert Training(batch_size=16).sizes(215) == [16] * 12 + [23]
    assert TrainingSection().last_batch == Training().last_batch == "merge"


@pytest.mark.parametrize(
    ("last", "n", "sizes"),
    [
        ("keep", 11, [4, 4, 3]),
        ("keep", 9, [4, 5]),
        ("merge", 11, [4, 7]),
        ("merge", 9, [4, 5]),
        ("drop", 11, [4, 4]),
        ("drop", 9, [4, 4]),
        *((last, 3, [3]) for last in ("keep", "merge", "drop")),  # less than a batch
        *((last, 8, [4, 4]) for last in ("keep", "merge", "drop")),
    ],
)
def test_what_is_left_over_is_kept_merged_or_dropped(last: str, n: int, sizes: list[int]):
    training = Training(batch_size=4, local_epochs=2, last_batch=last)  # type: ignore[arg-type]
    made = list(batches(n, training.sizes(n), training.steps(n, n), draws()))
    assert [len(batch) for batch in made] == sizes * 2
    one, other = (torch.cat(made[i : i + len(sizes)]) for i in (0, len(sizes)))
    assert len(one.unique()) == len(other.unique()) == sum(sizes)
    if last == "drop" and n > 8:
        assert {*one.tolist()} != {*other.tolist()}  # another pass leaves out others


def test_every_pass_has_an_order_of_its_own():
    first, second = batches(20, [20], 2, draws())
    assert first.tolist() != second.tolist()
    assert list(batches(5, [2, 3], 0, draws())) == []


@pytest.mark.parametrize(
    ("training", "small", "large"),
    [
        (Training(batch_size=4, local_epochs=2), 4, 10),  # 2 · 2, 2 · 5
        (Training(batch_size=4, local_epochs=2, unequal="repeat"), 10, 10),
        (Training(batch_size=4, local_steps=7), 7, 7),
        (Training(batch_size=4, local_steps=7, unequal="repeat"), 7, 7),
        (Training(batch_size=None, local_epochs=3), 3, 3),
    ],
)
def test_steps_of_a_client_of_8_beside_one_of_20(training: Training, small: int, large: int):
    assert (training.steps(8, 20), training.steps(20, 20)) == (small, large)


def test_repeating_visits_samples_again():
    """Eight samples, ten steps of four: every sample five times."""
    made = torch.cat(list(batches(8, [4, 4], 10, draws())))
    assert made.bincount().tolist() == [5] * 8


def test_training_is_the_plain_loop():
    torch.manual_seed(0)
    model, twin = bn_net(), bn_net()
    twin.load_state_dict(model.state_dict())
    data = vectors(7, 1.0, 0)
    training = Training(batch_size=3, lr=0.1)
    found = local_train(ClientWork(model, data, training, 2, draws(5)))

    sgd = torch.optim.SGD(twin.parameters(), lr=0.1)
    seen = []
    order = torch.randperm(7, generator=draws(5))
    for index in (order[:3], order[3:]):
        sgd.zero_grad()
        batch_loss = nn.functional.cross_entropy(twin(data.x[index]), data.y[index])
        batch_loss.backward()
        sgd.step()
        seen.append(float(batch_loss.detach()))
    assert all(torch.equal(a, twin.state_dict()[k]) for k, a in model.state_dict().items())
    # the mean loss is that of samples, not of batches: 3 and 4 of them
    assert found.loss == pytest.approx((3 * seen[0] + 4 * seen[1]) / 7, rel=1e-12)
    assert (found.steps, found.lr) == (2, 0.1)


class GraphOnly:
    """FedProx's term without a gradient of its own: a user's penalty."""

    label = "mine"

    def value(self, current, anchor):
        return Proximal(0.5).value(current, anchor)


def test_a_penalty_without_a_gradient_of_its_own_trains_the_same():
    one, other = (done(plan(fedavg() | p, federation(8, 6))) for p in (Proximal(0.5), GraphOnly()))
    assert not same(one.shared, done(plan(fedavg(), federation(8, 6))).shared)
    torch.testing.assert_close(one.shared.state, other.shared.state)


def test_augmentation_is_drawn_from_the_clients_generator_and_only_in_training():
    seen = []

    def augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        seen.append(len(x))
        return x + torch.randn(x.shape, generator=generator)

    data = replace(vectors(6, 1.0, 0), augment=augment)
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        work = ClientWork(plain_net(), data, Training(batch_size=3), 2, draws(1))
        losses.append(local_train(work))
    assert losses[0] == losses[1]
    evaluate(plain_net(), data)
    assert seen == [3, 3, 3, 3]


def test_only_what_asks_for_gradients_is_trained():
    model = bn_net()
    model[1].requires_grad_(False)
    before = model[1].weight.clone()
    local_train(ClientWork(model, vectors(6, 1.0, 0), Training(lr=1.0), 3, draws()))
    assert torch.equal(model[1].weight, before)
    assert int(model[1].num_batches_tracked) == 3
    assert all(p.grad is None for p in model.parameters())


def test_any_optimiser_of_torch_by_name():
    training = Training(optimizer="AdamW", optimizer_args={"weight_decay": 0.5}, lr=0.2)
    made = make_optimizer(list(plain_net().parameters()), training)
    assert type(made) is torch.optim.AdamW
    assert (made.defaults["lr"], made.defaults["weight_decay"]) == (0.2, 0.5)


def test_sgd_without_options_takes_the_steps_of_torchs_own_to_the_bit():
    first = bn_net()
    first[1].bias.requires_grad_(False)
    models = [first, copy.deepcopy(first)]
    ours = make_optimizer(list(models[0].parameters()), Training(lr=0.3))
    torchs = torch.optim.SGD(models[1].parameters(), lr=0.3)

    for step in range(3):
        x = vectors(6, 1.0, step).x
        for model, optimizer in zip(models, (ours, torchs), strict=True):
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()

    assert type(ours) is PlainSGD
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_nothing_to_train_is_said():
    with pytest.raises(ModelError, match="nothing to train"):
        make_optimizer([], Training())


class Constant(nn.Module):
    """Says class 1 with logits (0, 0.5) whatever it sees."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        return torch.tensor([0.0, 0.5]).expand(len(x), 2)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_score_by_hand(batch_size: int):
    data = Split(torch.zeros(4, 1), torch.tensor([1, 1, 1, 0]))
    score = evaluate(Constant(), data, batch_size=batch_size)
    # −log softmax: log(1 + e^0.5) − 0.5 for class 1, log(1 + e^0.5) for class 0
    base = log(1 + 2.718281828459045**0.5)
    assert score.metrics["accuracy"] == 0.75
    assert score.loss == pytest.approx(base - 0.375, rel=1e-6)


def test_scoring_changes_no_statistic():
    model = bn_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate(model, vectors(6, 1.0, 0))
    assert all(torch.equal(value, before[k]) for k, value in model.state_dict().items())


def test_groups_are_scored_by_majority():
    """The model says 1: right for the first group of three, wrong for the second of one."""
    data = Split(torch.zeros(4, 1), torch.tensor([1, 1, 1, 0]), groups=torch.tensor([8, 8, 8, 2]))
    score = evaluate(Constant(), data)
    assert score.metrics == {"accuracy": 0.75, "group_accuracy": 0.5}
    assert list(evaluate(Constant(), replace(data, groups=None)).metrics) == ["accuracy"]


def test_classification_predicts_the_largest_output():
    outputs = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    (accuracy,) = CLASSIFICATION.metrics
    assert measure(accuracy, outputs, torch.tensor([1, 0, 1])) == 1
    assert measure(accuracy, outputs, torch.tensor([1, 0, 0])) == 2 / 3
