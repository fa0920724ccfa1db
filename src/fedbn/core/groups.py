"""Samples that belong together, such as the windows of one subject, scored as one."""

from __future__ import annotations

import torch
from torch import Tensor


def majority_accuracy(predicted: Tensor, labels: Tensor, groups: Tensor) -> float:
    """Score groups: each is given the class that most of its samples are given.

    Of classes with equally many samples the first is taken. All samples of a group must have one
    label.

    Examples:
        >>> predicted = torch.tensor([0, 1, 1, 0, 0])
        >>> labels = torch.tensor([1, 1, 1, 1, 1])
        >>> majority_accuracy(predicted, labels, torch.tensor([7, 7, 7, 9, 9]))
        0.5
    """
    names, place = groups.unique(return_inverse=True)
    classes = int(max(predicted.max(), labels.max())) + 1
    votes = torch.bincount(place * classes + predicted, minlength=len(names) * classes)
    truth = torch.zeros_like(names).scatter_(0, place, labels)
    given = votes.view(len(names), classes).argmax(dim=1)
    return float((given == truth).double().mean())
