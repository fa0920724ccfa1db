"""Every random draw of a run comes from a generator named by what it is for.

Because a generator is a function of (seed, purpose, round, client), a resumed run needs no stored
generator, and no draw depends on which client happened to train first.

Seeded, stratified splits: each class is divided in the same proportion.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedbn.core.federation import AnySplit, Client, Federation

T = TypeVar("T")


def derive_seed(seed: int, purpose: str, round: int = 0, client: str = "") -> int:
    """Derive a 63-bit number from what the randomness is for.

    Examples:
        >>> derive_seed(0, "order", 1, "a") == derive_seed(0, "order", 1, "a")
        True
        >>> derive_seed(0, "order", 1, "a") == derive_seed(0, "order", 2, "a")
        False
    """
    text = f"{seed}\0{purpose}\0{round}\0{client}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: str = "") -> torch.Generator:
    """Make the CPU generator for one purpose, round and client."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, round, client))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the generators that a whole process shares begin from a seed, and put them back.

    These are torch's, Python's and NumPy's; a user's code may draw from any of them.
    """
    numpy = _numpy()
    before, numpys = random.getstate(), numpy and numpy.get_state()
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before)
            if numpy:
                numpy.set_state(numpys)


def drawn(run: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    """Run something from a fixed seed; gives its result, and whose generators it drew from.

    Examples:
        >>> drawn(lambda: random.random() < 2)
        (True, ("Python's",))
    """
    with seeded(0):
        untouched = _next()
    with seeded(0):
        result, found = run(), _next()
    return result, tuple(name for name in found if found[name] != untouched.get(name))


def _next() -> dict[str, float]:
    found = {"torch's": float(torch.rand(())), "Python's": random.random()}
    return found | ({"NumPy's": numpy.random()} if (numpy := _numpy()) else {})


def _numpy() -> Any:
    """NumPy's own generator, where anybody imported it."""
    return getattr(sys.modules.get("numpy"), "random", None)


def stratified(labels: Tensor, share: float, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Divide sample indices in two; the second part takes `share` of every class, if there are any.

    The second part has round(share · n) samples in all: classes whose exact share is furthest
    above a whole number give one more.

    Examples:
        >>> labels = torch.tensor([0] * 10 + [1] * 5)
        >>> rest, held = stratified(labels, 0.2, torch.Generator().manual_seed(0))
        >>> labels[held].bincount().tolist(), labels[rest].bincount().tolist()
        ([2, 1], [8, 4])
    """
    if labels.dim() > 1:  # no classes to be fair to
        labels = torch.zeros(len(labels), dtype=torch.int64)
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
    classes = labels if labels.dim() == 1 else torch.zeros_like(place)
    of_group = torch.zeros_like(names).scatter_(0, place, classes)
    _, chosen = stratified(of_group, share, draws)
    held = torch.isin(place, chosen)
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def divided(split: AnySplit, share: float, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Divide a split's samples in two, class by class where known, and never a group of them."""
    labels = torch.zeros(len(split), dtype=torch.int64) if split.y is None else split.y
    if split.groups is None:
        return stratified(labels, share, draws)
    return stratified_groups(labels, split.groups, share, draws)


def divided_across(
    parts: Mapping[str, tuple[Tensor, Tensor]], share: float, seed: int, purpose: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """Divide the samples of several clients in two, a group on the same side at all of them.

    Groups at several clients are divided first, together. Every client then divides its other
    groups as it would on its own.

    Args:
        parts: The targets and the groups of each client's samples; a group is one number at all
            clients.
        share: The part of the groups that the second side takes.
        seed: Decides which groups these are.
        purpose: What the division is for.

    Returns:
        For each client the indices of both sides.
    """
    homes: dict[int, int] = {}
    for _, groups in parts.values():
        for group in groups.unique().tolist():
            homes[group] = homes.get(group, 0) + 1
    several = torch.tensor([group for group, count in homes.items() if count > 1], dtype=torch.long)
    labels = torch.cat([_one_label(y)[torch.isin(g, several)] for y, g in parts.values()])
    groups = torch.cat([g[torch.isin(g, several)] for _, g in parts.values()])
    held_groups = groups[:0]
    if len(groups):
        draws = generator(seed, f"{purpose} of shared groups")
        held_groups = groups[stratified_groups(labels, groups, share, draws)[1]].unique()
    found = {}
    for client, (y, g) in parts.items():
        own = (~torch.isin(g, several)).nonzero().flatten()
        held = torch.isin(g, held_groups)
        if len(own):
            draws = generator(seed, purpose, client=client)
            held[own[stratified_groups(_one_label(y)[own], g[own], share, draws)[1]]] = True
        found[client] = (~held).nonzero().flatten(), held.nonzero().flatten()
    return found


def _one_label(y: Tensor) -> Tensor:
    """Return targets that are classes as they are, and one class for all other targets."""
    plain = y.dim() == 1 and not y.is_floating_point()
    return y if plain else torch.zeros(len(y), dtype=torch.int64)


def with_validation(federation: Federation, share: float, seed: int) -> Federation:
    """Hold a stratified share of training data out at every client that brought none."""
    if federation.preparation.get("group_scope") == "global":
        return _with_validation_across(federation, share, seed)

    def held_out(client: Client) -> Client:
        rest, held = divided(client.train, share, generator(seed, "validation", client=client.name))
        return replace(client, train=client.train.take(rest), valid=client.train.take(held).plain())

    clients = (held_out(c) if c.valid is None else c for c in federation.clients)
    return replace(federation, clients=tuple(clients))


def _with_validation_across(federation: Federation, share: float, seed: int) -> Federation:
    """Hold training data out where a group is the same at all clients."""
    parts = {}
    for client in federation.clients:
        train = client.train
        if client.valid is None and train.groups is not None:
            y = torch.zeros(len(train), dtype=torch.int64) if train.y is None else train.y
            parts[client.name] = (y, train.groups)
    sides = divided_across(parts, share, seed, "validation")
    clients = []
    for client in federation.clients:
        if client.valid is None:
            rest, held = sides[client.name]
            valid = client.train.take(held).plain()
            client = replace(client, train=client.train.take(rest), valid=valid)
        clients.append(client)
    return replace(federation, clients=tuple(clients))
