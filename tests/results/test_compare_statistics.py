"""Methods and runs that are compared with each kind of statistics that both are scored with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedbn.errors import ConfigError
from fedbn.results.comparison import (
    Comparison,
    Side,
    by_statistics,
    compare,
    explanation,
    gain_rows,
    gain_titles,
    markdown,
    with_ends_only,
)
from fedbn.results.paired_tests import paired
from scores import record

BASE = [0.5, 0.52, 0.51]


def scores(
    method: str, kind: str, values: list[float | None], **about: Any
) -> list[dict[str, Any]]:
    """Scores of clients a and b, the same at both: one a seed."""
    return [
        record(value, client, method=method, statistics=kind, seed=seed, **about)
        for client in "ab"
        for seed, value in enumerate(values)
    ]


RECORDS = [
    *scores("fedavg", "running", BASE),
    *scores("fedavg", "local", [0.9, 0.91, 0.92]),
    *scores("fedavg", "exact", [0.9, 0.92, 0.91]),
    *scores("fedbn", "running", [0.91, 0.92, 0.92]),
    *scores("fedbn", "exact", [0.9, 0.93, 0.91]),
]


def run(name: str = "A", records: list[dict[str, Any]] | None = None) -> Side:
    return Side(name, RECORDS if records is None else records)


def within(*methods: str, records: list[dict[str, Any]] | None = None) -> Comparison:
    side = run(records=records)
    return compare(side, side, methods)


def test_two_methods_are_compared_with_every_kind_that_both_have() -> None:
    found = within("fedavg", "fedbn")
    assert [(pair.a, pair.b, pair.statistics) for pair in found.pairs] == [
        ("fedavg", "fedbn", "running"),
        ("fedavg, exact statistics", "fedbn, exact statistics", "exact"),
    ]
    assert [pair.title for pair in found.pairs] == [
        "fedavg → fedbn",
        "fedavg → fedbn, exact statistics",
    ]
    assert found.pairs == within().pairs  # as where no method is named
    plain = json.loads(json.dumps(found.to_dict()))["pairs"]
    assert [pair["statistics"] for pair in plain] == ["running", "exact"]


def test_the_differences_in_the_mean_stand_side_by_side() -> None:
    found = within("fedavg", "fedbn")
    assert gain_titles(found) == ("B − A in the mean", "running statistics", "exact statistics")
    running, exact = (pair.mean for pair in found.pairs)
    assert running is not None
    assert exact is not None
    assert running.test == paired([41.0, 40.0, 41.0], 2)
    assert exact.test == paired([0.0, 1.0, 0.0], 2)
    ((label, *cells),) = gain_rows(found, named=True)
    assert label == "FedAvg → FedBN"
    assert cells == ["+40.7 (+38.6 to +42.7), better", "+0.3 (−1.7 to +2.4), not shown"]


def test_intervals_hold_for_the_lines_of_all_kinds_at_once() -> None:
    found = within("fedavg", "fedbn")
    assert found.family == (4, 2)
    assert found.pairs[0].lines[0].test == paired([41.0, 40.0, 41.0], 4)
    before = [r for r in RECORDS if r["statistics"] == "running"]
    assert within("fedavg", "fedbn", records=before).family == (2, 1)


def test_kinds_of_one_pair_of_methods_stand_together() -> None:
    records = [*RECORDS, *scores("silobn", "running", BASE), *scores("silobn", "exact", BASE)]
    assert [pair.title for pair in within(records=records).pairs] == [
        "fedavg → fedbn",
        "fedavg → fedbn, exact statistics",
        "fedavg → silobn",
        "fedavg → silobn, exact statistics",
        "fedbn → silobn",
        "fedbn → silobn, exact statistics",
    ]


def test_a_row_is_named_with_its_statistics() -> None:
    found = within("fedavg, local statistics", "fedbn")
    assert [(pair.title, pair.statistics) for pair in found.pairs] == [
        ("fedavg, local statistics → fedbn", "")
    ]
    assert gain_rows(found) == []
    own = within("fedavg", "fedavg, exact statistics")
    assert [pair.title for pair in own.pairs] == ["fedavg → fedavg, exact statistics"]
    with pytest.raises(ConfigError, match="unknown method 'fedbn, batch statistics'"):
        within("fedavg", "fedbn, batch statistics")


def test_two_runs_are_compared_with_the_kinds_that_both_have() -> None:
    before = [r for r in RECORDS if r["statistics"] != "exact"]
    found = compare(run(), run("B", before))
    assert [pair.title for pair in found.pairs] == [
        "fedavg",
        "fedavg, local statistics",
        "fedbn",
    ]
    crossed = compare(run(), run("B"), ["fedavg, exact statistics", "fedbn"])
    assert [pair.title for pair in crossed.pairs] == ["fedavg, exact statistics → fedbn"]
    both = compare(run(), run("B"), ["fedavg", "fedbn"])
    assert [pair.title for pair in both.pairs] == [
        "fedavg → fedbn",
        "fedavg → fedbn, exact statistics",
    ]


def test_a_kind_without_a_score_in_common_is_left_out() -> None:
    records = [r for r in RECORDS if (r["method"], r["statistics"]) != ("fedbn", "exact")]
    other = [*records, *scores("fedbn", "exact", [None, None, None])]
    assert [pair.title for pair in within(records=other).pairs] == ["fedavg → fedbn"]
    later = [{**r, "seed": r["seed"] + 5} if r["statistics"] == "exact" else r for r in RECORDS]
    found = compare(run(), run("B", later), ["fedbn"])
    assert [pair.title for pair in found.pairs] == ["fedbn"]
    with pytest.raises(ConfigError, match="fedbn, exact statistics: no seed in common"):
        compare(run(), run("B", later), ["fedbn, exact statistics"])


def test_settings_are_compared_with_every_kind() -> None:
    swept = [
        one
        for setting in ("mu=1", "mu=2")
        for kind in ("running", "exact")
        for one in scores("fedprox", kind, BASE, setting=setting)
    ]
    found = within("fedprox (mu=1)", "fedprox (mu=2)", records=swept)
    assert [pair.title for pair in found.pairs] == [
        "fedprox (mu=1) → fedprox (mu=2)",
        "fedprox (mu=1) → fedprox (mu=2), exact statistics",
    ]
    (one,) = within("fedavg", "fedbn", records=[
        *scores("fedavg", "running", BASE, setting="p=1"),
        *scores("fedavg", "exact", BASE, setting="p=1"),
        *scores("fedbn", "running", BASE, setting="p=2"),
    ]).pairs  # fmt: skip
    assert one.title == "fedavg (p=1) → fedbn (p=2)"  # each the only one with its statistics


def test_each_kind_has_a_table_of_its_own() -> None:
    found = within("fedavg", "fedbn")
    assert list(by_statistics(found)) == [
        "both scored with the running statistics that the method leaves",
        "both scored with the client's exact statistics",
    ]
    text = markdown(found)
    first, second = text.split("Both scored with the client's exact statistics:")
    assert "Both scored with the running statistics that the method leaves:" in first
    assert "| +0.3 |" not in first
    assert "| +0.3 |" in second
    assert text.count("| FedAvg → FedBN | a |") == 2
    assert "| FedAvg → FedBN | +40.7 (+38.6 to +42.7), better | +0.3" in text
    before = [r for r in RECORDS if r["statistics"] == "running"]
    plain = markdown(within("fedavg", "fedbn", records=before))
    assert "scored with" not in plain
    assert "The mean, by statistics" not in plain


def test_a_line_of_fewer_seeds_is_named_with_its_statistics() -> None:
    records = [r for r in RECORDS if (r["seed"], r["statistics"]) != (2, "exact")]
    said = explanation(within("fedavg", "fedbn", records=records))
    assert said.startswith("n differs (fedavg → fedbn 3, fedavg → fedbn, exact statistics 2).")
    cells = gain_rows(within("fedavg", "fedbn", records=records))[0]
    assert cells[2].endswith("too few")


def test_one_seed_is_said_to_be_too_few_for_every_kind() -> None:
    first = [r for r in RECORDS if r["seed"] == 0]
    found = within("fedavg", "fedbn", records=first)
    assert gain_rows(found) == [("fedavg → fedbn", "+41.0 (too few)", "+0.0 (same)")]
    assert "1 seed cannot decide" in explanation(found)


def test_what_both_runs_say_is_said_once() -> None:
    found = compare(run(), run("B"))
    assert [text[:34] for text in found.remarks if "BatchNorm statistics" in text] == [
        "both runs: FedBN compared with Fed",
        "both runs: BatchNorm statistics of",
    ]


def test_of_many_clients_every_kind_shows_its_ends() -> None:
    many = [
        {**r, "client": f"c{i:02d}", "domain": f"c{i:02d}"}
        for r in RECORDS
        if r["client"] == "a"
        for i in range(20)
    ]
    found = with_ends_only(within("fedavg", "fedbn", records=many))
    assert [len(pair.lines) for pair in found.pairs] == [11, 11]
    said = [text for text in found.remarks if "of 20 clients" in text]
    assert [text.partition(": ")[0] for text in said] == ["fedbn", "fedbn, exact statistics"]
