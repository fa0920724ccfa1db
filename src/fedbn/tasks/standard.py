"""Classification, several labels a sample, numbers, and a class for every place of a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedbn.core.federation import Targets
from fedbn.core.task import CLASSIFICATION, Loss, Task, softmax
from fedbn.errors import ConfigError
from fedbn.tasks.losses import (
    balanced,
    balanced_labels,
    binary_cross_entropy,
    dice_cross_entropy,
    weighted_cross_entropy,
    weighted_labels,
)
from fedbn.tasks.metrics import METRICS

__all__ = ["classification", "multilabel", "regression", "segmentation"]

ClassWeights = Literal["balanced"] | Sequence[float] | None


def classification(class_weights: ClassWeights = None) -> Task:
    """One class a sample: cross entropy; accuracy."""
    return _weighted(CLASSIFICATION, class_weights, weighted_cross_entropy, balanced)


def multilabel(class_weights: ClassWeights = None) -> Task:
    """Any number of labels a sample: binary cross entropy; AUROC, macro F1, right labels."""
    metrics = tuple(METRICS[name] for name in ("auroc", "macro_f1", "label_accuracy"))
    task = Task(
        "multilabel",
        Targets.LABELS,
        binary_cross_entropy,
        metrics,
        keep=_sigmoid,
        probabilities=_sigmoid,
    )
    return _weighted(task, class_weights, weighted_labels, balanced_labels)


def regression() -> Task:
    """One or several numbers a sample: squared error; R², mean absolute and root mean square."""
    metrics = tuple(METRICS[name] for name in ("r2", "mae", "rmse"))
    return Task("regression", Targets.NUMBERS, torch.nn.functional.mse_loss, metrics)


def segmentation(class_weights: ClassWeights = None) -> Task:
    """A class a pixel (or voxel, or moment): cross entropy and soft Dice; Dice and IoU."""
    task = Task(
        "segmentation",
        Targets.MASK,
        dice_cross_entropy,
        (METRICS["dice"], METRICS["iou"]),
        keep=_likeliest,
        probabilities=softmax,
    )
    return _weighted(task, class_weights, dice_cross_entropy, balanced)


def _sigmoid(outputs: Tensor) -> Tensor:
    return outputs.double().sigmoid()


def _likeliest(outputs: Tensor) -> Tensor:
    """The class of each place; whole outputs of many pictures would not fit in memory."""
    return outputs.argmax(dim=1).to(torch.uint8 if outputs.shape[1] <= 256 else torch.int64)


def _weighted(
    task: Task,
    asked: ClassWeights,
    loss: Callable[..., Tensor],
    balance: Callable[[Tensor, int], Tensor],
) -> Task:
    """Weigh classes in a task's loss: by the numbers given, or by each client's own counts."""
    if asked is None:
        return task

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
        return partial(loss, weights=weights)

    return replace(task, loss_for=loss_for)
