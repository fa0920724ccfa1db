"""All that an engine needs for one run, already checked."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from fedbn.core import own_statistics
from fedbn.core.aggregation import Mean
from fedbn.core.bn_statistics import exact_passes, tracked_norms
from fedbn.core.federation import Client, Federation, Targets, targets_of
from fedbn.core.method import Method
from fedbn.core.pass_tracing import mark, traced
from fedbn.core.randomness import derive_seed, seeded
from fedbn.core.rule import ModelParts, declared, word_of
from fedbn.core.selectors import BATCHNORM
from fedbn.core.state import Kind, entries, is_batchnorm, unwrap, uses_batch_statistics
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.core.task import CLASSIFICATION, Loss, Task, check_loss, check_targets, measure
from fedbn.core.training import Training
from fedbn.core.user_code import contained
from fedbn.errors import ConfigError, ModelError, blamed, reason


def limited(weights: Sequence[float], share: float) -> list[float]:
    """Cut the largest weights to one ceiling, so that none has more than a share of their sum.

    Examples:
        >>> limited([1.0, 0.25, 0.25], share=0.5)
        [0.5, 0.25, 0.25]
        >>> limited([1.0, 0.25, 0.25], share=0.1)  # less than an equal part: all equal
        [1.0, 1.0, 1.0]
    """
    if share * len(weights) <= 1:
        return [1.0] * len(weights)
    falling = sorted(weights, reverse=True)
    for cut, largest in enumerate(falling):
        ceiling = share * sum(falling[cut:]) / (1 - share * cut)
        if largest <= ceiling:
            return list(weights) if cut == 0 else [min(weight, ceiling) for weight in weights]
    return list(weights)


_REGISTER = "fedbn.register_batchnorm"
# Below so many samples a batch's own mean and variance say little of the data.
_FEW = 8
# Clients that differ by more than this factor in size are pointed out.
_UNEQUAL = 2
_SHOWN = 5
_TRIED = 64  # samples that metrics are tried on
_WORTH_EXACT = 0.05  # the share of a run that exact statistics may cost unless they are asked for


@dataclass(frozen=True)
class Plan:
    """One method, one setting, a point of a sweep, and one seed, which decides all that is random.

    The federation of a pooled method has one client `all`. `model` makes the model; it is called
    once, under the seed. Clients are scored every `evaluate_every` rounds: those that take part, or
    all (`score_all`), as at the end; on training data too where `score_train` says so. The engine
    trains clients one by one (`plain`), or small dense models in stacks (`batched`).

    `statistics` are the BatchNorm statistics that clients are scored with in every scored round.
    `final_statistics` are those of the round that is reported: none if empty, and if None all that
    are worth their cost. What a model or a method does not have is left out (`scored_statistics`).
    """

    method: Method
    federation: Federation
    model: Callable[[], nn.Module]
    training: Training
    seed: int = 0
    setting: str = "default"
    evaluate_every: int = 1
    score_all: bool = True
    score_train: bool = True
    task: Task = CLASSIFICATION
    engine: Literal["plain", "batched"] = "plain"
    statistics: tuple[StatisticsKind, ...] = ("running",)
    final_statistics: tuple[StatisticsKind, ...] | None = ()

    def __post_init__(self) -> None:
        if self.method.share.has_role:
            method = settled(self.method, self.initial_model, self.federation)
            object.__setattr__(self, "method", method)

    @cached_property
    def initial_model(self) -> nn.Module:
        """The model before the first round: the same for every method of one seed.

        A baseline has no network; in its place is a module without entries.
        """
        if self.method.baseline is not None:
            return nn.Module()
        with seeded(derive_seed(self.seed, "model")):
            model = unwrap(self.model())
            materialize(model, self.federation)
            mark(model, _sample(self.federation))
        return model

    @cached_property
    def by_batch(self) -> bool:
        """Whether the model normalises by the batch when it is evaluated too."""
        return uses_batch_statistics(self.initial_model)

    @cached_property
    def home_made(self) -> tuple[str, ...]:
        """The shared buffers that change in a training pass although no BatchNorm owns them."""
        changed = traced(self.initial_model, _sample(self.federation)).changed
        shared = {entry.name for entry in self.method.shared(entries(self.initial_model))}
        return tuple(name for name in changed if name in shared)

    @cached_property
    def local_statistics(self) -> bool:
        """Whether clients keep BatchNorm statistics of their own."""
        local = self.method.local(entries(self.initial_model))
        return any(entry.kind is Kind.BN_STATISTIC for entry in local)

    @cached_property
    def keeps_statistics(self) -> bool:
        """True if clients keep running statistics of their own for scoring only."""
        asked = ("local",) if self.final_statistics is None else self.final_statistics
        if "local" not in (*self.statistics, *asked) or self.method.pooled:
            return False
        return self.averages_statistics and own_statistics.can_follow(
            self.initial_model, _sample(self.federation)
        )

    @cached_property
    def averages_statistics(self) -> bool:
        """True if the server averages BatchNorm statistics."""
        shared = self.method.shared(entries(self.initial_model))
        return any(entry.kind is Kind.BN_STATISTIC for entry in shared)

    def scored_statistics(self, final: bool = False) -> tuple[StatisticsKind, ...]:
        """Return the BatchNorm statistics that clients are scored with, as far as they exist."""
        asked: Sequence[StatisticsKind] = self.statistics
        if final and self.final_statistics is not None:
            asked = self.final_statistics
        elif final:
            exact = self.exact_share <= _WORTH_EXACT
            asked = ("running", "local", "exact" if exact else "batch")
        if not tracked_norms(self.initial_model):
            return tuple(kind for kind in asked if kind == "running")
        return tuple(kind for kind in asked if kind != "local" or self.keeps_statistics)

    @cached_property
    def exact_share(self) -> float:
        """The cost of exact statistics, as a share of the cost of training, about.

        A pass without gradients costs a third of a pass with them. The estimate is made of counts
        and not of time, so that it is the same on every machine.
        """
        training = self.training
        epochs: float = training.local_epochs
        if training.local_steps is not None:
            epochs = training.local_steps / len(training.sizes(self.largest))
        trained = 3 * training.rounds * epochs * training.participation
        return exact_passes(self.initial_model, self.largest) / trained

    @cached_property
    def largest(self) -> int:
        """Training samples of the largest client."""
        return max(len(client.train) for client in self.federation.clients)

    def steps(self, client: Client, epochs: int | None = None) -> int:
        """Batches that a client trains a round, or in so many passes over its data."""
        training = self.training
        if epochs is not None:
            training = replace(training, local_epochs=epochs, local_steps=None)
        return training.steps(len(client.train), self.largest)

    def loss(self, client: Client) -> Loss:
        """The loss that a client trains by and is scored with."""
        if self.task.loss_for is None:
            return self.task.loss
        if client.train.y is None:
            raise ConfigError(
                f"task {self.task.name} needs the targets of all samples, and the Dataset of "
                f"client {client.name} does not tell them; give it an attribute `targets`"
            )
        return self.task.loss_for(client.train.y, len(self.federation.classes))

    def weights(self, clients: Sequence[Client]) -> list[float]:
        """The clients' weights in a mean: 1 for the largest, so equal clients average uniformly."""
        if self.training.weighting == "uniform":
            return [1.0] * len(clients)
        sizes = [len(client.train) / self.largest for client in clients]
        return limited(sizes, self.training.max_share)

    def evaluates(self, round: int) -> bool:
        """Tell whether clients are scored after this round."""
        return round % self.evaluate_every == 0 or round == self.training.rounds

    @property
    def updates_needed(self) -> int:
        """How many usable updates a round needs: what is asked for, and what the rule promises."""
        rule = 1 if self.method.pooled else getattr(self.method.aggregator, "fewest", 1)
        return max(self.training.min_clients, rule)

    @property
    def clients_a_round(self) -> int:
        """How many clients take part in a round."""
        total = len(self.federation.clients)
        # 0.55 of 20 clients is 11.000000000000002 in floats, and means 11.
        share = math.ceil(self.training.participation * total - 1e-9)
        return min(max(self.training.min_clients, share), total)

    def check(self, allow_no_batchnorm: bool = False) -> None:
        """Refuse what does not fit: data and task, model, method and classes; nothing has run."""
        first = self.federation.clients[0]
        check_targets(self.task, first.train.target, f"data {self.federation.name}")
        if self.method.baseline is not None:
            self._check_baseline()
            return
        model = self.initial_model
        found = entries(model)
        try:
            self.method.check(found, allow_no_batchnorm)
        except ModelError as error:
            raise ModelError(f"{error}{_bare_norms(model)}{self._hand_made_norms()}") from error
        if why := rule_conflict(self.method, self.method.parts(found), self.training):
            raise ConfigError(f"{self.method.name}: {why}")
        if not any(entry.trainable for entry in found):
            raise ModelError("the model has no trainable parameter")
        copied(model)
        if self.training.batch_size == 1 and any(e.kind.startswith("bn_") for e in found):
            raise ConfigError(
                "training.batch_size = 1: BatchNorm cannot normalise one sample; "
                "legal are 2 and more, or 'full'"
            )
        outputs = _check_output(model, self.federation)
        check_loss(self.loss(first), outputs, first.train.batch(slice(0, 2))[1].cpu())

    def _hand_made_norms(self) -> str:
        """Point out buffers that may be the statistics of a BatchNorm that was made by hand."""
        if not self.home_made:
            return ""
        return (
            f". The buffers {', '.join(self.home_made)} change in a training pass. If they are "
            f"statistics of BatchNorm, declare it: {_declared(self.initial_model, self.home_made)}"
        )

    def _check_baseline(self) -> None:
        """Refuse data and tasks that a baseline cannot be fitted to."""
        name, data = self.method.name, self.federation
        if len(data.input_shape) != 1 or self.task.targets is Targets.MASK:
            raise ConfigError(
                f"{name} is a baseline for tables: expected samples of one dimension with classes, "
                f"labels or numbers, got samples of shape {data.input_shape} with "
                f"{self.task.targets.value} in data {data.name}; leave {name} out"
            )
        if self.task.loss_for is not None:
            raise ConfigError(
                f"{name} weights all samples alike, so it cannot be compared under "
                f"task.class_weights; leave {name} or the class weights out"
            )
        first = data.clients[0]
        outputs = torch.zeros(2, len(data.classes), dtype=_sample(data).dtype)
        check_loss(self.loss(first), outputs, first.train.batch(slice(0, 2))[1].cpu())

    def check_metrics(self) -> None:
        """Refuse metrics that fail on samples of the first client, before anything is trained."""
        data = self.federation.clients[0].train
        some = torch.linspace(0, len(data) - 1, min(len(data), _TRIED)).long()  # of all classes
        x, y = data.take(some).batch(slice(None))
        if self.method.baseline is not None:
            outputs = torch.zeros(len(x), len(self.federation.classes))
        else:
            outputs = forward(self.initial_model, x.cpu())
        for metric in self.task.metrics:
            measure(metric, self.task.keep(outputs), y)


