"""Some of a data set's domains."""

from __future__ import annotations

import pytest
import torch

from fedbn.data.benchmarks import checked_domains
from fedbn.datasets.digits_mini import digits_mini
from fedbn.errors import ConfigError


def test_a_domain_is_the_same_whichever_others_are_taken():
    whole = {client.name: client for client in digits_mini().clients}
    some = digits_mini(domains=["faded", "plain"])
    assert [client.name for client in some.clients] == ["faded", "plain"]
    for client in some.clients:
        assert torch.equal(client.train.x, whole[client.name].train.x)
        assert torch.equal(client.tests[client.name].y, whole[client.name].tests[client.name].y)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (["plane"], "unknown domain 'plane': did you mean 'plain'"),
        ([], r"data\.domains = \[\]: legal are one or more of plain, photo"),
        (["plain", "plain"], "each once"),
    ],
)
def test_wrong_domains_are_named(asked: list[str], text: str):
    with pytest.raises(ConfigError, match=text):
        checked_domains(asked, ["plain", "photo"])
