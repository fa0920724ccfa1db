"""Records as a run writes them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def record(
    value: float | None,
    client: str = "a",
    *,
    method: str = "fedbn",
    setting: str = "default",
    seed: int = 0,
    round: int = 1,
    split: str = "test",
    metric: str = "accuracy",
    domain: str | None = None,
    statistics: str = "running",
) -> dict[str, Any]:
    """One line of `metrics.jsonl`."""
    return {
        "method": method,
        "setting": setting,
        "seed": seed,
        "round": round,
        "client": client,
        "domain": domain or client,
        "split": split,
        "metric": metric,
        "value": value,
        "statistics": statistics,
    }


def scored_again(
    records: Sequence[Mapping[str, Any]], kind: str, change: float = 0.0
) -> list[dict[str, Any]]:
    """Records, and their scores of the last round once more with other statistics."""
    last: dict[tuple[Any, ...], int] = {}
    for r in records:
        job = r["method"], r["setting"], r["seed"]
        last[job] = max(last.get(job, 0), r["round"])
    again = [
        {**r, "value": r["value"] + change, "statistics": kind}
        for r in records
        if r["split"] != "train" and r["round"] == last[r["method"], r["setting"], r["seed"]]
    ]
    return [*map(dict, records), *again]
