"""The bound on what one batch contributes to a client's update, and how a plan is held to it.

An update is a sum over the batches of a round. The optimizer decides how much each batch counts.
A server that makes one small batch count for nearly all of the update reads single samples.
The bound: **the last batch has at most twice its share of the samples in the update, and every
other batch at most four times its share**. (Adam's bias correction lets the very first batch count
about three times.) The bound is about the optimizer. It holds where the gradients of all batches
have the same size, and for Adam also where every batch trains weights of its own. Gradients that
differ in size are a matter of the data and of the weights that the server sends.

`forbidden` examines the optimizer that is constructed, with the defaults of torch, the learning
rates of all rounds, the rules of the method and BatchNorm. `class_weight_fault` examines the loss.
`DECISIONS` has a decision for every key of the configuration. A key without one is forbidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.federation import Client
from fedbn.core.local_training import make_optimizer
from fedbn.core.method import PenaltyRule, Proximal
from fedbn.core.plan import Plan
from fedbn.core.rule import Rule
from fedbn.core.state import Kind, entries
from fedbn.core.training import Training
from fedbn.methods.rules import Ditto, FedDyn, FixedStatistics, HeadFirst, Scaffold

LAST_BATCH = 2.0  # of its share of the samples, at most
ANY_BATCH = 4.0
STEP = 0.1  # of what earlier batches moved that one step may undo, at most
STATISTICS = 0.1  # of shared BatchNorm statistics that are the last batch's, at most
_ROUNDING = 1e-9


class Decision(StrEnum):
    """Why the policy lets a server choose the value of a key."""

    BOUND = "a rule of the policy limits it"
    APPROVED = "it does not weigh batches or samples; a person sees it in the approval"
    SITE = "the site decides, whatever the server says"
    SERVER = "it has no effect at a site"


DECISIONS = {
    "format": Decision.APPROVED,
    "methods": Decision.BOUND,  # methods, and the rules below
    "seeds": Decision.APPROVED,  # a seed decides which samples share a batch
    "engine": Decision.SERVER,
    "workers": Decision.SERVER,
    "sweep": Decision.SERVER,  # an order has one point of it
    "quick": Decision.SERVER,
    "reproduce": Decision.SERVER,
    "training.rounds": Decision.BOUND,  # max_rounds
    "training.epochs": Decision.BOUND,  # becomes rounds
    "training.local_epochs": Decision.BOUND,  # max_steps, and the share of a batch
    "training.local_steps": Decision.BOUND,
    "training.batch_size": Decision.BOUND,  # min_batch, and the share of a batch
    "training.last_batch": Decision.BOUND,
    "training.optimizer": Decision.BOUND,
    "training.optimizer_args": Decision.BOUND,
    "training.lr": Decision.BOUND,
    "training.schedule": Decision.BOUND,
    "training.schedule_args": Decision.BOUND,
    "training.unequal": Decision.BOUND,  # max_steps
    "training.weighting": Decision.SERVER,
    "training.max_share": Decision.SERVER,
    "training.participation": Decision.BOUND,  # min_sites
    "training.min_clients": Decision.SERVER,
    "training.device": Decision.SITE,
    # Shorter gradients differ less in size; clipping makes none longer.
    "training.clip_norm": Decision.APPROVED,
    "training.amp": Decision.APPROVED,  # rounds all batches alike
    "training.patience": Decision.SERVER,
    "training.fast": Decision.SERVER,
    "method.mu": Decision.BOUND,
    "method.allow_no_batchnorm": Decision.APPROVED,
    # How all sites read their data; nothing is answered before a person approved a contract.
    "data.contract": Decision.APPROVED,
    "model.name": Decision.BOUND,  # models
    "model.args": Decision.APPROVED,
    "model.weights": Decision.SITE,  # the file that a person at the site gives
    "model.fresh": Decision.APPROVED,
    "model.transform": Decision.APPROVED,
    "task.name": Decision.APPROVED,  # the losses of all tasks are means over a batch
    "task.loss": Decision.APPROVED,
    "task.metrics": Decision.APPROVED,
    "task.class_weights": Decision.BOUND,
    "evaluation.every": Decision.APPROVED,
    "evaluation.clients": Decision.APPROVED,
    "evaluation.train": Decision.APPROVED,
    "evaluation.validation": Decision.BOUND,  # min_samples counts what is left to train on
    "evaluation.report": Decision.APPROVED,
    "evaluation.metrics": Decision.APPROVED,
    # Sites score with running statistics alone, whatever these say.
    "evaluation.statistics": Decision.SERVER,
    "evaluation.final_statistics": Decision.SERVER,
    "checkpoint.every": Decision.SERVER,
}
_SECTIONS = {key.partition(".")[0] for key in DECISIONS if "." in key}


@dataclass(frozen=True)
class Numbers:
    """Numbers from `low` to `high`."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" if self.low < self.high else f"{self.low:g}"


