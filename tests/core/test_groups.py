"""Samples that belong together."""

from __future__ import annotations

import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import stratified_groups
from fedbn.core.task import majority


def split(groups: list[int]) -> Split:
    n = len(groups)
    return Split(torch.arange(n * 1.0)[:, None], torch.zeros(n).long(), groups=torch.tensor(groups))


def test_groups_follow_their_samples():
    part = split([5, 5, 9]).take(torch.tensor([2, 0]))
    assert part.groups.tolist() == [9, 5]
    assert part.to("cpu").groups.tolist() == [9, 5]
    assert Split(part.x, part.y).take(torch.tensor([0])).groups is None


def test_pooling_keeps_groups_of_different_clients_apart():
    clients = [Client(name, name, split(g), {name: split(g)}) for name, g in
               (("a", [5, 5, 9]), ("b", [5, 7, 7]))]  # fmt: skip
    pooled = Federation("f", tuple(clients), ("x", "y")).pooled().clients[0]
    assert pooled.train.groups.tolist() == [0, 0, 4, 5, 7, 7]
    assert pooled.tests["b"].groups.tolist() == [5, 7, 7]


def test_pooling_without_all_groups_has_none():
    bare = Split(torch.zeros(2, 1), torch.tensor([0, 1]))
    clients = (Client("a", "a", split([1, 2]), {}), Client("b", "b", bare, {}))
    assert Federation("f", clients, ("x", "y")).pooled().clients[0].train.groups is None


def test_a_tie_takes_the_first_class():
    predicted, groups = torch.tensor([0, 1, 1, 0]), torch.tensor([3, 3, 8, 8])
    votes, truth = majority(torch.eye(2)[predicted], torch.tensor([0, 0, 1, 1]), groups)
    assert (votes.argmax(dim=1).tolist(), truth.tolist()) == ([0, 0], [0, 1])


def test_a_group_is_never_divided_and_classes_keep_their_share():
    groups = torch.arange(40).repeat_interleave(torch.arange(40) % 3 + 1)
    labels = (groups >= 30).long()
    rest, held = stratified_groups(labels, groups, 0.2, torch.Generator().manual_seed(0))
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(len(groups)))
    assert not set(groups[rest].tolist()) & set(groups[held].tolist())
    assert len(groups[held][labels[held] == 0].unique()) == 6
    assert len(groups[held][labels[held] == 1].unique()) == 2
