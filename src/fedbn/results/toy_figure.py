"""The pictures of the paper's toy example: error curves of two clients, and one error surface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from fedbn.results.sheets import COLUMN, PAGE, saved
from fedbn.results.style import plain, styled

CLIENTS = (("#0072B2", "-"), ("#D55E00", (0, (4, 1.5))), ("#009E73", (0, (1, 1.2))))
"""A colour of Okabe and Ito's and a line style a client."""
MARKS = (("o", "#56B4E9", 11), ("s", "#CC79A7", 7), ("X", "#D55E00", 8), ("D", "#FFFFFF", 4.5))
"""Shape, colour and size; the first is large, because the last may lie upon it."""
_LEVELS = 21


def draw_toy_curves(
    panels: Sequence[Mapping[str, Any]], stem: Path, note: str = ""
) -> tuple[Path, Path]:
    """Draw the clients' errors over w, one panel without and one with local normalisation.

    Args:
        panels: Each with `title`, `w`, `errors` (label of a client to its curve) and `best` (label
            to the w of its optimum).
        stem: The files without their suffix.
        note: A line below the picture.

    Returns:
        The SVG and the PNG.
    """
    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    with styled():
        size = (PAGE if columns > 1 else COLUMN, 2.0 * rows + 0.55)
        figure, grid = plt.subplots(
            rows, columns, figsize=size, squeeze=False, sharey=True, layout="constrained"
        )
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[:, 0]:
            axes.set_ylabel("training error")
        for axes in grid[-1]:
            axes.set_xlabel("w")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return saved(figure, stem, note)


def draw_toy_surface(study: Mapping[str, Any], stem: Path, note: str = "") -> tuple[Path, Path]:
    """Draw a client's error over w and γ, as contours and as a landscape.

    Args:
        study: `title`, `w`, `gamma`, `errors` (a row a γ) and `points`: label to (w, γ, error).
        stem: The files without their suffix.
        note: A line below the picture.

    Returns:
        The SVG and the PNG.
    """
    with styled():
        figure = plt.figure(figsize=(PAGE, 3.5), layout="constrained")
        flat = figure.add_subplot(1, 2, 1)
        flat.set_title(plain(study["title"]), fontsize=8, loc="left")
        _draw_contours(figure, flat, study)
        _draw_landscape(figure.add_subplot(1, 2, 2, projection="3d"), study)
        handles, labels = flat.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return saved(figure, stem, note)


def _draw_panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.set_title(plain(panel["title"]), fontsize=8, loc="left")
    for (label, values), (colour, style) in zip(panel["errors"].items(), CLIENTS, strict=False):
        axes.plot(panel["w"], values, color=colour, linestyle=style, label=plain(label))
        best = panel["best"][label]
        if best <= panel["w"][-1]:
            axes.axvline(best, color=colour, linestyle=style, linewidth=0.6, alpha=0.7)
    axes.set_xlim(0, panel["w"][-1])
    axes.set_ylim(bottom=0)


def _draw_contours(figure: Figure, axes: Axes, study: Mapping[str, Any]) -> None:
    top = float(np.max(study["errors"]))
    axes.grid(visible=False)
    levels = np.linspace(0, top, _LEVELS)
    shades = axes.contourf(study["w"], study["gamma"], study["errors"], levels, cmap="viridis")
    shades.set_rasterized(True)  # a picture inside the SVG, in place of megabytes of paths
    ticks = np.arange(0, top, 0.25)
    figure.colorbar(shades, ax=axes, label="training error", ticks=ticks, pad=0.02)
    axes.set(xlabel="w", ylabel="γ", xlim=(0, study["w"][-1]), ylim=(0, study["gamma"][-1]))
    for (label, point), (mark, face, size) in zip(study["points"].items(), MARKS, strict=False):
        _mark(axes, label, point, {"marker": mark, "color": face, "markersize": size})


def _mark(axes: Axes, label: str, point: tuple[float, float, float], look: dict[str, Any]) -> None:
    """Mark a model; one that lies outside is named in the legend only."""
    w, gamma, error = point
    inside = w <= axes.get_xlim()[1] and gamma <= axes.get_ylim()[1]
    outside = "" if inside else f" (outside, w = {w:.1f}, γ = {gamma:.1f})"
    axes.plot(
        [w] if inside else [],
        [gamma] if inside else [],
        linestyle="",
        label=f"{plain(label)}: {error:.3f}{outside}",
        markeredgecolor="black",
        markeredgewidth=0.8,
        path_effects=[withStroke(linewidth=2, foreground="white")],
        **look,
    )


def _draw_landscape(axes: Any, study: Mapping[str, Any]) -> None:
    w, gamma = np.meshgrid(study["w"], study["gamma"])
    look: dict[str, Any] = {"cmap": "viridis", "linewidth": 0, "shade": False, "rasterized": True}
    axes.plot_surface(w, gamma, study["errors"], rcount=80, ccount=120, **look)
    axes.view_init(elev=52, azim=-118)
    axes.set_box_aspect((1.2, 1.0, 0.55), zoom=0.95)
    axes.set_xlabel("w", labelpad=-6)
    axes.set_ylabel("γ", labelpad=-6)
    axes.set_zlabel("error", labelpad=-8)
    axes.set_zticks(np.arange(0, float(np.max(study["errors"])), 0.5))
    axes.tick_params(pad=-3, labelsize=6.5)
