"""Numbers behind figures and tables: final accuracy a domain, and curves over epochs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedbn.results.summary import MEAN, scores_by_seed

Record = Mapping[str, Any]
Scores = dict[tuple[str, str], dict[str, dict[int, float]]]
"""Accuracy in per cent: of a method and setting, of a domain, of a seed."""


class Line(NamedTuple):
    """A line with its spread: mean and standard deviation over seeds."""

    x: list[float]
    mean: list[float]
    std: list[float]


def domain_scores(records: Sequence[Record], report: Literal["last", "best"] = "last") -> Scores:
    """Final test accuracy of each domain, the mean over its clients, and `mean` over domains."""
    domains = {r["client"]: r["domain"] for r in records if r["split"] == "test"}
    found: Scores = {}
    for key, by_seed in scores_by_seed(records, report).items():
        mine: dict[str, dict[int, float]] = defaultdict(dict)
        for seed, by_client in by_seed.items():
            parts: dict[str, list[float]] = defaultdict(list)
            for client, value in by_client.items():
                if client != MEAN:
                    parts[domains.get(client, client)].append(value)
            scores = {domain: statistics.fmean(values) for domain, values in parts.items()}
            if scores:
                mine[MEAN][seed] = statistics.fmean(scores.values())
            for domain, value in scores.items():
                mine[domain][seed] = value
        found[key] = {d: mine[d] for d in [*(d for d in mine if d != MEAN), MEAN] if d in mine}
    return found


def curves(
    records: Iterable[Record], metric: str, split: str, epochs: Mapping[str, int]
) -> dict[tuple[str, str, str], Line]:
    """Curves over epochs by method, setting and domain, with `mean` over domains.

    Args:
        records: The lines of `metrics.jsonl`.
        metric: `training_loss` or `accuracy`.
        split: `train` or `test`.
        epochs: Local epochs a round, by setting.
    """
    values: dict[tuple[str, str, str], dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for r in records:
        if r["metric"] == metric and r["split"] == split and r["value"] is not None:
            for domain in (r["domain"], MEAN):
                values[r["method"], r["setting"], domain][r["round"]][r["seed"]].append(r["value"])
    return {key: _line(by_round, epochs.get(key[1], 1)) for key, by_round in values.items()}


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _line(by_round: Mapping[int, Mapping[int, Sequence[float]]], epochs: int) -> Line:
    line = Line([], [], [])
    for round in sorted(by_round):
        seeds = [statistics.fmean(parts) for parts in by_round[round].values()]
        line.x.append(round * epochs)
        line.mean.append(statistics.fmean(seeds))
        line.std.append(spread(seeds))
    return line
