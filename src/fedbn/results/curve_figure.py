"""Curves over epochs: training loss (the convergence figures) and test accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedbn.results.series import Line
from fedbn.results.sheets import legend, looks, panels, saved, titled
from fedbn.results.style import styled

_MARKS = 8


def draw_curves_over_epochs(
    lines: Mapping[str, Mapping[str, Line]],
    stem: Path,
    ylabel: str,
    label: str = "",
    sharey: bool = False,
) -> tuple[Path, Path]:
    """Draw one panel a name, one line a method (or setting), shaded ± one standard deviation.

    Args:
        lines: By panel, by method.
        stem: The file without its suffix.
        ylabel: What is drawn.
        label: What must be said of scale and data.
        sharey: Draw all panels to one scale.
    """
    methods = list(dict.fromkeys(method for panel in lines.values() for method in panel))
    with styled():
        figure, axes = panels(len(lines), "epoch", ylabel, sharey)
        known = looks(methods)
        for axis, (name, panel) in zip(axes, lines.items(), strict=True):
            titled(axis, name)
            for method, line in panel.items():
                every = max(1, len(line.x) // _MARKS)
                axis.plot(line.x, line.mean, markersize=3, markevery=every, **known[method])
                low = [m - s for m, s in zip(line.mean, line.std, strict=True)]
                high = [m + s for m, s in zip(line.mean, line.std, strict=True)]
                axis.fill_between(line.x, low, high, color=known[method]["color"], alpha=0.18, lw=0)
        legend(figure, known)
        return saved(figure, stem, label)
