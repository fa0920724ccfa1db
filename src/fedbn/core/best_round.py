"""Which round of a run is its best, and when patience ends: `report = "best"`, `patience`.

And which clients never contributed. All of it is read from records.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbn.core.metric import ACCURACY, Metric
from fedbn.core.statistics_kinds import RUNNING

Validation = dict[int, list[float]]
"""What clients come to on validation data, by round."""


def validation(records: Iterable[Mapping[str, Any]], metric: Metric = ACCURACY) -> Validation:
    """Collect the clients' values of a metric on validation data among records.

    Only scores with running statistics count. So the best round of a run does not depend on which
    other statistics it was scored with.
    """
    found: Validation = defaultdict(list)
    wanted = ("valid", metric.name, RUNNING)
    for r in records:
        if (r["split"], r["metric"], r["statistics"]) == wanted and r["value"] is not None:
            found[r["round"]].append(r["value"])
    return found


def best_round(
    scores: Mapping[int, Sequence[float]], until: float = math.inf, metric: Metric = ACCURACY
) -> int:
    """Find the earliest round with the best mean; 0 where none was scored.

    Only rounds that scored as many clients as any other count: a mean over fewer is another
    question. So a further round is the new best or leaves the best as it was.

    Examples:
        >>> best_round({1: [0.5, 0.7], 2: [0.9], 3: [0.8, 0.6], 4: [0.7, 0.7]})
        3
        >>> best_round({1: [0.5, 0.7], 3: [0.8, 0.6]}, until=2)
        1
    """
    known = {round: values for round, values in scores.items() if round <= until}
    most = max(map(len, known.values()), default=0)
    means = {round: statistics.fmean(v) for round, v in known.items() if v and len(v) == most}
    return max(means, key=lambda n: (metric.gain(means[n], 0.0), -n), default=0)


@dataclass(frozen=True)
class EarlyStop:
    """The end of a run that has not become better for long enough."""

    round: int  # the last round that counts
    best: int  # the best one, which the run gives


def early_stop(
    scores: Mapping[int, Sequence[float]], patience: int | None, metric: Metric = ACCURACY
) -> EarlyStop | None:
    """Find the first scored round that lies so many rounds behind the best one before it.

    Whoever hears of scores later comes to the same round, because later scores do not count.

    Examples:
        >>> early_stop({1: [0.5], 2: [0.7], 3: [0.6], 4: [0.7], 5: [0.9]}, patience=2)
        EarlyStop(round=4, best=2)
    """
    best, most = 0, (0, -math.inf)
    for round in sorted(scores) if patience is not None else ():
        found = len(scores[round]), metric.gain(statistics.fmean(scores[round]), 0.0)
        if found > most:
            best, most = round, found
        if patience is not None and round - best >= patience:
            return EarlyStop(round, best)
    return None


def never_accepted(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the clients of one job whose updates were rejected in every round.

    A client that was never selected is not among them: it had no chance to contribute.

    Args:
        rows: The job's records, as in `metrics.jsonl`.

    Examples:
        >>> rows = [
        ...     {"client": "a", "metric": "refused"},
        ...     {"client": "b", "metric": "refused"},
        ...     {"client": "b", "metric": "training_loss"},
        ...     {"client": "c", "metric": "accuracy"},
        ... ]
        >>> never_accepted(rows)
        ('a',)
    """
    found = {"refused": dict[str, None](), "training_loss": dict[str, None]()}
    for row in rows:
        if row["metric"] in found:
            found[row["metric"]][row["client"]] = None
    return tuple(name for name in found["refused"] if name not in found["training_loss"])
