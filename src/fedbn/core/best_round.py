"""Which round of a run is its best, the rule behind `evaluation.report = "best"`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Validation = dict[int, list[float]]
"""Validation accuracies of the clients, by round."""


def validation(records: Iterable[Mapping[str, Any]]) -> Validation:
    """Collect the validation accuracies among records."""
    found: Validation = defaultdict(list)
    for r in records:
        if (r["split"], r["metric"]) == ("valid", "accuracy") and r["value"] is not None:
            found[r["round"]].append(r["value"])
    return found


def best_round(scores: Mapping[int, Sequence[float]], until: float = math.inf) -> int:
    """Find the earliest round with the highest mean accuracy; 0 where none was scored.

    Only rounds that scored as many clients as any other count: a mean over fewer is another
    question. So a further round is the new best or leaves the best as it was.

    Args:
        scores: Accuracies of the clients, by round.
        until: The last round that counts.

    Examples:
        >>> best_round({1: [0.5, 0.7], 2: [0.9], 3: [0.8, 0.6], 4: [0.7, 0.7]})
        3
        >>> best_round({1: [0.5, 0.7], 3: [0.8, 0.6]}, until=2)
        1
    """
    known = {round: values for round, values in scores.items() if round <= until}
    most = max(map(len, known.values()), default=0)
    means = {round: statistics.fmean(v) for round, v in known.items() if v and len(v) == most}
    return max(means, key=lambda round: (means[round], -round), default=0)
