"""Stratified splits."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from fedbn.core.randomness import stratified, with_validation
from tiny import federation

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=60)
SHARES = st.floats(0, 1)


@given(LABELS, SHARES, st.integers(0, 3))
def test_a_split_divides_every_class_in_proportion(labels: list[int], share: float, seed: int):
    y = torch.tensor(labels)
    rest, held = stratified(y, share, torch.Generator().manual_seed(seed))
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(len(y)))
    assert len(held) == round(share * len(y))
    for label in range(6):
        exact = share * labels.count(label)
        assert abs(int((y[held] == label).sum()) - exact) < 1 + 1e-9


def test_a_split_by_hand():
    # a quarter of 8, 4 and 4: 2 + 1 + 1
    y = torch.tensor([0] * 8 + [1] * 4 + [2] * 4)
    _, held = stratified(y, 0.25, torch.Generator().manual_seed(0))
    assert y[held].bincount().tolist() == [2, 1, 1]


def test_the_seed_decides_which():
    y = torch.zeros(50).long()
    held = [stratified(y, 0.5, torch.Generator().manual_seed(s))[1].tolist() for s in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def test_validation_is_held_out_of_training_at_every_client():
    data = federation(10, 20)
    made = with_validation(data, 0.2, seed=0)
    for before, after in zip(data.clients, made.clients, strict=True):
        assert (len(after.train), len(after.valid)) == (
            0.8 * len(before.train),
            0.2 * len(before.train),
        )
        rows = {tuple(row) for part in (after.train, after.valid) for row in part.x.tolist()}
        assert rows == {tuple(row) for row in before.train.x.tolist()}
        assert after.tests is before.tests


def test_validation_does_not_depend_on_the_other_clients():
    alone = with_validation(federation(10), 0.3, seed=4).clients[0]
    among = with_validation(federation(10, 20, 5), 0.3, seed=4).clients[0]
    assert torch.equal(alone.valid.x, among.valid.x)


def test_validation_data_is_not_augmented():
    data = federation(10)
    train = data.clients[0].train
    object.__setattr__(train, "augment", lambda x, draws: x)
    client = with_validation(data, 0.2, seed=0).clients[0]
    assert client.train.augment is not None
    assert client.valid.augment is None
