"""The data of the shift map: each dial turns what it says and nothing else."""

from __future__ import annotations

import pytest
import torch

from fedbn.datasets.shifted_digits import DIALS, FEATURES, shifted_digits
from fedbn.errors import ConfigError

PLAIN = shifted_digits("contrast", 0.0).clients


def test_there_are_thirteen_dials():
    assert len(DIALS) == 13


@pytest.mark.parametrize("dial", FEATURES)
def test_a_feature_dial_leaves_labels_and_the_first_site_as_they_are(dial: str):
    turned = shifted_digits(dial, 1.0).clients
    for before, after in zip(PLAIN, turned, strict=True):
        assert torch.equal(before.train.y, after.train.y)
    assert torch.allclose(PLAIN[0].train.x, turned[0].train.x, atol=1e-6)
    apart = [(a.train.x - b.train.x).abs().mean() for a, b in zip(PLAIN, turned, strict=True)]
    assert apart[4] > apart[2] > 0.02


def test_contrast_and_brightness_are_what_their_formulas_say():
    mine = PLAIN[4].train.x  # from −1 to 1, so what is added and multiplied by counts twice or once
    assert torch.allclose(shifted_digits("brightness", 0.5).clients[4].train.x, mine + 2.0)
    found = shifted_digits("contrast", 1.0).clients[4].train.x
    assert torch.allclose(found, 0.05 * mine, atol=1e-6)


def test_skew_gives_a_site_two_classes_of_its_own_and_all_originals_stay():
    half, whole = shifted_digits("labels", 0.5).clients, shifted_digits("labels", 1.0).clients
    assert [c.train.y.unique().tolist() for c in whole] == [[2 * k, 2 * k + 1] for k in range(5)]
    counts = torch.stack([c.train.y.bincount(minlength=10) for c in half]).float()
    share = counts / counts.sum(dim=0)
    assert [round(float(share[label // 2, label]), 1) for label in range(10)] == [0.6] * 10
    assert sum(len(c.train) + len(c.tests[c.domain]) for c in whole) == 1797


def test_one_site_of_a_concept_shift_names_some_classes_otherwise():
    turned = shifted_digits("concept", 0.4).clients
    assert all(torch.equal(a.train.y, b.train.y) for a, b in zip(PLAIN[:4], turned, strict=False))
    before, after = PLAIN[4].tests["site-4"].y, turned[4].tests["site-4"].y
    assert {*zip(before.tolist(), after.tolist(), strict=True)} == {
        (0, 1), (1, 2), (2, 3), (3, 0), *((n, n) for n in range(4, 10))
    }  # fmt: skip


def test_samples_and_clients_of_five_kinds():
    few = shifted_digits("samples", 1.0).clients
    assert [len(c.train) for c in few] == [14] * 5
    several = shifted_digits("clients", 0.6).clients
    assert [c.domain for c in several[:4]] == ["contrast"] * 3 + ["blur"]
    assert {len(c.train) for c in several} == {29}


def test_a_dial_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"data.dial: unknown dial 'hue'"):
        shifted_digits("hue")
