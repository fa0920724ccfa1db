"""How much of an update the last batch is: predicted, measured in the real loop, and bounded."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from torch import Tensor, nn

pytest.importorskip("flwr", reason="flwr is not installed")

import fedbn.core.method
import fedbn.methods
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.local_training import ClientWork, batches, local_train
from fedbn.core.method import ProximalGradient
from fedbn.core.plan import Plan
from fedbn.core.rule import Rule
from fedbn.core.training import Training
from fedbn.errors import ConfigError
from fedbn.experiments.planner import training_of
from fedbn.experiments.schema import Experiment, TrainingSection
from fedbn.flower.policy import Policy
from fedbn.flower.update_bounds import (
    ANY_BATCH,
    DECISIONS,
    LAST_BATCH,
    OPTIMIZERS,
    RULES,
    Numbers,
    Pair,
    batch_counts,
    forbidden,
    group_of,
)
from fedbn.methods import parse_method


def one_round(**options: Any) -> Training:
    """Return a training of one round with batches of 32 unless said otherwise."""
    return Training(**{"rounds": 1, "batch_size": 32, **options})


ALLOWED = list(OPTIMIZERS)
SEED = 3


def plan_for(training: Training, count: int, method: str = "fedavg") -> Plan:
    split = Split(torch.ones(count, 1), torch.arange(count) % 2)
    data = Federation("ones", (Client("a", "a", split, {"a": split}),), ("p", "q"))
    return Plan(parse_method(method), data, lambda: nn.Linear(1, 2), training, seed=SEED)


def batches_of(training: Training, count: int) -> list[Tensor]:
    """Return the samples of each batch of one pass, as the local training draws them."""
    sizes = training.sizes(count)
    return list(batches(count, sizes, len(sizes), torch.Generator().manual_seed(SEED)))


def trained(training: Training, data: Split, steps: int, mu: float, **options: Any) -> Tensor:
    """Return how far the real local training moves the weights of a linear model."""
    model = nn.Linear(data.x.shape[1], 2, bias=False)
    nn.init.zeros_(model.weight)
    anchor = [model.weight.detach().clone()]
    pull = ProximalGradient(mu, [model.weight], anchor)
    draws = torch.Generator().manual_seed(SEED)
    local_train(ClientWork(model, data, training, steps, draws, changes=[pull], **options))
    return model.weight.detach().double()


def measured_apart(training: Training, count: int, mu: float = 0.0) -> Tensor:
    """Return each batch's movement in one pass, where every batch has a weight of its own."""
    order = batches_of(training, count)
    inputs = torch.zeros(count, len(order))
    for number, batch in enumerate(order):
        inputs[batch, number] = 1.0
    data = Split(inputs, torch.zeros(count, dtype=torch.int64))
    return trained(training, data, len(order), mu).abs().sum(dim=0)


