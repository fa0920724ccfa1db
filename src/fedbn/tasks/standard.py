"""Classification, several labels a sample, numbers, and a class for every place of a picture.

Losses by name are plain functions of outputs and targets that give the mean of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedbn.core.federation import Targets
from fedbn.core.task import CLASSIFICATION, Loss, Task
from fedbn.errors import ConfigError
from fedbn.tasks.metrics import METRICS

__all__ = ["classification", "multilabel", "regression", "segmentation"]

ClassWeights = Literal["balanced"] | Sequence[float] | None


def classification(class_weights: ClassWeights = None) -> Task:
    """One class a sample: cross entropy; accuracy."""
    return _weighted(CLASSIFICATION, class_weights, weighted_cross_entropy, balanced)


def multilabel(class_weights: ClassWeights = None) -> Task:
    """Any number of labels a sample: binary cross entropy; AUROC, macro F1, right labels."""
    metrics = tuple(METRICS[name] for name in ("auroc", "macro_f1", "label_accuracy"))
    task = Task("multilabel", Targets.LABELS, binary_cross_entropy, metrics)
    return _weighted(task, class_weights, binary_cross_entropy, balanced_labels)


def regression() -> Task:
    """One or several numbers a sample: squared error; R², mean absolute and root mean square."""
    metrics = tuple(METRICS[name] for name in ("r2", "mae", "rmse"))
    return Task("regression", Targets.NUMBERS, functional.mse_loss, metrics)


def segmentation(class_weights: ClassWeights = None) -> Task:
    """A class a pixel (or voxel, or moment): cross entropy and soft Dice; Dice and IoU."""
    metrics = METRICS["dice"], METRICS["iou"]
    task = Task("segmentation", Targets.MASK, dice_cross_entropy, metrics)
    return _weighted(task, class_weights, dice_cross_entropy, balanced)


def _weighted(
    task: Task,
    asked: ClassWeights,
    loss: Callable[..., Tensor],
    balance: Callable[[Tensor, int], Tensor],
) -> Task:
    """Weigh classes in a task's loss: by the numbers given, or by each client's own counts."""
    if asked is None:
        return task
    labels = task.targets is Targets.LABELS

    def loss_for(targets: Tensor, classes: int) -> Loss:
        if asked == "balanced":
            return partial(loss, weights=balance(targets, classes))
        weights = torch.tensor(asked, dtype=torch.float64)
        if len(weights) != classes:
            raise ConfigError(
                f"task.class_weights: {len(weights)} numbers, but the data has {classes} classes"
            )
        if not torch.isfinite(weights).all() or weights.min() < 0 or weights.max() == 0:
            raise ConfigError(f"task.class_weights = {asked}: legal are finite numbers >= 0")
        return partial(loss, weights=weights if labels else _relative(weights, targets))

    return replace(task, loss_for=loss_for)


def weighted_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Cross entropy in which each sample, or place, counts as its class weighs, by their mean."""
    if weights is None:
        return functional.cross_entropy(outputs, targets)
    given = weights.to(outputs)
    return functional.cross_entropy(outputs, targets, given, reduction="none").mean()


def binary_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Binary cross entropy of every label; a label that is there counts as much as it weighs."""
    positive = None if weights is None else weights.to(outputs)
    return functional.binary_cross_entropy_with_logits(
        outputs, targets.to(outputs.dtype), pos_weight=positive
    )


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    r"""Soft Dice, over all places of a batch and all classes but the first, the background.

    \[ 1 - \frac1{C-1} \sum_{c>0} \frac{2 \sum p_c t_c + 1}{\sum p_c + \sum t_c + 1} \]

    Examples:
        >>> sure = torch.tensor([[[-50.0, 50.0]], [[50.0, -50.0]]]).transpose(0, 1)
        >>> [round(float(dice(sure, torch.tensor([y]))), 2) for y in ([1, 0], [0, 1])]
        [0.0, 0.67]
    """
    classes = outputs.shape[1]
    true = functional.one_hot(targets, classes).movedim(-1, 1).to(outputs.dtype)
    dims = [0, *range(2, outputs.dim())]
    said = outputs.softmax(dim=1)
    both = (said * true).sum(dims)[1:]
    either = (said.sum(dims) + true.sum(dims))[1:]
    return 1 - ((2 * both + 1) / (either + 1)).mean()


def dice_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross entropy of every place, plus soft Dice, as nnU-Net adds them (Isensee et al. 2021)."""
    return weighted_cross_entropy(outputs, targets, weights) + dice(outputs, targets)


def balanced(targets: Tensor, classes: int) -> Tensor:
    """Weigh every class that is there as if all were equally frequent; one that is not, by 1.

    Examples:
        >>> balanced(torch.tensor([0, 0, 0, 1]), 3).tolist()
        [0.6666666666666666, 2.0, 1.0]
    """
    counts = targets.flatten().long().bincount(minlength=classes).double()
    there = counts > 0
    even = counts.sum() / (there.sum() * counts.clamp(min=1))
    return torch.where(there, even, torch.ones_like(even))


def balanced_labels(targets: Tensor, classes: int) -> Tensor:
    """Weigh a label that is there as often as it is not; one that nobody or all here have, by 1."""
    there = targets.double().sum(dim=0)
    both = (there > 0) & (there < len(targets))
    return torch.where(both, (len(targets) - there) / there.clamp(min=1), 1.0)


def _relative(weights: Tensor, targets: Tensor) -> Tensor:
    """Weights of which a client's samples, or places, have 1 in the mean, unless they have none."""
    counts = targets.flatten().long().bincount(minlength=len(weights)).double()
    mean = (weights * counts).sum() / counts.sum()
    return weights / mean if mean > 0 else weights


LOSSES: dict[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared": functional.mse_loss,
    "absolute": functional.l1_loss,
    "huber": functional.huber_loss,
    "dice": dice,
    "dice_cross_entropy": dice_cross_entropy,
}
