"""Selectors: which entries are shared."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fedbn.core.selectors import BATCHNORM, all_but, everything, local, nothing, only
from fedbn.core.state import Entry, Kind, entries
from fedbn.errors import ConfigError, ModelError
from fedbn.methods.paper import fedavg


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


@pytest.mark.shows("R07")
@pytest.mark.parametrize("word", ["", "module:", 3, None])
def test_what_names_nothing_is_refused(word: object):
    with pytest.raises(ConfigError, match=r"legal are kinds \(bn, .*paths of modules, patterns"):
        local(word)


def test_a_path_is_a_module_or_an_entry_and_not_the_start_of_a_word():
    keeps = local("layer4", "head.bias")
    assert not keeps(entry("layer4.0.conv.weight"))
    assert keeps(entry("layer40.weight"))
    assert not keeps(entry("head.bias"))
    assert keeps(entry("head.weight"))


@pytest.mark.shows("R11")
def test_a_word_is_a_kind_first_and_the_module_of_that_name_is_pointed_out():
    model = nn.Sequential(OrderedDict(norm=nn.Linear(2, 2), last=nn.LayerNorm(2)))
    found = entries(model)
    assert [e.name for e in found if not local("norm")(e)] == ["last.weight", "last.bias"]
    assert [e.name for e in found if not local("module:norm")(e)] == ["norm.weight", "norm.bias"]
    (said,) = (fedavg() | local("norm")).remarks(found)
    assert "local(norm) means a kind of entry; the model also has a module norm" in said
    assert "local('module:norm') or local('norm.*')" in said
    assert (fedavg() | local("module:norm")).remarks(found) == []


@pytest.mark.shows("R07")
@pytest.mark.parametrize(
    ("word", "near"), [("haed", "head"), ("haed.*", "head"), ("body.fst", "body.fc1")]
)
def test_a_path_that_matches_nothing_is_an_error_with_the_nearest_module(word: str, near: str):
    found = [entry("body.fc1.weight"), entry("head.weight")]
    with pytest.raises(ModelError) as caught:
        (fedavg() | local(word)).check(found)
    assert str(caught.value).startswith(f"local({word!r}): the model has no module or entry")
    assert f"did you mean {near!r}? its modules: body, head; kinds: bn, " in str(caught.value)


def test_only_what_is_named_is_shared():
    head = only("head")
    assert head(entry("head.weight"))
    assert not head(entry("body.weight"))
    assert not (head | local("head.bias"))(entry("head.bias"))
    with pytest.raises(ConfigError, match="each say what alone is shared"):
        head | only("body")


@pytest.mark.shows("M10")
def test_groupnorm_stays_local_only_when_asked():
    found = entries(nn.Sequential(nn.GroupNorm(1, 2)))
    assert all(map(all_but(*BATCHNORM), found))
    assert not any(map(local("norm"), found))


def test_the_label_is_what_one_writes():
    assert local("instance", "fc.*").label == "local(instance_affine, instance_statistic, 'fc.*')"
