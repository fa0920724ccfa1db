"""Aggregators, on numbers a reader can check."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st

from fedbn.core import aggregation
from fedbn.core.aggregation import (
    Aggregator,
    ClientUpdate,
    krum,
    mean,
    median,
    multi_krum,
    trimmed_mean,
)
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.state import Entry, Kind
from fedbn.errors import ConfigError

RULES = [mean(), median(), trimmed_mean(0.2), krum(), multi_krum()]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)


def layout(n: int = 2, dtype: torch.dtype = torch.float32) -> StateLayout:
    return StateLayout(
        (
            Entry("w", Kind.WEIGHT, (n,), dtype, True),
            Entry("var", Kind.BN_STATISTIC, (1,), dtype, False),
            Entry("count", Kind.BN_STATISTIC, (), torch.int64, False),
        )
    )


def pack(w: Sequence[float], var: float = 1.0, count: int = 0, dtype=torch.float32) -> Pack:
    state = {
        "w": torch.tensor(w, dtype=dtype),
        "var": torch.tensor([var], dtype=dtype),
        "count": torch.tensor(count),
    }
    return layout(len(w), dtype).pack(state)


def combined(rule: Aggregator, packs: Sequence[Pack], weights: Sequence[float] = ()) -> Pack:
    rows = zip(packs, weights or [1.0] * len(packs), strict=True)
    aggregation = rule.begin(packs[0].layout.zeros(), torch.Generator())
    for index, (update, weight) in enumerate(rows):
        aggregation.add(ClientUpdate(str(index), update, weight))
    return aggregation.finish()


def test_the_mean_by_hand():
    packs = [pack([1, 4], 2), pack([3, 0], 4)]
    assert combined(mean(), packs).state["w"].tolist() == [2, 2]
    # (1·1 + 3·3) / 4, (1·4 + 3·0) / 4; statistics are weighted as weights are
    weighted = combined(mean(), packs, [1, 3])
    assert weighted.state["w"].tolist() == [2.5, 1]
    assert weighted.state["var"].tolist() == [3.5]


def test_the_median_by_hand():
    odd = [pack([1, 9]), pack([5, 8]), pack([100, 7])]
    assert combined(median(), odd).state["w"].tolist() == [5, 8]
    # an even count takes the mean of the two in the middle: (5 + 7) / 2, (7 + 8) / 2
    assert combined(median(), [*odd, pack([7, 0])]).state["w"].tolist() == [6, 7.5]


def test_the_trimmed_mean_by_hand():
    packs = [pack([v, -v]) for v in (1, 2, 3, 4, 1000)]
    # a fifth of five is one at either end: (2 + 3 + 4) / 3
    assert combined(trimmed_mean(0.2), packs).state["w"].tolist() == [3, -3]
    assert combined(trimmed_mean(0), packs).state["w"].tolist() == [202, -202]


def test_a_share_of_many_is_cut_as_it_is_written():
    # 0.29 · 100 = 28.999999999999996 in floats: 29 of 100 are cut at either end, not 28
    packs = [pack([0, 0])] * 71 + [pack([100, 0])] * 29
    assert combined(trimmed_mean(0.29), packs).state["w"].tolist() == [0, 0]


def test_krum_by_hand():
    # five points on a line at 0, 1, 3, 7, 100; one hostile client; 5 − 1 − 2 = 2 neighbours.
    # Squared distances to the two nearest: 0: 1+9, 1: 1+4, 3: 4+9, 7: 16+36, 100: 93²+97².
    packs = [pack([v, 0]) for v in (0, 1, 3, 7, 100)]
    assert combined(krum(1), packs).state["w"].tolist() == [1, 0]
    # multi-Krum averages the 5 − 1 = 4 best: (0 + 1 + 3 + 7) / 4
    assert combined(multi_krum(1), packs).state["w"].tolist() == [2.75, 0]


def test_krum_measures_trainable_entries_only():
    near = [pack([0, 0], var) for var in (1, 50, 900)]
    assert combined(krum(0), [*near, pack([9, 9], 1)]).state["w"].tolist() == [0, 0]


@EVERY_RULE
def test_integer_counters_take_the_maximum(rule: Aggregator):
    result = combined(rule, [pack([0, 0], count=c) for c in (3, 11, 5)])
    assert result.state["count"].dtype == torch.int64
    # Krum takes one client's whole update: of equals, the first
    assert int(result.state["count"]) == (3 if rule == krum() else 11)


@EVERY_RULE
def test_one_update_is_taken_as_it_is(rule: Aggregator):
    only = pack([0.1, -0.3], 0.7, 5)
    result = combined(rule, [only])
    assert all(torch.equal(result.state[name], only.state[name]) for name in only.state)


@EVERY_RULE
def test_no_update_leaves_what_was(rule: Aggregator):
    before = pack([1, 2])
    assert rule.begin(before, torch.Generator()).finish() is before


@EVERY_RULE
def test_updates_are_not_written_to(rule: Aggregator):
    packs = [pack([v, -v], v, v) for v in (1, 2, 3, 4, 5)]
    copies = [p.clone() for p in packs]
    combined(rule, packs, [1, 2, 3, 4, 5])
    for p, c in zip(packs, copies, strict=True):
        assert all(torch.equal(p.state[name], c.state[name]) for name in p.state)


@EVERY_RULE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_is_kept(rule: Aggregator, dtype: torch.dtype):
    result = combined(rule, [pack([v, v], dtype=dtype) for v in (1, 2, 3)])
    assert result.state["w"].dtype == dtype
    assert result.state["w"][0] in (1, 2)


def test_half_precision_is_summed_in_single():
    # 60000 + 60000 overflows float16; their mean does not
    result = combined(mean(), [pack([60000, 1], dtype=torch.float16)] * 2)
    assert result.state["w"].tolist() == [60000, 1]


ROBUST = [median(), trimmed_mean(0.2), krum(1), multi_krum(1)]


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.label)
@pytest.mark.parametrize("attack", [lambda w: -w, lambda w: 1e6 * w], ids=["sign", "norm"])
@pytest.mark.parametrize("hostile", range(5))
def test_one_hostile_client_cannot_move_a_robust_rule(rule: Aggregator, attack, hostile: int):
    """The honest lie within 0.1 of (1, ..., 1); so does the result, which the mean's does not."""
    draws = torch.Generator().manual_seed(0)
    honest = [1 + 0.1 * (2 * torch.rand(20, generator=draws) - 1) for _ in range(5)]
    sent = [attack(w) if i == hostile else w for i, w in enumerate(honest)]
    packs = [pack(w.tolist()) for w in sent]
    assert (combined(rule, packs).state["w"] - 1).abs().max() <= 0.1 + 1e-6
    assert (combined(mean(), packs).state["w"] - 1).abs().max() > 0.3


