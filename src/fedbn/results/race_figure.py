"""Two methods' training losses step by step, and how much lower one is than the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from fedbn.results.sheets import NAMES, PAGE, legend, looks, saved, titled
from fedbn.results.style import styled

Runs = Sequence[Sequence[float]]
"""Losses step by step, of one seed each."""
_MARKS = 6


def draw_race(
    panels: Mapping[str, Mapping[str, Runs]], stem: Path, label: str = ""
) -> tuple[Path, Path]:
    """Draw a column a setting: losses on a log scale above, how much lower the second's is below.

    Args:
        panels: By setting, by method; the first method is the one to compare with.
        stem: The files without their suffix.
        label: What must be said of scale and data.

    Returns:
        The SVG and the PNG.
    """
    known = looks(list(dict.fromkeys(m for panel in panels.values() for m in panel)))
    with styled():
        figure, grid = plt.subplots(
            2, len(panels), figsize=(PAGE, 3.6), squeeze=False, sharex=True, height_ratios=[1.5, 1]
        )
        for (name, panel), (above, below) in zip(panels.items(), grid.T, strict=True):
            titled(above, name)
            _draw_losses(above, panel, known)
            _draw_gain(below, panel, known)
            below.sharey(grid[1, 0])
            below.label_outer()
        grid[0, 0].set_ylabel("training loss")
        legend(figure, known)
        return saved(figure, stem, label)


def _draw_losses(axes: Axes, panel: Mapping[str, Runs], known: Mapping[str, Any]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for method, runs in panel.items():
        _band(axes, np.asarray(runs), known[method])


def _draw_gain(axes: Axes, panel: Mapping[str, Runs], known: Mapping[str, Any]) -> None:
    first, second = list(panel)[:2]
    gain = 100 * (1 - np.asarray(panel[second]) / np.asarray(panel[first]))
    axes.axhline(0.0, color=known[first]["color"], linewidth=0.8)
    _band(axes, gain, known[second])
    axes.set_xlabel("step")
    axes.set_ylabel(f"{NAMES.get(second, second)} lower by (%)")


def _band(axes: Axes, runs: NDArray[np.float64], look: Mapping[str, Any]) -> None:
    """Draw the mean over seeds and, shaded, all that lies between the least and the largest."""
    steps = np.arange(1, runs.shape[1] + 1)
    every = max(1, runs.shape[1] // _MARKS)
    axes.plot(steps, runs.mean(axis=0), markersize=3, markevery=every, **look)
    axes.fill_between(
        steps, runs.min(axis=0), runs.max(axis=0), color=look["color"], alpha=0.18, lw=0
    )
