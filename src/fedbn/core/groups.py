"""Samples that belong together, such as the windows of one subject: dividing and scoring them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbn.core.splits import stratified


def majority_accuracy(predicted: Tensor, labels: Tensor, groups: Tensor) -> float:
    """Score groups: each is given the class that most of its samples are given.

    Of classes with equally many samples the first is taken. All samples of a group must have one
    label.

    Example:
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


def stratified_groups(
    labels: Tensor, groups: Tensor, share: float, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Divide sample indices in two, never a group; the second takes `share` of each class's groups.

    Example:
        >>> groups = torch.arange(10).repeat_interleave(3)
        >>> draws = torch.Generator().manual_seed(0)
        >>> rest, held = stratified_groups(groups % 2, groups, 0.2, draws)
        >>> len(held), set(groups[held].tolist()) & set(groups[rest].tolist())
        (6, set())
    """
    names, place = groups.unique(return_inverse=True)
    of_group = torch.zeros_like(names).scatter_(0, place, labels)
    _, chosen = stratified(of_group, share, draws)
    held = torch.isin(place, chosen)
    return (~held).nonzero().flatten(), held.nonzero().flatten()
