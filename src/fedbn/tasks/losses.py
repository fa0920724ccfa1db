"""Losses by name: plain functions of outputs and targets that give the mean of a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedbn.core.task import Loss

__all__: list[str] = []


def weighted_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Cross entropy in which each sample, or place, counts as much as its class weighs."""
    weight = None if weights is None else weights.to(outputs)
    return functional.cross_entropy(outputs, targets, weight=weight)


def weighted_labels(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Binary cross entropy of every label; a label that is there counts as much as it weighs."""
    positive = None if weights is None else weights.to(outputs)
    return functional.binary_cross_entropy_with_logits(
        outputs, targets.to(outputs.dtype), pos_weight=positive
    )


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross entropy of every label."""
    return weighted_labels(outputs, targets, None)


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
    """Weigh a label that is there as often as it is not; one that nobody here has, by 1."""
    there = targets.double().sum(dim=0)
    return torch.where(there > 0, (len(targets) - there) / there.clamp(min=1), 1.0)


LOSSES: dict[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared": functional.mse_loss,
    "absolute": functional.l1_loss,
    "huber": functional.huber_loss,
    "dice": dice,
    "dice_cross_entropy": dice_cross_entropy,
}