@dataclass(frozen=True)
class Pair:
    """Two numbers, each in its own range."""

    first: Numbers
    second: Numbers

    def __contains__(self, value: object) -> bool:
        pair = isinstance(value, list | tuple) and len(value) == 2
        return pair and value[0] in self.first and value[1] in self.second  # type: ignore[index]

    def __str__(self) -> str:
        return f"[{self.first}, {self.second}]"


@dataclass(frozen=True)
class Words:
    """A choice of single values."""

    values: tuple[bool | None, ...]

    def __contains__(self, value: object) -> bool:
        return any(value is one for one in self.values)

    def __str__(self) -> str:
        return " or ".join(str(value) for value in self.values)


Allowed = Numbers | Pair | Words
_NEVER, _EITHER, _AUTO = Words((False,)), Words((False, True)), Words((None, False, True))
_IMPLEMENTATION: dict[str, Allowed] = {
    "foreach": _AUTO,
    "fused": _AUTO,
    "maximize": _NEVER,
    "capturable": _NEVER,
    "differentiable": _NEVER,
}
_ADAM: dict[str, Allowed] = {
    "lr": Numbers(0.0, 0.1),
    # beta1 well below the root of beta2: else steps grow after the gradients have ended.
    "betas": Pair(Numbers(0.0, 0.95), Numbers(0.95, 0.9999)),
    "eps": Numbers(1e-10, 1e-3),
    "amsgrad": _EITHER,
    **_IMPLEMENTATION,
}
# The learning rates keep one step from saturating a model, which would silence later batches.
OPTIMIZERS: dict[str, dict[str, Allowed]] = {
    "SGD": {
        "lr": Numbers(0.0, 1.0),
        "momentum": Numbers(0.0, 0.999),
        "dampening": Numbers(0.0, 0.0),  # the first gradient of a round is never dampened
        "weight_decay": Numbers(0.0, 1.0),
        "nesterov": _EITHER,
        **_IMPLEMENTATION,
    },
    # Its weight decay is divided as gradients are, and can undo every small step: AdamW's cannot.
    "Adam": {
        **_ADAM,
        "weight_decay": Numbers(0.0, 0.0),
        "decoupled_weight_decay": _EITHER,
    },
    "AdamW": {
        **_ADAM,
        "weight_decay": Numbers(0.0, 1.0),
        "decoupled_weight_decay": Words((True,)),
    },
}
"""Optimizers for which the bound was derived and is measured, and what each argument may be.

All others of torch are forbidden unless a site lists them, and then have torch's defaults only.
RAdam's first steps are not normalised, so that the first batch stands out. ASGD decays by an
argument of its own. For the others nobody derived the bound.
"""


class Effect(StrEnum):
    """What a number of a shipped rule does to the share of a batch."""

    PULL = "undoes a part of every earlier step, as weight decay does"
    STEPS = "counts as batches of the round"
    HOME = "concerns only what stays at the site"
    ALIKE = "concerns all batches alike"


RULES: dict[type[Rule], dict[str, Effect]] = {
    Proximal: {"mu": Effect.PULL},
    FedDyn: {"alpha": Effect.PULL},
    Scaffold: {},
    Ditto: {"lam": Effect.HOME},
    FixedStatistics: {"share": Effect.ALIKE},
    HeadFirst: {"epochs": Effect.STEPS},
}