def rule_conflict(method: Method, parts: ModelParts, training: Training) -> str | None:
    """Say why a method's rules cannot be followed together, or with this training."""
    rules, memories = method.rules, declared(method.rules, parts)
    owners = {name.partition(".")[0] for name in memories}
    needs = {need: rule.label for rule in rules for need in rule.needs}
    moving = next((rule.label for rule in rules if rule.moves), None)
    several = next((rule for rule in rules if rule.several), None)
    options = {"momentum", "nesterov", "maximize"} & {
        k for k, v in training.optimizer_args.items() if v
    }
    options |= {"clip_norm"} if training.clip_norm is not None else set()
    plain = training.optimizer == "SGD" and not options
    if method.pooled and rules and memories:
        return "all data is one client's, so there is nobody to remember anything for"
    if any(m.place == "shared" for m in memories.values()) and method.aggregator != Mean():
        return (
            f"{method.aggregator.label} is a choice among updates of the model, and what "
            f"{', '.join(sorted(owners))} shares is a sum over clients: only the mean keeps it one"
        )
    if moving and method.server:
        return f"{moving} moves the model at the server itself, so {method.server.label} cannot"
    if "plain SGD" in needs and not plain:
        used = ", ".join([training.optimizer, *sorted(options)])
        return f"{needs['plain SGD']} is defined for steps of plain SGD, not for {used}"
    if "uniform weights" in needs and training.weighting != "uniform":
        return f"{needs['uniform weights']} is defined for clients that count the same"
    if several and (others := owners - {word_of(several)}):
        return (
            f"{several.label} trains in parts or on entries of its own, and what "
            f"{', '.join(sorted(others))} remembers is defined for one training"
        )
    return None


