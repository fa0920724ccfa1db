"""What differs between two runs, from records alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedbn.errors import ConfigError
from fedbn.results.comparison import Side, changes, compare, explanation, markdown, with_ends_only
from fedbn.results.paired_tests import paired
from scores import record


def side(name: str = "A", method: str = "fedbn", /, **clients: list[float]) -> Side:
    """A run of one method; the scores of each client are one a seed."""
    records = [
        record(value, client, method=method, seed=seed)
        for client, values in clients.items()
        for seed, value in enumerate(values)
    ]
    return Side(name, records)


def test_every_client_is_judged_and_the_mean() -> None:
    before = side("A", a=[0.5, 0.6, 0.4], b=[0.7, 0.8, 0.6])
    after = side("B", a=[0.9, 0.99, 0.8], b=[0.7, 0.8, 0.6])
    pair = compare(before, after).pairs[0]
    assert [(line.client, line.verdict) for line in pair.lines] == [
        ("a", "better"),
        ("b", "same"),
        ("mean", "better"),
    ]
    assert pair.lines[0].a == pytest.approx(50)
    assert pair.lines[0].test.difference == pytest.approx(100 * (0.4 + 0.39 + 0.4) / 3)
    assert (pair.axis, pair.repetitions) == ("seed", ("0", "1", "2"))


def test_pairs_of_other_numbers_of_seeds_are_split_rejections() -> None:
    runs = {"fedavg": [0.5, 0.6, 0.4, 0.5], "silobn": [0.5, 0.6], "fedbn": [0.6, 0.7, 0.6, 0.7]}
    records = [one for name, own in runs.items() for one in side("A", name, a=own).records]
    both = Side("A", records)
    said = explanation(compare(both, both))
    assert said.startswith("n differs (fedavg → silobn 2, fedavg → fedbn 4, silobn → fedbn 2). ")


def test_a_line_of_fewer_repetitions_says_so_and_a_method_without_numbers_is_left_out() -> None:
    values = {"fedavg": [0.5, 0.6, 0.4], "fedbn": [0.6, 0.7, 0.6]}
    records = [one for name, own in values.items() for one in side("A", name, b=own).records]
    lost = [record(None, c, method="silobn", seed=s) for c in "ab" for s in range(3)]
    some = [
        record(own[seed] if seed else None, "a", method=name, seed=seed)
        for name, own in values.items()
        for seed in range(3)
    ]
    both = Side("A", [*some, *records, *lost])
    found = compare(both, both)
    (pair,) = found.pairs
    assert [(line.client, line.test.repetitions) for line in pair.lines] == [
        ("a", 2), ("b", 3), ("mean", 2),
    ]  # fmt: skip
    said = explanation(found)
    named = "fewer at fedavg → fedbn a 2, fedavg → fedbn mean 2. Paired t-tests."
    assert said.startswith(f"n = 3 seeds (0, 1, 2), {named}")
    assert "With n = 2 an interval" in said
    mean = "no number, and in no mean: test accuracy of"
    assert [text for text in found.remarks if text.startswith(mean)] == [
        f"{mean} a (fedavg seed 0, fedbn seed 0)",
        f"{mean} a, b (silobn seed 0, silobn seed 1, silobn seed 2)",
    ]


def test_what_is_no_number_is_said_of_its_run() -> None:
    lost = Side("B", [*side("B", a=[0.5, 0.6]).records, record(None, "a", seed=0, round=2)])
    said = "no number, and in no mean: test accuracy of a (fedbn seed 0)"
    assert f"B: {said}" in compare(side("A", a=[0.5, 0.6]), lost).remarks


def test_every_interval_holds_for_all_lines_at_once() -> None:
    gaps = [0.01, 0.02, 0.03, 0.04]
    base = [0.5, 0.5, 0.5, 0.5]
    alone = compare(side(a=base), side("B", a=[0.5 + g for g in gaps])).pairs[0].lines[0]
    assert alone.verdict == "better"
    others = dict.fromkeys("bcdef", base)
    noisy = {name: [0.49, 0.51, 0.5, 0.52] for name in "bcdef"}
    found = compare(side(a=base, **others), side("B", a=[0.5 + g for g in gaps], **noisy))
    first, mean = found.pairs[0].lines[0], found.pairs[0].lines[-1]
    assert found.family == (6, 1)
    assert first.test == paired([100 * gap for gap in gaps], 6)
    assert first.test.p == pytest.approx(6 * alone.test.p)
    assert first.verdict == "not shown"
    assert mean.test.low == pytest.approx(paired(mean_gaps(gaps)).low)


def mean_gaps(gaps: list[float]) -> list[float]:
    """The mean over client a and five clients whose gaps are those of `noisy`."""
    return [
        100 * (gap + 5 * other) / 6
        for gap, other in zip(gaps, (-0.01, 0.01, 0.0, 0.02), strict=True)
    ]


def test_all_pairs_of_a_run() -> None:
    names = ("singleset", "fedavg", "fedbn")
    values = ([0.5, 0.6, 0.4], [0.6, 0.7, 0.6], [0.9, 0.8, 0.85])
    records = [
        r for n, v in zip(names, values, strict=True) for r in side("A", n, a=v, b=v).records
    ]
    run = Side("A", records)
    found = compare(run, run)
    pairs = [("singleset", "fedavg"), ("singleset", "fedbn"), ("fedavg", "fedbn")]
    assert [(pair.a, pair.b) for pair in found.pairs] == pairs
    assert found.family == (6, 3)
    some = compare(run, run, ["fedbn", "singleset"])
    assert [(pair.a, pair.b) for pair in some.pairs] == [("fedbn", "singleset")]
    with pytest.raises(ConfigError, match="name two of its methods"):
        compare(run, run, ["fedbn"])


def test_splits_are_repetitions_with_the_correction_they_need() -> None:
    """Two seeds of a split saw the same test people: their mean is one repetition."""
    gains = {"0": (0.02, 0.04), "1": (0.01, 0.01), "2": (0.05, 0.03)}
    records = [
        record(0.5 + (gain if method == "fedbn" else 0), method=method, seed=seed,
               setting=f"percent=10,split_seed={split}")
        for split, own in gains.items()
        for seed, gain in enumerate(own)
        for method in ("fedavg", "fedbn")
    ]  # fmt: skip
    sizes = {"inputs": {"all settings": {"sizes": {"a": [80, 20]}}}}
    run = Side("A", records, {}, sizes)
    pair = compare(run, run).pairs[0]
    assert (pair.a, pair.axis) == ("fedavg (percent=10)", "split")
    assert pair.repetitions == ("split_seed=0", "split_seed=1", "split_seed=2")
    expected = paired([3.0, 1.0, 4.0], overlap=0.25)
    assert pair.lines[0].test.p == pytest.approx(expected.p)
    assert pair.lines[0].test.high == pytest.approx(expected.high)
    said = explanation(compare(run, run))
    assert "an interval reaches at least this many standard deviations" in said
    assert "to each side: 2.5 at a client, 2.5 in the mean" in said
    by_share = Side("A", records, {"data": {"test_share": 0.5}})
    assert compare(by_share, by_share).pairs[0].lines[0].test.p > expected.p


def test_methods_without_a_mean_are_compared_at_their_clients() -> None:
    refused = [
        record(None, "b", method=name, seed=seed, metric="refused")
        for name in ("fedavg", "fedbn")
        for seed in (0, 1)
    ]
    accepted = {"fedavg": [0.5, 0.6], "fedbn": [0.6, 0.6]}
    scores = [one for name, own in accepted.items() for one in side("A", name, a=own).records]
    run = Side("A", [*scores, *refused])
    found = compare(run, run)
    assert [line.client for line in found.pairs[0].lines] == ["a"]
    said = explanation(found)
    assert "adjusted for 1 comparison of a client (Bonferroni)" in said
    assert said.endswith("to each side: 9.0 at a client.")
    assert "every update of b was rejected" in found.remarks[0]


def test_only_seeds_that_both_have_are_paired() -> None:
    found = compare(side(a=[0.1, 0.2, 0.3, 0.4]), side("B", a=[0.1, 0.2]))
    line = found.pairs[0].lines[0]
    assert found.pairs[0].repetitions == ("0", "1")
    assert line.a == pytest.approx(15)
    assert explanation(found).startswith("n = 2 seeds (0, 1)")


def test_methods_of_one_run() -> None:
    records = [*side("A", "fedavg", a=[0.5, 0.6]).records, *side("A", a=[0.8, 0.7]).records]
    one = Side("A", records)
    pair = compare(one, one, ["fedavg", "fedbn"]).pairs[0]
    assert (pair.a, pair.b) == ("fedavg", "fedbn")
    assert pair.lines[0].test.difference == pytest.approx(20)


def test_settings_of_a_sweep_are_paired_by_name() -> None:
    def swept(name: str, *settings: str) -> Side:
        return Side(name, [record(0.5, setting=setting) for setting in settings])

    pairs = compare(swept("A", "E=1", "E=4"), swept("B", "E=4", "E=8")).pairs
    assert [pair.a for pair in pairs] == ["fedbn (E=4)"]
    one_each = compare(swept("A", "E=1"), swept("B", "E=4")).pairs[0]
    assert (one_each.a, one_each.b) == ("fedbn (E=1)", "fedbn (E=4)")
    by_label = compare(*[swept("A", "E=1", "E=4")] * 2, ["fedbn (E=1)", "fedbn (E=4)"]).pairs
    assert [(pair.a, pair.b) for pair in by_label] == [("fedbn (E=1)", "fedbn (E=4)")]


@pytest.mark.parametrize(
    ("a", "b", "methods", "said"),
    [
        (side(a=[0.5]), side("B", "fedavg", a=[0.5]), [], "A has fedbn; B has fedavg"),
        (side(a=[0.5]), side("B", b=[0.5]), [], "no client in common: A has a, mean; B has b"),
        (side(a=[0.5]), Side("B", []), [], "B: no test accuracy yet"),
        (side(a=[0.5]), side("B", a=[0.5]), ["fedbm"], "did you mean 'fedbn'?"),
        (side(a=[0.5]), side("B", a=[0.5]), ["x", "y", "z"], "names 3"),
        (
            side(a=[0.5]),
            Side("B", [record(0.5, seed=7)]),
            [],
            "no seed in common: A has 0; B has 7",
        ),
    ],
)
def test_what_cannot_be_compared(a: Side, b: Side, methods: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        compare(a, b, methods)
    assert said in str(error.value)


def test_changed_keys_with_both_values() -> None:
    a: dict[str, Any] = {"training": {"lr": 0.1, "rounds": 2}, "seeds": [0], "only": "here"}
    b: dict[str, Any] = {"training": {"lr": 0.2, "rounds": 2}, "seeds": [0, 1], "sweep": {}}
    assert [(c.key, c.a, c.b) for c in changes(a, b)] == [
        ("only", "here", None),
        ("seeds", [0], [0, 1]),
        ("sweep", None, {}),
        ("training.lr", 0.1, 0.2),
    ]
    assert changes(a, a) == ()


def test_other_data_and_other_rounds_are_said() -> None:
    def begun(name: str, digest: str, round: int) -> Side:
        environment = {"data": {"a": digest, "b": "same"}, "versions": {"torch": name}}
        return Side(name, [record(0.5, round=round)], {}, environment)

    found = compare(begun("A", "0" * 64, 3), begun("B", "1" * 64, 4))
    assert [change.words for change in found.environment] == [
        ("data.a", "000000000000…", "111111111111…"),
        ("versions.torch", "A", "B"),
    ]
    assert found.remarks[:2] == (
        "not the same data: a; a difference there may be the data's",
        "A was scored after round 3, B after round 4",
    )


def test_ranks_that_disagree_are_said() -> None:
    """One seed of seven turns the other way, far enough for the ranks and not for the t test."""
    gaps = [0.10, 0.11, 0.12, 0.10, 0.11, 0.12, -0.005]
    base = [0.5] * 7
    found = compare(side(a=base), side("B", a=[0.5 + gap for gap in gaps]))
    line = found.pairs[0].lines[0]
    assert line.verdict == "better"
    assert line.test.ranks is not None
    disagreement = any("by ranks" in text for text in found.remarks)
    assert disagreement is (line.test.ranks >= 0.05)


def test_markdown_shows_names_as_they_are() -> None:
    odd = "<script>|\n[x](y)"
    found = compare(Side("A", [record(0.5, odd)]), Side("B", [record(0.6, odd)]))
    text = markdown(found)
    row = next(line for line in text.splitlines() if "script" in line)
    assert row.startswith(r"| FedBN | \<script\>\|\\n\[x\](y) | 50.0 | 60.0 | +10.0 | – | – | – |")
    assert "<script>" not in text.replace(r"\<script\>", "")


def test_of_many_clients_the_ends_are_printed_and_the_verdicts_counted() -> None:
    names = [f"c{i:02}" for i in range(20)]
    before = side("A", **{name: [0.5, 0.51, 0.49] for name in names})
    after = side("B", **{n: [0.5 + i / 50, 0.52 + i / 50, 0.48] for i, n in enumerate(names)})
    found = with_ends_only(compare(before, after))
    shown = [line.client for line in found.pairs[0].lines]
    assert shown == [*names[:5], *names[-5:], "mean"]
    assert "of all: " in found.remarks[-1]


def test_json_holds_everything() -> None:
    found = json.loads(json.dumps(compare(side(a=[0.5]), side("B", a=[0.6])).to_dict()))
    line = found["pairs"][0]["lines"][0]
    assert (line["client"], line["verdict"], line["test"]["repetitions"]) == ("a", "too few", 1)


def test_an_interval_of_two_seeds_ends_where_the_metric_does() -> None:
    found = compare(side(a=[0.5, 0.6]), side("B", a=[0.9, 0.6]))
    line = found.pairs[0].lines[0]
    assert (line.test.low, line.test.high) == (-100, 100)
    assert line.test.detectable is None
    assert line.verdict == "too few"
    said = "2 seeds cannot decide whether a difference is more than chance: at least 3 are needed"
    assert said in explanation(found)
    assert "1 seed cannot decide" in explanation(compare(side(a=[0.5]), side("B", a=[0.9])))
    three = compare(side(a=[0.5, 0.6, 0.5]), side("B", a=[0.9, 0.6, 0.7]))
    assert "cannot decide" not in explanation(three)


def test_the_interval_of_a_metric_without_limits_is_not_cut() -> None:
    task = {"task": {"metrics": [{"name": "mae", "higher": False, "unit": ""}]}}
    sides = [
        Side(name, [record(v, "a", seed=s, metric="mae") for s, v in enumerate(own)], {}, task)
        for name, own in (("A", [500.0, 600.0]), ("B", [900.0, 600.0]))
    ]
    line = compare(*sides).pairs[0].lines[0]
    assert line.test.high == pytest.approx(paired([400.0, 0.0]).high)


SIZES = {"inputs": {"all settings": {"sizes": {"a": [80, 1000], "b": [20, 10]}}}}


def test_both_means_are_compared_where_test_sizes_differ_by_more_than_ten() -> None:
    scores = {"a": [0.5, 0.6, 0.4], "b": [0.7, 0.8, 0.6]}
    runs = [Side(n, side(n, **scores).records, {}, SIZES) for n in "AB"]
    found = compare(*runs)
    lines = {line.client: line for line in found.pairs[0].lines}
    assert list(lines) == ["a", "b", "mean", "weighted mean"]
    assert lines["mean"].a == pytest.approx(60)
    assert lines["weighted mean"].a == pytest.approx((1000 * 50 + 10 * 70) / 1010)
    assert found.family == (2, 2)
    assert any("test samples: b 10, a 1,000" in text for text in found.remarks)


def test_even_test_sizes_need_one_mean() -> None:
    sizes = {"inputs": {"all settings": {"sizes": {"a": [80, 100], "b": [20, 10]}}}}
    run = Side("A", side(a=[0.5], b=[0.7]).records, {}, sizes)
    assert not run.uneven
    assert run.summary.columns == ("a", "b", "mean")
