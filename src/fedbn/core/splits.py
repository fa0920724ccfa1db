"""Seeded, stratified splits: each class is divided in the same proportion."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedbn.core.federation import Client, Federation
from fedbn.core.randomness import generator


def stratified(labels: Tensor, share: float, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Divide sample indices in two; the second part takes `share` of every class.

    The second part has round(share · n) samples in all: classes whose exact share is furthest
    above a whole number give one more.

    Examples:
        >>> labels = torch.tensor([0] * 10 + [1] * 5)
        >>> rest, held = stratified(labels, 0.2, torch.Generator().manual_seed(0))
        >>> labels[held].bincount().tolist(), labels[rest].bincount().tolist()
        ([2, 1], [8, 4])
    """
    order = torch.randperm(len(labels), generator=draws)
    counts = labels.bincount().double()
    take = (counts * share).floor()
    wanted = round(share * len(labels)) - int(take.sum())
    by_remainder = (counts * share - take).argsort(descending=True, stable=True)
    take[by_remainder[:wanted]] += 1
    shuffled = labels[order]
    rank = torch.zeros_like(order)
    for label in range(len(counts)):
        mine = shuffled == label
        rank[mine] = torch.arange(int(mine.sum()))
    held = rank < take[shuffled]
    return order[~held].sort().values, order[held].sort().values


def stratified_groups(
    labels: Tensor, groups: Tensor, share: float, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Divide sample indices in two, never a group; the second takes `share` of each class's groups.

    Examples:
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


def with_validation(federation: Federation, share: float, seed: int) -> Federation:
    """Hold a stratified share of every client's training data out, for choosing."""
    return replace(federation, clients=tuple(_held_out(c, share, seed) for c in federation.clients))


def _held_out(client: Client, share: float, seed: int) -> Client:
    draws = generator(seed, "validation", client=client.name)
    labels, groups = client.train.y, client.train.groups
    if groups is None:
        rest, held = stratified(labels, share, draws)
    else:
        rest, held = stratified_groups(labels, groups, share, draws)
    valid = replace(client.train.take(held), augment=None)
    return replace(client, train=client.train.take(rest), valid=valid)
