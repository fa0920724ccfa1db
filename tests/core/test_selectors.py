"""Selectors: which entries are shared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedbn.core.method import BATCHNORM, all_but, everything, local, nothing
from fedbn.core.state import Entry, Kind, entries
from fedbn.errors import ConfigError


def entry(name: str, kind: Kind = Kind.WEIGHT, alias_of: str | None = None) -> Entry:
    return Entry(name, kind, (1,), torch.float32, True, alias_of)


@pytest.mark.parametrize("kind", Kind)
def test_the_kind_alone_decides(kind: Kind):
    assert everything()(entry("x", kind))
    assert not nothing()(entry("x", kind))
    assert not all_but(kind)(entry("x", kind))
    assert all_but(*set(Kind) - {kind})(entry("x", kind))


def test_either_side_of_an_or_keeps_local():
    both = all_but(Kind.BN_STATISTIC) | local("head.*")
    assert not both(entry("head.weight"))
    assert not both(entry("1.running_mean", Kind.BN_STATISTIC))
    assert both(entry("body.head.weight"))
    assert (both | both) == both


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("bn",), BATCHNORM),
        (("instance",), {Kind.INSTANCE_AFFINE, Kind.INSTANCE_STATISTIC}),
        (("norm",), {Kind.NORM_AFFINE}),
        (("bn_statistic", "weight"), {Kind.BN_STATISTIC, Kind.WEIGHT}),
        ((), set()),
    ],
)
def test_words_for_kinds(words: tuple[str, ...], kinds: set[Kind]):
    assert local(*words).local_kinds == kinds


def test_a_pattern_is_of_the_whole_name_and_minds_case():
    assert not local("fc?.weight")(entry("fc1.weight"))
    assert local("fc?.weight")(entry("fc11.weight"))
    assert local("FC.*")(entry("fc.weight"))


def test_an_alias_stays_local_with_its_first_name():
    assert not local("embed.*")(entry("head.weight", alias_of="embed.weight"))


@pytest.mark.parametrize("word", ["batchnorm", "", "bn ", 3, None])
def test_an_unknown_word_is_named(word: object):
    with pytest.raises(ConfigError, match=r"unknown kind of entry.*Legal values: bn, bn_affine"):
        local(word)


def test_groupnorm_stays_local_only_when_asked():
    found = entries(nn.Sequential(nn.GroupNorm(1, 2)))
    assert all(map(all_but(*BATCHNORM), found))
    assert not any(map(local("norm"), found))


def test_the_label_is_what_one_writes():
    assert local("instance", "fc.*").label == "local(instance_affine, instance_statistic, 'fc.*')"