def undecided(experiment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a configuration that no decision covers."""
    for section, value in experiment.items():
        if section not in _SECTIONS:
            keys = [section]
        elif isinstance(value, Mapping):
            keys = [f"{section}.{key}" for key in value]
        else:
            keys = [section]
        yield from (key for key in keys if key not in DECISIONS)


def forbidden(plan: Plan, own: Client, optimizers: Sequence[str], round: int = 0) -> Iterator[str]:
    """Yield what in a plan breaks the bound.

    Args:
        plan: The plan of one method and one seed.
        own: The client whose batches are counted.
        optimizers: The optimizers that the site allows.
        round: The round whose learning rate counts; 0 for all rounds.
    """
    training = plan.training
    yield from _rules(plan)
    yield from _statistics(plan)
    if training.optimizer not in optimizers:
        yield f"optimizer {training.optimizer} (optimizers = {list(optimizers)})"
        return
    rounds = [round] if round else range(1, training.rounds + 1)
    rates = {training.in_round(number).lr: number for number in reversed(rounds)}
    arguments = list(_arguments(training.in_round(rounds[0])))
    yield from arguments
    limits = OPTIMIZERS.get(training.optimizer, OPTIMIZERS["SGD"])["lr"]
    for rate, number in sorted(rates.items(), key=lambda one: one[1]):
        if rate not in limits:
            yield f"a learning rate of {rate:g} in round {number} (allowed: {limits})"
            return
    if training.optimizer not in OPTIMIZERS or arguments:
        return
    if training.optimizer != "SGD" and _pull(plan):
        yield f"{training.optimizer} with a pull towards the received model (mu, alpha); use SGD"
        return
    for rate in {max(rates), min(rates)}:
        yield from _shares(plan, own, rate)


def group_of(training: Training) -> dict[str, Any]:
    """Return every argument of the optimizer that a training constructs, with torch's defaults."""
    made = make_optimizer([torch.nn.Parameter(torch.zeros(1))], training)
    if not isinstance(made, torch.optim.Optimizer):  # plain SGD, which is written out
        made = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=training.lr)
    return {key: value for key, value in made.param_groups[0].items() if key != "params"}


def _arguments(training: Training) -> Iterator[str]:
    """Yield arguments of the optimizer outside their range."""
    name, found = training.optimizer, group_of(training)
    if name not in OPTIMIZERS:
        usual = group_of(Training(optimizer=name, lr=training.lr))
        for key, value in found.items():
            if repr(value) != repr(usual.get(key)):
                yield f"{name} with {key} = {_short(value)} (allowed: torch's default)"
        return
    for key, value in found.items():
        if key == "lr":
            continue  # each round has its own
        limits = OPTIMIZERS[name].get(key)
        if limits is None:
            yield f"{name} with {key} (the policy has no rule for it)"
        elif value not in limits:
            remedy = "; use AdamW" if (name, key) == ("Adam", "weight_decay") else ""
            yield f"{name} with {key} = {_short(value)} (allowed: {limits}{remedy})"


def _short(value: object) -> str:
    return repr(value)[:60]


def _rules(plan: Plan) -> Iterator[str]:
    """Yield shipped rules that nobody decided about; other rules are code that a person trusts."""
    for rule in plan.method.rules:
        known = RULES.get(type(rule))
        if known is None and _is_shipped(rule):
            yield f"the rule {rule.label} (the policy has no decision for it)"
        fields = getattr(rule, "__dataclass_fields__", ())
        yield from (
            f"the rule {rule.label} with {name} (the policy has no decision for it)"
            for name in fields
            if known is not None and name not in known
        )


def _is_shipped(rule: Rule) -> bool:
    return type(rule).__module__.startswith("fedbn.") and not isinstance(rule, PenaltyRule)


def _pull(plan: Plan) -> float:
    """Return the strength with which the rules of a plan pull towards an earlier model."""
    return sum(
        float(getattr(rule, name))
        for rule in plan.method.rules
        for name, effect in RULES.get(type(rule), {}).items()
        if effect is Effect.PULL
    )


def _statistics(plan: Plan) -> Iterator[str]:
    """Yield shared BatchNorm layers in whose moving average the last batch counts too much."""
    model = plan.initial_model
    shared = {e.name for e in plan.method.shared(entries(model)) if e.kind is Kind.BN_STATISTIC}
    for path, module in model.named_modules():
        momentum = getattr(module, "momentum", None)
        moving = f"{path}.running_mean".lstrip(".") in shared and momentum is not None
        if moving and momentum not in Numbers(0.0, STATISTICS):
            yield (
                f"shared BatchNorm statistics {path} with momentum = {_short(momentum)} "
                f"(allowed: 0 to {STATISTICS:g}, or a method that keeps them at the site)"
            )


def class_weight_fault(plan: Plan, own: Client, most: float) -> str | None:
    """Return what lets a rare class stand out in a loss that fedbn ships; None if nothing does."""
    if plan.task.loss_for is None:
        return None
    weights = getattr(plan.loss(own), "keywords", {}).get("weights")
    if not isinstance(weights, Tensor):
        return None
    # Where labels are weighed, what is not there counts 1.
    values = [float(weight) for weight in weights.flatten()]
    values += [1.0] if plan.task.name == "multilabel" else []
    if max(values) <= most * (1 + _ROUNDING) * min(values):
        return None
    return (
        "class weights of which one is more than "
        f"{most:g} times another at this site (max_class_weight = {most:g})"
    )


