"""Shares of a domain's samples: what several clients, a percentage or given sizes make of it."""

from __future__ import annotations

import pytest
import torch
from loading import loaded

from fedbn.core.federation import Split
from fedbn.data.benchmarks import checked_sizes, thinned
from fedbn.datasets.digits_mini import digits_mini
from fedbn.errors import ConfigError


def test_fewer_samples_are_spread_evenly() -> None:
    split = Split(torch.arange(10.0)[:, None], torch.arange(10))
    assert thinned(split, 4).y.tolist() == [0, 2, 5, 7]
    assert thinned(split, None) is split


def test_a_share_keeps_every_class() -> None:
    for client in digits_mini(percent=10, test_limit=20).clients:
        assert len(client.train) == 22  # every tenth of 215
        assert len(client.tests[client.domain]) == 20
        assert set(client.train.y.tolist()) == set(range(10))


def test_clients_of_a_domain_have_different_samples_and_one_test_set() -> None:
    found = digits_mini(percent=10, clients_per_domain=10).clients
    assert len(found) == 50
    mine = [client for client in found if client.domain == "photo"]
    assert [client.name for client in mine[:2]] == ["photo-1", "photo-2"]
    assert sum(len(client.train) for client in mine) == 215
    together = torch.cat([client.train.x for client in mine]).flatten(1)
    assert len(together.unique(dim=0)) == 215
    assert mine[0].tests["photo"] is mine[9].tests["photo"]
    alone = next(c for c in digits_mini(percent=10).clients if c.name == "photo")
    assert torch.equal(alone.train.x, mine[0].train.x)


def test_sizes_are_one_a_domain_and_no_more_than_there_is() -> None:
    assert checked_sizes(None, {"a": 5}, 1) == {}
    assert checked_sizes([2, 5], {"a": 5, "b": 5}, 1) == {"a": 2, "b": 5}
    assert [len(c.train) for c in digits_mini(sizes=[44, 4, 215, 31, 31]).clients] == [
        44, 4, 215, 31, 31,
    ]  # fmt: skip
    for wrong in ([2], [2, 6], [1, 5]):
        with pytest.raises(ConfigError, match=r"data.sizes"):
            checked_sizes(wrong, {"a": 5, "b": 5}, 1)
    with pytest.raises(ConfigError, match="clients_per_domain = 1"):
        checked_sizes([2, 5], {"a": 5, "b": 5}, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"percent": 4}, "greater than or equal to 5"),
        ({"clients_per_domain": 11}, "less than or equal to 10"),
        ({"percent": 20, "clients_per_domain": 2}, "set percent to 10"),
        ({"clients_per_domain": 2}, "set percent to 10"),
        ({"test_limit": 0}, "greater than or equal to 1"),
    ],
)
def test_shares_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    name, value = list(options.items())[-1]
    with pytest.raises(ConfigError, match=rf"data\.{name} = {value}: .*{message}"):
        loaded("digits_mini", **options)
