"""Groups, such as patients, whose ids occur at several clients.

An id means one patient within a client. Whether it means the same patient at every client is for
the user to say: `data.group_scope` is `site` or `global`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from fedbn.core.federation import AnySplit, Split
from fedbn.core.findings import Warned
from fedbn.core.randomness import divided_across
from fedbn.data.lazy_split import LazySplit
from fedbn.errors import DataError

GroupScope = Literal["site", "global"]
"""Whether equal ids at two clients are two groups or one."""
Ids = Mapping[str, Sequence[str]]
"""The id of each sample, by client."""
K = TypeVar("K")


def shared_ids_warning(train: Ids, test: Ids, scope: GroupScope | None) -> list[Warned]:
    """Warn about ids in training at one client and in test at another, until a scope is set.

    Args:
        train: The ids of each client's training samples.
        test: The ids of each client's test samples.
        scope: What the user said of equal ids; None if nothing.
    """
    if scope is not None:
        return []
    trained: dict[str, str] = {}
    for client, own in train.items():
        trained |= dict.fromkeys(own, client)
    crossing = [
        (one, trained[one], client)
        for client, own in test.items()
        for one in dict.fromkeys(own)
        if one in trained
    ]
    if not crossing:
        return []
    count = len({one for one, _, _ in crossing})
    first, at, other = crossing[0]
    return [
        Warned(
            f"data.group: {count} ids are in training at one client and in test at another, the "
            f"first {first!r} (training at {at}, test at {other}). Set data.group_scope = 'global' "
            "if an id is the same patient everywhere, 'site' if it is not"
        )
    ]


def by_index(ids: Sequence[str], index: Tensor) -> list[str]:
    """Return the ids of some samples."""
    return [ids[at] for at in index.tolist()] if ids else []


def global_numbers(ids: Mapping[K, Sequence[str]]) -> dict[K, Tensor]:
    """Number groups so that an id has one number at all clients.

    Examples:
        >>> {name: n.tolist() for name, n in global_numbers({"a": ["q", "p"], "b": ["p"]}).items()}
        {'a': [1, 0], 'b': [0]}
    """
    names = sorted({one for own in ids.values() for one in own})
    place = {name: number for number, name in enumerate(names)}
    return {client: torch.tensor([place[one] for one in own]) for client, own in ids.items()}


def regrouped(split: AnySplit, groups: Tensor) -> AnySplit:
    """Return a split whose samples are in other groups."""
    assert isinstance(split, Split | LazySplit)
    return replace(split, groups=groups)


def divided_by_id(
    labels: Mapping[str, Tensor], ids: Ids, share: float, seed: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Divide every client's samples into training and test, an id on the same side everywhere.

    Args:
        labels: The targets of each client's samples.
        ids: Whose they are.
        share: The part of the groups that is held out.
        seed: Decides which groups these are.

    Returns:
        For each client the indices of training and of test samples.
    """
    numbers = global_numbers(ids)
    parts = {client: (y, numbers[client]) for client, y in labels.items()}
    sides = divided_across(parts, share, seed, "test split") if parts else {}
    for client, (rest, held) in sides.items():
        check_enough(client, len(rest), len(held))
    return sides


def check_sides(train: Ids, test: Ids) -> None:
    """Refuse data that was divided by hand with an id in training here and in test there.

    Raises:
        DataError: An id is on both sides.
    """
    first = {one: client for client, own in train.items() for one in own}
    for client, own in test.items():
        for one in own:
            if one in first:
                raise DataError(
                    f"data.group_scope = 'global': {one!r} is in training at {first[one]} and in "
                    f"test at {client}; all samples of a patient belong to one of them"
                )


def check_enough(client: str, train: int, test: int) -> None:
    """Refuse a division that leaves a client too little to train or to test on.

    Raises:
        DataError: Fewer than two samples to train on, or none to test on.
    """
    if train < 2 or not test:
        raise DataError(
            f"data.group_scope = 'global': client {client} has {train} samples for training and "
            f"{test} for testing; at least 2 and 1 are needed. Another data.split_seed or a larger "
            "data.test_share may help"
        )
