"""Clients and their data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedbn.core.federation import Client, Federation, Split
from tiny import federation

PIXELS = torch.tensor([[0, 255], [51, 204]], dtype=torch.uint8)
LABELS = torch.tensor([0, 1])


def test_bytes_become_floats_between_minus_one_and_one():
    # 51 / 127.5 − 1 = −0.6
    x, y = Split(PIXELS, LABELS).batch(slice(None))
    torch.testing.assert_close(x, torch.tensor([[-1, 1], [-0.6, 0.6]]))
    assert y is not None
    assert PIXELS[0, 1] == 255


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_taken_as_they_are(dtype: torch.dtype):
    x = torch.tensor([[300.0], [-7.0]], dtype=dtype)
    assert torch.equal(Split(x, LABELS).batch(slice(None))[0], x)


def test_a_batch_by_index_is_the_batch_by_slice():
    part = Split(PIXELS, LABELS)
    for a, b in zip(part.batch(torch.tensor([1])), part.batch(slice(1, 2)), strict=True):
        assert torch.equal(a, b)


def test_taking_keeps_the_augmentation():
    part = Split(PIXELS, LABELS, augment=lambda x, draws: x + 1)
    taken = part.take(torch.tensor([1]))
    assert taken.augment is part.augment
    assert (len(taken), taken.y.tolist()) == (1, [1])


def test_pooling_brings_all_training_data_to_one_client():
    data = federation(4, 6)
    one = data.pooled()
    (client,) = one.clients
    assert torch.equal(client.train.x, torch.cat([c.train.x for c in data.clients]))
    assert torch.equal(client.train.y, torch.cat([c.train.y for c in data.clients]))
    assert list(client.tests) == ["domain a", "domain b"]
    assert client.tests["domain b"].x is data.clients[1].tests["domain b"].x
    assert (client.valid, one.classes, one.name) == (None, data.classes, data.name)


def test_a_test_set_that_clients_of_a_domain_share_is_pooled_once():
    train, test = Split(PIXELS, LABELS), Split(PIXELS.clone(), LABELS)
    clients = tuple(Client(n, "scanner", train, {"scanner": test}) for n in ("a", "b"))
    pooled = Federation("f", clients, ("x", "y")).pooled().clients[0]
    assert len(pooled.tests["scanner"]) == 2
    assert len(pooled.train) == 4


def test_bytes_and_floats_pool_as_floats():
    floats = Split(torch.zeros(2, 2), LABELS)
    clients = tuple(
        Client(n, n, part, {n: part}) for n, part in (("a", Split(PIXELS, LABELS)), ("b", floats))
    )
    x = Federation("f", clients, ("x", "y")).pooled().clients[0].train.x
    torch.testing.assert_close(x, torch.tensor([[-1, 1], [-0.6, 0.6], [0, 0], [0, 0]]))


def test_the_fingerprint_tells_changed_data():
    data = federation(4, 4)
    prints = data.fingerprint()
    assert prints == federation(4, 4).fingerprint()
    first = data.clients[0]
    for changed in (
        replace(first, train=replace(first.train, x=first.train.x + 1e-6)),
        replace(first, train=replace(first.train, y=1 - first.train.y)),
        replace(first, train=replace(first.train, x=first.train.x.double())),
        replace(first, tests={"domain a": first.train}),
        replace(first, valid=first.train),
    ):
        other = replace(data, clients=(changed, data.clients[1])).fingerprint()
        assert other["a"] != prints["a"]
        assert other["b"] == prints["b"]


def test_the_shape_of_a_sample():
    assert federation(3).input_shape == (3,)


def test_moving_keeps_all_parts():
    data = federation(4)
    moved = replace(data.clients[0], valid=data.clients[0].train)
    there = replace(data, clients=(moved,)).to("cpu").clients[0]
    assert (len(there.train), len(there.valid), list(there.tests)) == (4, 4, ["domain a"])
