"""Names of numbers, as trackers take them: few signs are legal, and no two may become one."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

_ILLEGAL = re.compile(r"[^\w.\- ]", re.ASCII)


class Names:
    """Makes legal names, in the order of asking; equal words always get equal names.

    Examples:
        >>> names = Names()
        >>> names("a/b"), names("a?b"), names("a/b")
        ('a_b', 'a_b 2', 'a_b')
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, word: str) -> str:
        """Give a word's name."""
        if word not in self._given:
            plain, number = _ILLEGAL.sub("_", word)[:150] or "_", 1
            name = plain
            while name in self._given.values():
                number += 1
                name = f"{plain} {number}"
            self._given[word] = name
        return self._given[word]


def numbers(records: Sequence[Mapping[str, Any]], names: Names) -> dict[str, float]:
    """Name a round's numbers `SPLIT METRIC/CLIENT`, and add the mean of each over the clients.

    Pooled data has one client and several domains; these name its numbers.
    """
    found: dict[str, float] = {}
    means: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record["value"] is None:
            continue
        kind = f"{record['split']} {record['metric']}"
        who = record["domain"] if record["client"] == "all" else record["client"]
        found[f"{kind}/{names(who)}"] = record["value"]
        means[kind].append(record["value"])
    averages = {f"mean/{kind}": statistics.fmean(values) for kind, values in means.items()}
    return averages | found
