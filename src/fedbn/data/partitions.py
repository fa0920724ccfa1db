"""One data set dealt into clients, as the field does it.

`iid` deals samples at random; `dirichlet(a)` draws for every class the shares of the clients from a
Dirichlet distribution (Hsu et al. 2019), the smaller a the more unequal; `shards(k)` sorts samples
by class, cuts them into k shards a client and deals these (McMahan et al. 2017). Test and
validation samples follow the training samples of their class. Groups are never divided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedbn.core.federation import AnySplit, Client, Federation, concatenated
from fedbn.core.findings import check_labels
from fedbn.core.randomness import derive_seed
from fedbn.errors import ConfigError, DataError

_LEGAL = "legal are 'iid', 'dirichlet(a)' with a > 0 and 'shards(k)' with k = 1, 2, ..."
_FORM = re.compile(r"(iid|dirichlet|shards)(?:\(([^()]+)\))?")
_TRIES = 100
_FEWEST = {"train": 2, "test": 1, "valid": 1}
Places = NDArray[np.int64]
Deal = Callable[[Places, int, np.random.Generator], Places]
"""From the class of each unit (a sample or a group) and the number of clients to unit's client."""


def dealt(federation: Federation, partition: str, clients: int, seed: int = 0) -> Federation:
    """Pool a federation's clients and deal all samples into so many: see above.

    The seed decides who gets what; a run's own seed does not touch it.
    """
    deal, by_class = _deal(partition)
    check_labels(federation)
    (whole,) = federation.pooled().clients
    parts = {"train": whole.train, "test": concatenated([*whole.tests.values()])}
    if whole.valid is not None:
        parts["valid"] = whole.valid
    labels, units = dict[str, Places](), dict[str, Places]()
    for name, part in parts.items():
        labels[name], units[name] = _units(part, by_class, partition)
    draws = np.random.default_rng(derive_seed(seed, f"partition {partition}"))
    for _ in range(_TRIES):
        homes = {"train": deal(labels["train"], clients, draws)}
        shares = _shares(labels["train"], homes["train"], clients)
        for name in [*parts][1:]:
            homes[name] = _cut(labels[name], shares, draws)
        whose = {name: homes[name][units[name]] for name in parts}  # the client of each sample
        found = {n: [np.flatnonzero(own == c) for c in range(clients)] for n, own in whose.items()}
        if all(len(index) >= _FEWEST[name] for name in found for index in found[name]):
            break
    else:
        raise DataError(
            f"data.partition = {partition!r}: {len(parts['train'])} training and "
            f"{len(parts['test'])} test samples cannot give each of {clients} clients 2 and 1; "
            "fewer data.clients or a more even partition would do"
        )
    made = []
    for at in range(clients):
        name = f"client-{at + 1:0{len(str(clients))}}"
        mine = {part: parts[part].take(torch.from_numpy(found[part][at])) for part in parts}
        made.append(Client(name, name, mine["train"], {name: mine["test"]}, mine.get("valid")))
    said = f"{federation.name} dealt into {clients} clients by {partition}"
    return replace(federation, clients=tuple(made), remarks=(*federation.remarks, said))


def _units(split: AnySplit, by_class: bool, partition: str) -> tuple[Places, Places]:
    """What is dealt of a split, its samples or its groups: their classes, and whose a sample is."""
    n = len(split)
    y = split.y if split.y is not None and split.target.dim() == 1 else None
    if by_class and (y is None or y.is_floating_point()):
        raise DataError(
            f"data.partition = {partition!r} deals by class, but the classes of all samples "
            "are not known; give the Dataset an attribute `targets`, or take 'iid'"
        )
    labels = np.zeros(n, np.int64) if y is None or not by_class else y.cpu().numpy()
    groups = np.arange(n) if split.groups is None else split.groups.cpu().numpy()
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    return labels[first], unit


def _deal(partition: str) -> tuple[Deal, bool]:
    """Read a partition; and tell whether it deals by class."""
    found = _FORM.fullmatch(partition.replace(" ", ""))
    kind, text = found.groups() if found else ("", None)
    try:
        value = float(text or "nan")
    except ValueError:
        value = math.nan
    if kind == "iid" and text is None:
        return _even, False
    if kind == "dirichlet" and 0 < value < math.inf:

        def by_shares(labels: Places, clients: int, draws: np.random.Generator) -> Places:
            classes = int(labels.max(initial=0)) + 1
            return _cut(labels, draws.dirichlet(np.full(clients, value), classes), draws)

        return by_shares, True
    if kind == "shards" and value >= 1 and value == int(value):
        return lambda labels, clients, draws: _shards(labels, clients, int(value), draws), True
    raise ConfigError(f"data.partition = {partition!r}: {_LEGAL}")


def _even(labels: Places, clients: int, draws: np.random.Generator) -> Places:
    return _cut(np.zeros_like(labels), np.full((1, clients), 1 / clients), draws)


def _shards(labels: Places, clients: int, each: int, draws: np.random.Generator) -> Places:
    if each * clients > len(labels):
        raise DataError(
            f"data.partition = 'shards({each})': {each} for each of {clients} clients are "
            f"{each * clients} shards, but there are {len(labels)} samples (or groups) to train on"
        )
    shuffled = draws.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    home = np.empty_like(labels)
    turns = draws.permutation(each * clients) % clients
    for client, shard in zip(turns, np.array_split(by_class, each * clients), strict=True):
        home[shard] = client
    return home


def _shares(labels: Places, home: Places, clients: int) -> NDArray[np.float64]:
    """Of each class the part that each client has, (classes, clients); equal parts of none."""
    counts = np.zeros((int(labels.max(initial=0)) + 1, clients))
    np.add.at(counts, (labels, home), 1)
    counts[counts.sum(axis=1) == 0] = 1
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _cut(labels: Places, shares: NDArray[np.float64], draws: np.random.Generator) -> Places:
    """Shuffle every class and cut it in these shares, (classes, clients)."""
    home = np.zeros_like(labels)
    for label in np.unique(labels):
        mine = draws.permutation(np.flatnonzero(labels == label))
        part = shares[label] if label < len(shares) else shares.mean(axis=0)
        cuts = np.rint(np.cumsum(part)[:-1] * len(mine)).astype(np.int64)
        for client, some in enumerate(np.split(mine, cuts)):
            home[some] = client
    return home