def _shares(plan: Plan, own: Client, rate: float) -> Iterator[str]:
    """Yield a batch whose share of the update is too large, at one learning rate."""
    training, steps = plan.training, plan.steps(own)
    if rate == 0 or steps == 1:
        return
    sizes = tuple(training.sizes(len(own.train)))
    group = group_of(training.in_round(1)) | {"lr": rate}
    undone = rate * (group["weight_decay"] + _pull(plan))
    if not undone <= STEP:
        yield f"steps that undo {undone:.3g} of others (lr * (weight_decay + mu): at most {STEP})"
        return
    last, largest = relative_shares(training.optimizer, _hashable(group), _pull(plan), sizes, steps)
    for what, found, limit in (
        ("the last batch", last, LAST_BATCH),
        ("one batch", largest, ANY_BATCH),
    ):
        if not found <= limit * (1 + _ROUNDING):
            keeps = training.last_batch == "keep" and sizes[-1] < sizes[0]
            remedy = "training.last_batch = 'merge', or " if keeps else ""
            yield (
                f"{what} with {found:.3g} times its share of an update (at most {limit:g}; "
                f"{remedy}less of lr * (weight_decay + mu) * {steps:,} steps)"
            )
            return


def _hashable(group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    fixed = {key: tuple(v) if isinstance(v, list) else v for key, v in group.items()}
    return tuple(sorted(fixed.items()))


@lru_cache(maxsize=64)
def relative_shares(
    optimizer: str,
    arguments: tuple[tuple[str, Any], ...],
    pull: float,
    sizes: tuple[int, ...],
    steps: int,
) -> tuple[float, float]:
    """Return the last batch's and the largest share of an update, relative to its samples.

    Args:
        optimizer: A name in `OPTIMIZERS`.
        arguments: The items of its parameter group.
        pull: What rules add to the gradients, times the distance from the received model.
        sizes: The batches of one pass.
        steps: The batches of the round.
    """
    samples = np.resize(np.array(sizes, dtype=np.float64), steps)
    with np.errstate(all="ignore"):  # numbers that overflow give NaN, which is above every limit
        found = [
            (counts / counts.sum()) / (samples / samples.sum())
            for counts in batch_counts(optimizer, dict(arguments), pull, steps)
        ]
    return max(float(one[-1]) for one in found), max(float(one.max()) for one in found)


def batch_counts(
    optimizer: str, group: Mapping[str, Any], pull: float, steps: int
) -> list[NDArray[np.float64]]:
    """Return how much each batch of a round counts in the update, up to a common factor.

    For SGD that is the coefficient of the batch's gradient. Adam divides by the size of the
    gradients, so it has two extremes: all batches train the same weights with gradients of one
    size, or every batch trains weights of its own.
    """
    if optimizer == "SGD":
        return [_counts_of_sgd(group, pull, steps)]
    decay = 1.0 - group["lr"] * group["weight_decay"]
    return [_counts_of_adam(group, decay, steps, apart) for apart in (False, True)]


def _counts_of_sgd(group: Mapping[str, Any], pull: float, steps: int) -> NDArray[np.float64]:
    """Follow one unit of gradient through the steps after it: SGD is linear."""
    momentum, nesterov = group["momentum"], group["nesterov"]
    undone = group["lr"] * (group["weight_decay"] + pull)
    counts = np.empty(steps)
    moved = buffer = 0.0  # in units of the learning rate
    for age in range(steps):
        gradient = (1.0 if age == 0 else 0.0) - undone * moved
        buffer = momentum * buffer + gradient
        moved += gradient + momentum * buffer if nesterov else buffer
        counts[steps - 1 - age] = abs(moved)
    return counts


def _counts_of_adam(
    group: Mapping[str, Any], decay: float, steps: int, apart: bool
) -> NDArray[np.float64]:
    """Sum what the gradient of each batch still moves in its own step and all later ones."""
    beta1, beta2 = group["betas"]
    fades = beta1 / beta2**0.5 if apart and not group["amsgrad"] else beta1
    counts = np.empty(steps)
    later, left = 0.0, 1.0
    for step in range(steps, 0, -1):
        moved = (1 - beta1) / (1 - beta1**step) * left
        if apart:
            moved *= ((1 - beta2**step) / (1 - beta2)) ** 0.5
        later = moved + fades * later
        counts[step - 1] = later
        left *= decay
    return counts
