"""Grouped bars: one group a domain, one bar a method, with standard deviations (figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedbn.results.series import spread
from fedbn.results.sheets import COLUMN, DOMAINS, NAMES, PAGE, hatches, looks, saved
from fedbn.results.style import plain, styled

_GROUP = 0.84


def draw_bars(
    values: Mapping[str, Mapping[str, list[float]]],
    stem: Path,
    label: str = "",
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[Path, Path]:
    """Draw the bars; the paper's numbers, where they may be compared, as short black lines.

    Args:
        values: Of a method, of a domain: the accuracy of each seed.
        stem: The file without its suffix.
        label: What must be said of scale and data.
        paper: The paper's means, by method and domain.
    """
    domains = list(dict.fromkeys(domain for own in values.values() for domain in own))
    known, hatched = looks(list(values)), hatches(list(values))
    width = _GROUP / len(values)
    with styled():
        wide = PAGE if len(domains) * len(values) > 12 else COLUMN
        figure, axis = plt.subplots(figsize=(wide, 2.5))
        axis.grid(axis="x", visible=False)
        lowest, highest = 100.0, 0.0
        for number, (method, own) in enumerate(values.items()):
            shift = (number - (len(values) - 1) / 2) * width
            for domain, seeds in own.items():
                x, mean = domains.index(domain) + shift, sum(seeds) / len(seeds)
                lowest = min(lowest, mean - spread(seeds))
                highest = max(highest, mean + spread(seeds))
                axis.bar(
                    x,
                    mean,
                    width,
                    yerr=spread(seeds) or None,
                    color=known[method]["color"],
                    hatch=hatched[method],
                    edgecolor="white",
                    linewidth=0.4,
                    error_kw={"elinewidth": 0.8, "capsize": 1.5, "ecolor": _error_colour(method)},
                )
                theirs = (paper or {}).get(method, {}).get(domain)
                if theirs is not None:
                    lowest, highest = min(lowest, theirs), max(highest, theirs)
                    axis.hlines(theirs, x - 0.4 * width, x + 0.4 * width, color="black", lw=1.6)
        axis.set_xticks(range(len(domains)), [plain(DOMAINS.get(d, d)) for d in domains])
        axis.set_ylim(max(0, 10 * ((lowest - 5) // 10)), min(100, 10 * (highest // 10 + 1)))
        axis.set_ylabel("test accuracy (%)")
        handles: list[Patch | Line2D] = [
            Patch(
                facecolor=known[m]["color"],
                hatch=hatched[m],
                edgecolor="white",
                label=plain(NAMES.get(m, m)),
            )
            for m in values
        ]
        if paper:
            handles.append(Line2D([], [], color="black", lw=1.6, label="paper"))
        figure.legend(handles=handles, loc="outside upper center", ncols=5)
        return saved(figure, stem, label)


def _error_colour(method: str) -> str:
    """Black shows on every bar but Centralized's."""
    return "0.6" if method == "centralized" else "black"