def signed(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is 1 or -1 for every sample, wherever the weights are."""
    return (outputs[:, 0] * (2.0 * targets - 1.0)).mean()


def measured_together(training: Training, count: int, mu: float = 0.0) -> Tensor:
    """Return each batch's movement where all train one weight with gradients of one size.

    That is what the update changes by, if the gradient of that batch alone changes its sign.
    """
    order = batches_of(training, count)

    def update(flipped: Tensor | None) -> Tensor:
        targets = torch.ones(count, dtype=torch.int64)
        if flipped is not None:
            targets[flipped] = 0
        data = Split(torch.ones(count, 1), targets)
        return trained(training, data, len(order), mu, loss=signed)[0, 0]

    whole = update(None)
    return torch.stack([(whole - update(batch)).abs() / 2 for batch in order])


def relative(moved: Tensor, sizes: Sequence[int]) -> Tensor:
    samples = torch.tensor(sizes, dtype=torch.float64)
    return (moved / moved.sum()) / (samples / samples.sum())


def corners(name: str) -> Iterator[dict[str, Any]]:
    """Every combination of the ends of the ranges, implementation flags left out."""
    flags = ("lr", "foreach", "fused", "maximize", "capturable", "differentiable")
    own = {key: allowed for key, allowed in OPTIMIZERS[name].items() if key not in flags}
    ends: dict[str, list[Any]] = {}
    for key, allowed in own.items():
        if isinstance(allowed, Numbers):
            ends[key] = [allowed.low, allowed.high]
        elif isinstance(allowed, Pair):
            first, second = allowed.first, allowed.second
            ends[key] = [(a, b) for a in (first.low, first.high) for b in (second.low, second.high)]
        elif key != "decoupled_weight_decay":  # without weight decay, or set by torch's class
            ends[key] = list(allowed.values)
    for values in itertools.product(*ends.values()):
        found = dict(zip(ends, values, strict=True))
        if not (found.get("nesterov") and not found["momentum"]):  # torch refuses that
            yield found


SHAPES = (  # samples, batch size, what is done with those left over
    (14, 4, "keep"),  # four batches, the last one half as large
    (82, 4, "keep"),  # twenty-one batches
    (82, 4, "merge"),
)


def settings(name: str) -> Iterator[tuple[Training, int, float]]:
    """Trainings at the corners of the ranges, in rounds of a few and of many batches."""
    most = OPTIMIZERS[name]["lr"]
    assert isinstance(most, Numbers)
    pulls = (0.0, 0.01, 0.5) if name == "SGD" else (0.0,)
    for args, shape, mu in itertools.product(corners(name), SHAPES, pulls):
        # Without decay the learning rate is a factor of all batches.
        for lr in (1e-3, 1e-2, most.high) if args["weight_decay"] or mu else (most.high,):
            count, batch, last = shape
            own = {"batch_size": batch, "last_batch": last, "lr": lr}
            yield one_round(optimizer=name, optimizer_args=args, **own), count, mu


def shares(training: Training, count: int, mu: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the relative shares that are measured, and those that are predicted."""
    sizes = training.sizes(count)
    group = {**group_of(training), "lr": training.lr}
    predicted = [torch.tensor(c) for c in batch_counts(training.optimizer, group, mu, len(sizes))]
    yield relative(measured_apart(training, count, mu), sizes), relative(predicted[-1], sizes)
    if len(sizes) <= 4:
        yield relative(measured_together(training, count, mu), sizes), relative(predicted[0], sizes)


@pytest.mark.parametrize("name", ALLOWED)
def test_the_last_batch_has_at_most_twice_its_share_at_the_corners(name: str) -> None:
    last, largest, allowed = [], [], 0
    for training, count, mu in settings(name):
        plan = plan_for(training, count, f"fedprox({mu})" if mu else "fedavg")
        if list(forbidden(plan, plan.federation.clients[0], ALLOWED)):
            continue
        allowed += 1
        for measured, predicted in shares(training, count, mu):
            torch.testing.assert_close(measured, predicted, rtol=0.01, atol=0.01)
            last.append(float(measured[-1]))
            largest.append(float(measured.max()))
    assert allowed >= 32
    assert max(last) <= LAST_BATCH * 1.001
    assert max(largest) <= ANY_BATCH * 1.001


def attack(optimizer: str, lr: float, **args: Any) -> Training:
    return one_round(
        batch_size=4, last_batch="keep", lr=lr, optimizer=optimizer, optimizer_args=args
    )


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (attack("AdamW", 100.0, eps=1e12, betas=(0.0, 0.0)), "AdamW with betas = (0.0, 0.0)"),
        (attack("ASGD", 1e-9, lambd=1e9, alpha=0.0), "optimizer ASGD"),
        (attack("SGD", 1.0, weight_decay=1.0), "steps that undo 1 of others"),
        (attack("SGD", 0.1, weight_decay=0.9), "the last batch with 4.28 times"),
    ],
)
def test_attacks_leave_the_last_batch_alone_and_are_forbidden(
    training: Training, reason: str
) -> None:
    shares_found = relative(measured_apart(training, 82), training.sizes(82))
    assert float(shares_found[-1]) > 3.0
    plan = plan_for(training, 82)
    found = list(forbidden(plan, plan.federation.clients[0], ALLOWED))
    assert any(one.startswith(reason) for one in found), found


def share_of_last(name: str, size: float) -> float:
    """Return the last of twenty batches' share, where its gradients have another size."""
    training = one_round(batch_size=4, last_batch="keep", lr=0.01, optimizer=name)
    order = batches_of(training, 80)
    inputs = torch.zeros(80, len(order))
    for number, batch in enumerate(order):
        inputs[batch, number] = size if number == len(order) - 1 else 1.0
    data = Split(inputs, torch.zeros(80, dtype=torch.int64))
    moved = trained(training, data, len(order), 0.0).abs().sum(dim=0)
    return float(moved[-1] / moved.sum())