def settled(method: Method, model: nn.Module, federation: Federation) -> Method:
    """A method that knows which module of a model is the last, where it shares by that."""
    if not method.share.has_role:
        return method
    return replace(method, share=method.share.resolved(*last_module(model, federation)))


def last_module(model: nn.Module, federation: Federation) -> tuple[str, list[str]]:
    """Find the last module with parameters in a pass; and say where it is not the head."""
    called: list[tuple[str, nn.Module, Any]] = []
    hooks = [
        module.register_forward_hook(
            lambda module, _, given, path=path: called.append((path, module, given))
        )
        for path, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        outputs = forward(model, _sample(federation))
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ModelError("last: the model calls no module that has parameters")
    path, module, given = called[-1]
    if getattr(given, "shape", None) == getattr(outputs, "shape", ()) and not is_batchnorm(module):
        return path, []
    return path, [
        f"last is {path} ({type(module).__name__}), and its outputs are not the model's: if that "
        "is not the head, name the head's module, as in local('head')"
    ]


def remarks(plan: Plan) -> list[str]:
    """What a user should hear of a plan before it runs: it works, and may not be what was meant."""
    found = entries(plan.initial_model)
    norm = any(entry.kind in BATCHNORM for entry in found)
    left_over = _left_over(plan) if norm else []
    said = plan.method.remarks(found)
    if plan.method.share.local_kinds & BATCHNORM:
        said += home_made_remarks(plan.home_made, plan.method.name, said)
    if plan.by_batch:
        said.append(
            "BatchNorm normalises by the batch in evaluation, too (track_running_stats=False), so "
            "a prediction depends on the samples in the same batch. Models are scored and predict "
            "in batches of 128 samples in their order; a smaller last batch joins the one before"
        )
    return [*said, *left_over, *_unequal_clients(plan)]


def home_made_remarks(changed: Sequence[str], method: str, said: Sequence[str] = ()) -> list[str]:
    """Warn of shared buffers that change like statistics, unless that was `said` already."""
    layers = {name: name.rpartition(".")[0] for name in changed}
    patterns = [*dict.fromkeys(f"{layer}.*" if layer else name for name, layer in layers.items())]
    patterns = [one for one in patterns if not any(text.startswith(one) for text in said)]
    if not patterns:
        return []
    decides = f"+local({', '.join(map(repr, patterns))})"
    return [
        f"{', '.join(changed)}: these buffers change while a client trains, and no BatchNorm of "
        f"torch owns them, so {method} shares them. {method}{decides} keeps them at the client. "
        f"If they are statistics of BatchNorm, {_REGISTER} declares their class"
    ]


def _declared(model: nn.Module, names: Sequence[str]) -> str:
    """Return the call that declares the classes that own some entries to be BatchNorm."""
    owners = (model.get_submodule(name.rpartition(".")[0]) for name in names)
    return ", ".join(f"{_REGISTER}({kind})" for kind in {type(o).__name__: None for o in owners})


def _unequal_clients(plan: Plan) -> list[str]:
    """Warn where clients of very different size count the same and the user can change that."""
    method, sizes = plan.method, [len(client.train) for client in plan.federation.clients]
    averages = method.aggregator == Mean() and bool(method.shared(entries(plan.initial_model)))
    fixed = any("uniform weights" in rule.needs for rule in method.rules)
    if plan.training.weighting != "uniform" or fixed or not averages:
        return []
    if max(sizes) <= _UNEQUAL * min(sizes):
        return []
    return [
        f"averaging is uniform: clients with {min(sizes):,} to {max(sizes):,} training samples "
        "count the same. training.weighting = 'examples' weights each by its number of samples"
    ]


def _left_over(plan: Plan) -> list[str]:
    """Say whose passes end in a batch that is small for BatchNorm."""
    size = plan.training.batch_size
    if size is None or plan.training.last_batch != "keep":
        return []
    sizes = {c.name: plan.training.sizes(len(c.train)) for c in plan.federation.clients}
    ones = [name for name, cut in sizes.items() if cut[-1] == size + 1]
    few = {
        c.name: sizes[c.name][-1]
        for c in plan.federation.clients
        if sizes[c.name][-1] < min(size, _FEW) and 1 < len(sizes[c.name]) <= plan.steps(c)
    }
    said = [f"a last batch of one sample joins the batch before it ({named(ones)})"] if ones else []
    if few:
        least, most = min(few.values()), max(few.values())
        said.append(
            f"a last batch of {least if least == most else f'{least} to {most}'} samples "
            f"({named([*few])}) is small for BatchNorm, and its step can undo much of an epoch: "
            "training.last_batch = 'merge' joins it to the batch before it, 'drop' leaves it out"
        )
    return said


def named(names: Sequence[str]) -> str:
    """Name some clients, the first ones of many."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def copied(model: nn.Module) -> nn.Module:
    """Copy a model, or name what in it cannot be copied."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied for each worker: {_uncopied(model)} ({reason(error)}); "
            "make it where it is used, or leave it out in `__getstate__`"
        ) from error


