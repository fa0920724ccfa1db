"""Final accuracy against a swept value: local epochs, share of the data, clients a domain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedbn.results.series import spread
from fedbn.results.sheets import legend, looks, panels, saved, titled
from fedbn.results.style import plain, styled

Values = Mapping[str, Mapping[str, list[float]]]
"""Of a method, at a value of the axis: the accuracy of each seed."""


def draw_against(
    lines: Mapping[str, Values], stem: Path, xlabel: str, label: str = ""
) -> tuple[Path, Path]:
    """Draw one panel a domain, one line a method, the values of the axis at equal distances.

    Args:
        lines: By panel, by method, by value of the axis.
        stem: The file without its suffix.
        xlabel: What varies.
        label: What must be said of scale and data.
    """
    methods = list(dict.fromkeys(method for panel in lines.values() for method in panel))
    with styled():
        figure, axes = panels(len(lines), xlabel, "test accuracy (%)")
        known = looks(methods)
        for axis, (name, panel) in zip(axes, lines.items(), strict=True):
            titled(axis, name)
            ticks = list(dict.fromkeys(value for line in panel.values() for value in line))
            axis.set_xticks(range(len(ticks)), [plain(tick) for tick in ticks])
            for method, line in panel.items():
                axis.errorbar(
                    [ticks.index(value) for value in line],
                    [sum(seeds) / len(seeds) for seeds in line.values()],
                    [spread(seeds) for seeds in line.values()],
                    markersize=4,
                    capsize=2,
                    elinewidth=0.8,
                    **known[method],
                )
        legend(figure, known)
        return saved(figure, stem, label)
