"""What a task is: three questions, answered by a value.

1. Which targets are legal, and which outputs fit? A kind of target (`core.federation.Targets`); a
   model gives one number a class, or a name of a target, for each of them.
2. What is minimised? A loss, a plain function of outputs and targets.
3. What is measured? Metrics, the first of which decides what is best and what tables show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedbn.core.federation import Targets, targets_of
from fedbn.core.metric import ACCURACY, Metric
from fedbn.errors import ConfigError, blamed

Loss = Callable[[Tensor, Tensor], Tensor]
_LONGEST = 50  # signs of a metric's name


@dataclass(frozen=True)
class Task:
    """What models learn."""

    name: str  # what it is called
    targets: Targets  # the kind of targets it learns from
    loss: Loss  # the mean loss of a batch, from outputs and targets
    metrics: tuple[Metric, ...]  # what is measured; the first decides
    # predictions: what is kept of outputs to measure and to predict by; by the targets unless given
    keep: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    # outputs as such, by the targets unless given; None: they are none
    probabilities: Callable[[Tensor], Tensor] | None = None
    # outputs and targets of groups, from those of their samples; None where groups are not scored
    vote: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    # makes a client's loss of its training targets and the number of classes, where it depends on
    # them (class weights)
    loss_for: Callable[[Tensor, int], Loss] | None = None

    def __post_init__(self) -> None:
        keep, probabilities = _KEPT[self.targets]
        object.__setattr__(self, "keep", keep if self.keep is None else self.keep)
        object.__setattr__(self, "probabilities", self.probabilities or probabilities)

    def facts(self) -> dict[str, Any]:
        """Plain values, for a run's records."""
        return {"name": self.name, "metrics": [metric.facts() for metric in self.metrics]}

    def measured(
        self, outputs: Tensor, targets: Tensor, groups: Tensor | None = None
    ) -> dict[str, float]:
        """Compute every metric of kept outputs; of groups with one target each the first too."""
        found = {metric.name: measure(metric, outputs, targets) for metric in self.metrics}
        if groups is not None and self.vote is not None:
            first = self.metrics[0]
            votes, truth = self.vote(outputs, targets, groups)
            if torch.equal(truth[groups.unique(return_inverse=True)[1]], targets.to(truth)):
                found[f"group_{first.name}"] = measure(first, votes, truth)
        return found


def measure(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """Compute a metric of a whole split; what a user's own raises becomes one line."""
    assert metric.value is not None
    weights = torch.ones(1, len(outputs), dtype=torch.float64).numpy()
    with blamed(ConfigError, f"metric {metric.name} fails"):
        return float(metric.value(outputs.cpu().numpy(), targets.cpu().numpy(), weights)[0])


def check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss that gives no number, or none that can be descended."""
    outputs = outputs.detach().requires_grad_()
    with blamed(ConfigError, "task.loss fails on a batch of two"):
        found = loss(outputs, targets)
    if not isinstance(found, Tensor) or found.dim():
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"task.loss gives {got} for a batch; legal is one number, a mean or sum")
    if not found.requires_grad:
        raise ConfigError(
            "task.loss has no gradient: it must be computed from the outputs by torch, without "
            "detach(), item() or argmax()"
        )


def check_targets(task: Task, found: Tensor, where: str) -> None:
    """Refuse targets that a task does not learn from, with the task that does."""
    kind = targets_of(found)
    if kind is not None and kind != task.targets:
        raise ConfigError(
            f"task {task.name} learns from {task.targets.value}, but {where} has {kind.value}; "
            f"task.name = {FITTING[kind]!r} fits"
        )


FITTING = {
    Targets.CLASS: "classification",
    Targets.LABELS: "multilabel",
    Targets.NUMBERS: "regression",
    Targets.MASK: "segmentation",
}
"""The registered task for each kind of target: what a run takes that names none."""


def majority(outputs: Tensor, labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Let the samples of each group vote for its class: shares of votes, and its true class.

    Of classes with equally many votes the first is taken. All samples of a group must have one
    label.

    Examples:
        >>> outputs = torch.eye(2)[[0, 1, 1, 0, 0]]
        >>> votes, truth = majority(outputs, torch.ones(5).long(), torch.tensor([7, 7, 7, 9, 9]))
        >>> votes.argmax(dim=1).tolist(), truth.tolist()
        ([1, 0], [1, 1])
    """
    names, place = groups.to(outputs.device).unique(return_inverse=True)
    classes = outputs.shape[1]
    votes = torch.bincount(place * classes + outputs.argmax(dim=1), minlength=len(names) * classes)
    truth = torch.zeros_like(names).scatter_(0, place, labels.to(outputs.device))
    shares = votes.view(len(names), classes).double()
    return shares / shares.sum(dim=1, keepdim=True), truth


def softmax(outputs: Tensor) -> Tensor:
    """Probabilities of classes, the second dimension."""
    return outputs.double().softmax(dim=1)


def sigmoid(outputs: Tensor) -> Tensor:
    """Probabilities of labels."""
    return outputs.double().sigmoid()


def likeliest(outputs: Tensor) -> Tensor:
    """The class of each place; whole outputs of many pictures would not fit in memory."""
    return outputs.argmax(dim=1).to(torch.uint8 if outputs.shape[1] <= 256 else torch.int64)


_KEPT = {
    Targets.CLASS: (softmax, softmax),
    Targets.LABELS: (sigmoid, sigmoid),
    Targets.MASK: (likeliest, softmax),
    Targets.NUMBERS: (Tensor.detach, None),
}


def named_once(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Refuse metrics of one name, because records tell them apart by it."""
    names = [metric.name for metric in metrics]
    for number, name in enumerate(names):
        if name in names[:number] or name in ("loss", "training_loss", "refused", "untrained"):
            raise ConfigError(f"task.metrics: {name!r} is taken; names of metrics must differ")
        if not name.isprintable() or not 0 < len(name) <= _LONGEST:
            raise ConfigError(f"task.metrics: {name!r}: legal are names of 1 to {_LONGEST} signs")
    return tuple(metrics)


CLASSIFICATION = Task(
    "classification", Targets.CLASS, functional.cross_entropy, (ACCURACY,), vote=majority
)
"""The paper's task."""
