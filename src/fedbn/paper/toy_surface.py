"""The toy example of the introduction: figures 1 and 2, and the numbers behind their claim.

Both readings of the problem are computed and drawn (see `toy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from fedbn.paper import toy
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of, refused
from fedbn.paper.toy import READINGS, Reading, read, weights
from fedbn.results import BLUE, GREEN, PURPLE, SKY, VERMILION
from fedbn.results.figures import COLUMN, PAGE, plain, saved, styled

CLIENTS = ((BLUE, "-"), (VERMILION, (0, (4, 1.5))), (GREEN, (0, (1, 1.2))))
"""A colour and a line style a client."""
MARKS = (("o", SKY, 11), ("s", PURPLE, 7), ("X", VERMILION, 8), ("D", "#FFFFFF", 4.5))
"""Shape, colour and size; the first is large, because the last may lie upon it."""
_LEVELS = 21


def draw_toy_curves(
    panels: Sequence[Mapping[str, Any]], stem: Path, note: str = ""
) -> tuple[Path, ...]:
    """Draw the clients' errors over w, one panel without and one with local normalisation."""
    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    with styled():
        size = (PAGE if columns > 1 else COLUMN, 2.0 * rows + 0.55)
        figure = Figure(figsize=size)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[:, 0]:
            axes.set_ylabel("training error")
        for axes in grid[-1]:
            axes.set_xlabel("w")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return saved(figure, stem, note)


def draw_toy_surface(study: Mapping[str, Any], stem: Path, note: str = "") -> tuple[Path, ...]:
    """Draw a client's error over w and γ, as contours and as a landscape."""
    with styled():
        figure = Figure(figsize=(PAGE, 3.5))
        flat = figure.add_subplot(1, 2, 1)
        flat.set_title(plain(study["title"]), loc="left")
        _draw_contours(figure, flat, study)
        _draw_landscape(figure.add_subplot(1, 2, 2, projection="3d"), study)
        handles, labels = flat.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return saved(figure, stem, note)


def _draw_panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.set_title(plain(panel["title"]), loc="left")
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


DEFAULTS: dict[str, Any] = {
    "scales": [1.0, 2.5],
    "samples": 1000,
    "w_true": 5.0,
    "noise": 0.1,
    "seed": 0,
    "grid": 240,
}


_CLIENTS = 2


def toy_surface(request: Request) -> Outcome:
    """Compute and draw the toy example."""
    options = _options(request.options)
    if not request.changes:  # quick is no other than the paper's scale
        request = replace(request, label="")
    drawn = {key: value for key, value in options.items() if key != "grid"}
    readings = [read(labels, drawn) for labels in READINGS]
    figures = _draw(request, readings, options)
    tables = (_errors_table(request, readings, options), _curves_table(request, readings))
    return Outcome(tables, figures, tuple(_remark(reading) for reading in readings))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    found = options_of(given, DEFAULTS)
    for key, value in found.items():
        kinds = (int, float) if isinstance(DEFAULTS[key], float) else type(DEFAULTS[key])
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise refused(key, value, f"legal is the like of {DEFAULTS[key]!r}")
    if len(found["scales"]) != _CLIENTS:
        raise refused("scales", found["scales"], f"the figures need {_CLIENTS}, one a client")
    if not 2 <= found["grid"] <= 5000:
        raise refused("grid", found["grid"], "legal are whole numbers 2 to 5000")
    return found


def _draw(
    request: Request, readings: Sequence[Reading], options: Mapping[str, Any]
) -> tuple[Path, ...]:
    panels = [_panel(reading, bn) for reading in readings for bn in (False, True)]
    figures = list(draw_toy_curves(panels, request.folder / "toy-curves", request.label))
    for reading in readings:
        stem = request.folder / f"toy-surface-{reading.labels}"
        figures += draw_toy_surface(_study(reading, options["grid"]), stem, request.label)
    return tuple(figures)


def _panel(reading: Reading, bn: bool) -> dict[str, Any]:
    names = [f"client {i}, σ = {c.scale:g}" for i, c in enumerate(reading.clients, 1)]
    best = [found.w / (1.0 if bn else found.gamma) for found in reading.optima]
    return {
        "title": f"{'with' if bn else 'without'} BN: {reading.formula}",
        "w": weights(),
        "errors": dict(zip(names, reading.curves(normalised=bn), strict=True)),
        "best": dict(zip(names, best, strict=True)),
    }


def _study(reading: Reading, grid: int) -> dict[str, Any]:
    """What the surface of client 1 shows; the other client's optimum is marked without an error."""
    w, gamma = weights(grid), np.linspace(*toy.GAMMA_RANGE, grid)
    client, (first, second, *_) = reading.clients[0], reading.optima
    models = {
        "w₁*, γ₁*": first,
        "w₂*, γ₂*": second,
        "averaged w, averaged γ": reading.mean,
        "averaged w, local γ₁*": (reading.mean.w, first.gamma),
    }
    return {
        "title": f"Error of client 1, {reading.formula}",
        "w": w,
        "gamma": gamma,
        "errors": toy.surface(client.x, client.y, w, gamma),
        "points": {name: (*at, toy.error(client.x, client.y, *at)) for name, at in models.items()},
    }


def _errors_table(
    request: Request, readings: Sequence[Reading], options: Mapping[str, Any]
) -> Table:
    rows = []
    for reading in readings:
        for number, client in enumerate(reading.clients):
            truth = reading.truth(client, options["w_true"])
            for name, model in reading.models(number).items():
                measured = toy.error(client.x, client.y, *model)
                ratio = model.w / model.gamma
                expected = toy.expected_error(ratio, truth, client.scale, options["noise"])
                label = (reading.labels, f"client {number + 1}", name)
                rows.append(Row(label, tuple(map(Cell, (*model, measured, expected)))))
    return Table(
        f"{request.name}-errors",
        "Toy example: mean squared error of f(x) = cos(w x / γ)",
        ("w", "γ", "training error", "expected error"),
        tuple(rows),
        _note(
            request, f"Noise alone gives {options['noise'] ** 2:g}; the paper states no numbers."
        ),
        ("reading", "client", "model"),
        digits=3,
    )


def _curves_table(request: Request, readings: Sequence[Reading]) -> Table:
    rows = []
    for reading in readings:
        for bn in (False, True):
            alike = reading.likeness(normalised=bn)
            label = (reading.labels, "with" if bn else "without")
            rows.append(Row(label, (Cell(alike.gap), Cell(alike.correlation))))
    return Table(
        f"{request.name}-curves",
        "Toy example: how alike the error curves of both clients are over w in [0.001, 12]",
        ("largest gap", "correlation"),
        tuple(rows),
        _note(request, "The paper shows this as a figure and states no numbers."),
        ("reading", "BN"),
        digits=3,
    )


def _note(request: Request, text: str) -> str:
    return f"{text} {request.label}".strip()


def _remark(reading: Reading) -> str:
    """Say what averaging does to client 1 in this reading, from the numbers."""
    client = reading.clients[0]
    models = reading.models(0).values()
    own, _, both, local = (toy.error(client.x, client.y, *model) for model in models)
    without, with_bn = (reading.likeness(normalised=bn).correlation for bn in (False, True))
    holds = local < both and with_bn > without
    return (
        f"{reading.labels} ({reading.formula}): the paper's claim "
        f"{'holds' if holds else 'is reversed'}. Client 1 has error {own:.3f} at its optimum, "
        f"{both:.3f} with averaged w and γ, {local:.3f} with averaged w and its own γ; the "
        f"clients' error curves correlate {without:.2f} without BN and {with_bn:.2f} with it"
    )