def test_weights_buy_no_influence_in_a_robust_rule():
    packs = [pack([v, v]) for v in (1, 2, 3, 4, 100)]
    for rule in ROBUST:
        plain = combined(rule, packs).state["w"]
        assert torch.equal(combined(rule, packs, [1, 1, 1, 1, 1e9]).state["w"], plain)


VALUES = st.lists(st.integers(-1000, 1000), min_size=1, max_size=9)


@pytest.mark.parametrize("rule", [median(), trimmed_mean(0.3)], ids=lambda rule: rule.label)
@given(values=VALUES, seed=st.integers(0, 10))
def test_sorting_rules_do_not_mind_the_order_of_clients(rule: Aggregator, values, seed: int):
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed)).tolist()
    packs = [pack([v, v], v, v) for v in values]
    shuffled = [packs[i] for i in order]
    a, b = combined(rule, packs), combined(rule, shuffled)
    assert all(torch.equal(a.state[name], b.state[name]) for name in a.state)


@given(VALUES)
def test_the_mean_lies_between_the_extremes_and_agrees_with_python(values: list[int]):
    result = combined(mean(), [pack([v, v]) for v in values]).state["w"][0]
    assert min(values) - 1e-3 <= float(result) <= max(values) + 1e-3
    assert float(result) == pytest.approx(sum(values) / len(values), abs=1e-3)


def test_long_vectors_are_sorted_in_chunks(monkeypatch: pytest.MonkeyPatch):
    packs = [pack([v * i for i in range(50)]) for v in (1, 2, 9)]
    whole = combined(median(), packs).state["w"]
    monkeypatch.setattr(aggregation, "_CHUNK", 7)
    assert torch.equal(combined(median(), packs).state["w"], whole)


@pytest.mark.parametrize("fraction", [-0.1, 0.5, 1, float("nan")])
def test_an_illegal_fraction_is_refused(fraction: float):
    with pytest.raises(ConfigError, match=r"legal is 0 <= x < 0\.5"):
        trimmed_mean(fraction)


@pytest.mark.parametrize("f", [-1, 0.5, "1"])
def test_an_illegal_number_of_hostile_clients_is_refused(f: object):
    with pytest.raises(ConfigError, match="legal are whole numbers >= 0"):
        krum(f)
