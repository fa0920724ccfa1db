"""Dealing a domain's training samples: a share for one client, or a tenth for each of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedbn.core.federation import Client, Split
from fedbn.errors import ConfigError

_TENTHS = 10


def checked_sizes(
    sizes: list[int] | None, lengths: Mapping[str, int], clients: int
) -> dict[str, int]:
    """Give each domain the number of training samples asked for; empty where none is."""
    if sizes is None:
        return {}
    if len(sizes) != len(lengths) or clients > 1:
        raise ConfigError(
            f"data.sizes = {sizes}: legal is one number a domain ({', '.join(lengths)}), and "
            "clients_per_domain = 1"
        )
    found = dict(zip(lengths, sizes, strict=True))
    for domain, size in found.items():
        if not 2 <= size <= lengths[domain]:
            raise ConfigError(
                f"data.sizes = {sizes}: {domain} has {lengths[domain]} training samples; "
                f"legal are 2 to {lengths[domain]}"
            )
    return found


def thinned(split: Split, count: int | None) -> Split:
    """Keep so many samples, evenly spread, so that what lies class by class keeps all classes."""
    if count is None or count >= len(split):
        return split
    return split.take(torch.arange(count) * len(split) // count)


def tenths(whole: Client, clients: int) -> list[Client]:
    """Make clients of one domain with a tenth of its samples each, scored on the same test set.

    The first has the same tenth, however many there are.
    """
    return [
        replace(
            whole,
            name=whole.name if clients == 1 else f"{whole.name}-{number + 1}",
            train=whole.train.take(torch.arange(number, len(whole.train), _TENTHS)),
        )
        for number in range(clients)
    ]


def check_shares(percent: int, clients: int, test_limit: int | None) -> None:
    """Refuse shares that no client can have."""
    if not 5 <= percent <= 100:
        raise ConfigError(f"data.percent = {percent}: legal are 5 to 100")
    check_clients(percent, clients, test_limit)


def check_clients(percent: int, clients: int, test_limit: int | None) -> None:
    """Refuse numbers of clients and test samples that no domain can have."""
    if not 1 <= clients <= _TENTHS:
        raise ConfigError(f"data.clients_per_domain = {clients}: legal are 1 to {_TENTHS}")
    if clients > 1 and percent != 10:
        raise ConfigError(
            f"data.percent = {percent} with data.clients_per_domain = {clients}: several clients "
            "have a tenth each; set percent to 10, or leave clients_per_domain at 1"
        )
    if test_limit is not None and test_limit < 1:
        raise ConfigError(f"data.test_limit = {test_limit}: legal are whole numbers from 1")