def _uncopied(model: nn.Module) -> str:
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                copy.deepcopy({} if name == "_modules" else value)
            except Exception:
                return f"its {'.'.join(filter(None, (path, name)))}"
    return "it"


def _bare_norms(model: nn.Module) -> str:
    """Point out norms that learn and keep nothing, as MONAI's U-Net has them by default."""
    bare = any(isinstance(m, _InstanceNorm) and not m.state_dict() for m in model.modules())
    said = "; its InstanceNorm learns and keeps nothing that could stay local: choose BatchNorm"
    return f"{said} where the model is made (MONAI: norm='batch')" if bare else ""


def _sample(federation: Federation) -> Tensor:
    return federation.clients[0].train.batch(slice(0, 2))[0].cpu()


def materialize(model: nn.Module, federation: Federation) -> None:
    """Give lazy modules their shapes by one batch, without training them."""
    if any(nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers())):
        forward(model, _sample(federation))


def _check_output(model: nn.Module, federation: Federation) -> Tensor:
    outputs = forward(model, _sample(federation))
    classes, target = len(federation.classes), federation.clients[0].train.target
    space = target.shape[1:] if targets_of(target) is Targets.MASK else ()
    expected = (2, classes, *space)
    if not isinstance(outputs, Tensor) or outputs.shape != expected:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        what = "target(s)" if targets_of(target) is Targets.NUMBERS else "classes"
        raise ModelError(
            f"the model gives {got} for 2 samples, but {federation.name} has {classes} {what}: "
            f"expected {expected}"
        )
    return outputs


@torch.no_grad()
def forward(model: nn.Module, x: Tensor) -> Any:
    """Call a model in evaluation mode; what it raises becomes one line."""
    model.eval()
    with blamed(ModelError, f"the model fails on inputs of shape {tuple(x.shape)}"), contained():
        return model(x)