def test_under_sgd_the_size_of_gradients_decides_which_the_bound_does_not_cover() -> None:
    assert share_of_last("SGD", 1.0) == pytest.approx(1 / 20)
    assert share_of_last("SGD", 1e3) > 0.98
    assert share_of_last("SGD", 1e-3) < 1e-4


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_under_adam_a_batch_of_small_gradients_has_the_same_share_and_no_more(name: str) -> None:
    shares_found = [share_of_last(name, size) for size in (1e-3, 1.0, 1e3)]
    assert shares_found == pytest.approx([shares_found[1]] * 3, rel=0.01)
    assert max(shares_found) < 1 / 20


def test_radam_lets_the_first_batch_stand_out() -> None:
    training = one_round(batch_size=4, lr=0.01, optimizer="RAdam")
    assert relative(measured_together(training, 164), training.sizes(164))[0] > ANY_BATCH
    assert refused(training) == [f"optimizer RAdam (optimizers = {ALLOWED})"]


def test_a_crafted_correction_lets_the_last_batch_alone_train() -> None:
    """Why the default policy does not allow SCAFFOLD: its correction comes from the server."""
    training = one_round(batch_size=4, last_batch="keep", lr=0.01)
    order = batches_of(training, 80)
    inputs = torch.zeros(80, len(order))
    for number, batch in enumerate(order):
        inputs[batch, number] = 1.0
    model = nn.Sequential(nn.Linear(len(order), 2), nn.ReLU(), nn.Linear(2, 2))
    hidden = model[0]
    with torch.no_grad():
        hidden.bias.fill_(-18.5)  # silent, until the correction has moved it

    def correct() -> None:
        grad = hidden.bias.grad
        assert grad is not None
        grad.sub_(100.0)

    before = hidden.weight.detach().clone()
    draws = torch.Generator().manual_seed(SEED)
    data = Split(inputs, torch.zeros(80, dtype=torch.int64))
    local_train(ClientWork(model, data, training, len(order), draws, changes=[correct]))
    moved = (hidden.weight.detach() - before).abs().sum(dim=0)
    assert torch.count_nonzero(moved[:-1]) == 0
    assert moved[-1] > 0
    assert "scaffold" not in Policy().methods


def leaves(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every key of the configuration; what is free below a key is one decision."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from leaves(annotation, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def test_every_key_of_the_configuration_has_a_decision() -> None:
    own = {"data.name", "data.path", "data.partition", "data.clients"}  # a site's own: refused
    assert set(leaves(Experiment)) - own == set(DECISIONS)


def test_every_shipped_rule_and_each_of_its_numbers_has_a_decision() -> None:
    names = [f"fedbn.methods.{one.name}" for one in pkgutil.iter_modules(fedbn.methods.__path__)]
    modules = [fedbn.core.method, *map(importlib.import_module, names)]
    shipped = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and Rule in value.__mro__ and value is not Rule
    } - {fedbn.core.method.PenaltyRule}  # holds a user's penalty
    assert shipped == set(RULES)
    for rule, effects in RULES.items():
        assert {field.name for field in fields(rule)} == set(effects)  # type: ignore[arg-type]


def refused(training: Training, method: str = "fedavg", count: int = 82) -> list[str]:
    plan = plan_for(training, count, method)
    return list(forbidden(plan, plan.federation.clients[0], ALLOWED))


