"""Records as a run writes them, for tests of what is made of them."""

from __future__ import annotations

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