STANDARD = [
    one_round(lr=0.01),
    one_round(lr=0.1, optimizer_args={"momentum": 0.9, "weight_decay": 5e-4}),
    one_round(lr=0.1, optimizer_args={"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
    one_round(lr=1e-3, optimizer="Adam"),
    one_round(lr=1e-3, optimizer="Adam", optimizer_args={"amsgrad": True, "eps": 1e-7}),
    one_round(lr=1e-3, optimizer="AdamW"),
    one_round(lr=3e-4, optimizer="AdamW", optimizer_args={"betas": [0.9, 0.95]}),
    one_round(lr=0.1, rounds=50, schedule="CosineAnnealingLR"),
    one_round(lr=0.1, rounds=50, schedule="StepLR", schedule_args={"step_size": 20}),
    one_round(lr=0.01, clip_norm=1.0),
]


@pytest.mark.parametrize("training", STANDARD)
def test_standard_settings_are_allowed_over_many_epochs(training: Training) -> None:
    assert refused(replace(training, batch_size=16, last_batch="merge", local_epochs=20)) == []


@pytest.mark.parametrize(
    "method", ["fedprox(0.01)", "fedprox(1)", "feddyn", "ditto", "scaffold", "fedavg+ditto(5)"]
)
def test_shipped_rules_are_allowed_with_their_usual_numbers(method: str) -> None:
    assert refused(one_round(batch_size=16, last_batch="merge", lr=0.01), method) == []


@pytest.mark.parametrize(
    ("training", "method", "reason"),
    [
        (one_round(optimizer_args={"maximize": True}), "fedavg", "SGD with maximize = True"),
        (one_round(optimizer_args={"momentum": 1.5}), "fedavg", "SGD with momentum = 1.5"),
        (one_round(optimizer_args={"momentum": True}), "fedavg", "SGD with momentum = True"),
        (one_round(optimizer_args={"weight_decay": 10**400}), "fedavg", "SGD with weight_decay"),
        (one_round(lr=1.5), "fedavg", "a learning rate of 1.5 in round 1"),
        (one_round(lr=float("nan")), "fedavg", "a learning rate of nan in round 1"),
        (one_round(lr=0.2, optimizer="Adam"), "fedavg", "a learning rate of 0.2 in round 1"),
        (
            one_round(optimizer="Adam", optimizer_args={"weight_decay": 0.1}),
            "fedavg",
            "Adam with weight_decay = 0.1 (allowed: 0; use AdamW)",
        ),
        (one_round(optimizer="AdamW", lr=0.01), "fedprox(0.01)", "AdamW with a pull"),
        (one_round(optimizer="Muon", lr=0.01), "fedavg", "optimizer Muon"),
        (one_round(lr=0.01), "fedprox(1e9)", "steps that undo 1e+07 of others"),
        (
            one_round(lr=0.01, batch_size=4, last_batch="keep"),
            "fedprox(0.5)+prox(9)",
            "the last batch with 4.44 times",
        ),
        (
            one_round(lr=0.01, rounds=3, schedule="ExponentialLR", schedule_args={"gamma": 1e4}),
            "fedavg",
            "a learning rate of 100 in round 2",
        ),
        (
            one_round(
                lr=0.01,
                rounds=9,
                schedule="MultiStepLR",
                schedule_args={"milestones": [8], "gamma": 1e3},
            ),
            "fedavg",
            "a learning rate of 10 in round 9",
        ),
        (
            one_round(
                lr=1e-9,
                rounds=9,
                schedule="OneCycleLR",
                schedule_args={"max_lr": 50.0},
            ),
            "fedavg",
            "a learning rate of",
        ),
        (one_round(batch_size=32, last_batch="keep"), "fedavg", ""),
        (one_round(batch_size=40, last_batch="keep"), "fedavg", "the last batch with 13.7 times"),
    ],
)
def test_settings_outside_the_bound_are_named(training: Training, method: str, reason: str) -> None:
    found = refused(training, method)
    assert found == [] if not reason else found[0].startswith(reason), found


def test_a_kept_remainder_that_breaks_the_bound_names_merge() -> None:
    kept = one_round(batch_size=40, last_batch="keep")
    assert "training.last_batch = 'merge'" in refused(kept)[0]
    assert refused(replace(kept, last_batch="merge")) == []


def test_an_added_optimizer_has_torchs_default_arguments_only() -> None:
    def found(**args: Any) -> list[str]:
        plan = plan_for(attack("RMSprop", 0.01, **args), 80)
        return list(forbidden(plan, plan.federation.clients[0], [*ALLOWED, "RMSprop"]))

    assert found() == []
    assert found(alpha=0.99) == []
    assert found(alpha=0.0) == ["RMSprop with alpha = 0.0 (allowed: torch's default)"]


@pytest.mark.parametrize("momentum", [1.0, 0.5, -1.0])
def test_batchnorm_that_keeps_the_last_batch_alone_is_not_shared(momentum: float) -> None:
    training = one_round(batch_size=16, last_batch="merge")

    def model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(1, momentum=momentum), nn.Linear(1, 2))

    def found(method: str) -> list[str]:
        plan = replace(plan_for(training, 82, method), model=model)
        return list(forbidden(plan, plan.federation.clients[0], ALLOWED))

    assert found("fedavg")[0].startswith("shared BatchNorm statistics 0 with momentum")
    assert found("silobn") == found("fedbn") == []


@pytest.mark.parametrize("args", [{"betas": [0.9]}, {"foreach": True, "fused": True}])
def test_arguments_that_torch_fails_on_are_a_configuration_error(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"training\.optimizer_args"):
        training_of(TrainingSection(optimizer="Adam", optimizer_args=args))
