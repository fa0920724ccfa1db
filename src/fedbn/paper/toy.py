"""The toy problem of the introduction: one weight w, one scale γ, two clients (figures 1 and 2).

The model is `f(x) = cos(w x / γ)`. Without BatchNorm γ is 1; with the paper's simplified form of
it, γ is the standard deviation of the client's own x. The error depends on `w / γ` alone, so a
client has no single best pair but a ray of them; its own γ picks one, and the paper's optimum
(w*, γ*) is that one.

The paper says that x is Gaussian, that its variance differs between the clients, and that scaling
x by the client's own standard deviation γ brings their error surfaces together. That holds where
the scale is the client's way of measuring: x = σ z is what it sees, and y = cos(w_true z) + ε is
the same task everywhere, so that w = w_true is best for all once x is divided by γ. Read to the
letter, y = cos(w_true x) + ε, it is the other way round; `labels="observed"` draws that. Both
readings are computed and drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fedbn.core.randomness import generator
from fedbn.errors import ConfigError, unknown
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of, refused
from fedbn.results import BLUE, PURPLE, SKY, VERMILION
from fedbn.results.figures import PAGE, plain, saved, styled

FloatArray = NDArray[np.float64]
W_RANGE, GAMMA_RANGE = (0.001, 12.0), (0.001, 4.0)
"""The axes of the paper's second figure."""
_POINTS = 10
"""Of the grid, in the width of the valley around an optimum."""
_PIECE = 2_000_000
"""Cosines computed at a time."""


class Model(NamedTuple):
    """The weight w and the scale γ of `cos(w x / γ)`."""

    w: float
    gamma: float


def spread(x: FloatArray) -> float:
    """γ, the standard deviation of a client's inputs.

    Examples:
        >>> spread(np.array([-2.0, 2.0]))
        2.0
    """
    found = float(np.std(_checked(x, "x")))
    if not found:
        raise ConfigError("x is constant: its standard deviation is 0, and nothing can be scaled")
    return found


def errors(x: FloatArray, y: FloatArray, ratios: FloatArray) -> FloatArray:
    """The mean squared error of `cos(r x)` for every r = w / γ, of any shape.

    Examples:
        >>> x = np.array([0.0, np.pi])
        >>> errors(x, np.cos(x), np.array([0.0, 1.0])).tolist()
        [2.0, 0.0]
    """
    x, y = _checked(x, "x"), _checked(y, "y")
    if x.shape != y.shape:
        raise ConfigError(f"x has {x.size} numbers and y {y.size}: give as many of each")
    flat = _checked(np.asarray(ratios).ravel(), "ratios")
    step = max(1, _PIECE // x.size)
    parts = [
        np.square(y - np.cos(np.multiply.outer(flat[i : i + step], x))).mean(axis=1)
        for i in range(0, flat.size, step)
    ]
    return np.concatenate(parts).reshape(np.shape(ratios))


def error(x: FloatArray, y: FloatArray, w: float, gamma: float = 1.0) -> float:
    """The mean squared error of one model `cos(w x / γ)`."""
    return float(errors(x, y, np.array([w / gamma]))[0])


def surface(x: FloatArray, y: FloatArray, w: FloatArray, gamma: FloatArray) -> FloatArray:
    """The error over w and γ, a row a γ."""
    return errors(x, y, np.divide.outer(1.0, gamma)[:, None] * w)


def optimum(x: FloatArray, y: FloatArray, bounds: tuple[float, float] = W_RANGE) -> Model:
    """Find the best w for the client's own γ: a grid of `w / γ` in `bounds`, then its valley."""
    gamma = spread(x)
    points = max(201, math.ceil(_POINTS * gamma * (bounds[1] - bounds[0])))
    grid = np.linspace(*bounds, points)
    best = int(errors(x, y, grid).argmin())
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, points - 1)])
    fine = {"method": "bounded", "options": {"xatol": 1e-12}}
    found = minimize_scalar(lambda ratio: error(x, y, ratio), bounds=(low, high), **fine)
    return Model(float(found.x) * gamma, gamma)


def likeness(one: FloatArray, other: FloatArray) -> tuple[float, float]:
    """The largest gap of two clients' error curves over the same weights, and their correlation.

    Examples:
        >>> likeness(np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.5, 2.5]))[0]
        0.5
    """
    return float(np.abs(one - other).max()), float(np.corrcoef(one, other)[0, 1])


def expected_error(ratio: float, truth: float, scale: float, noise: float) -> float:
    """The error on endless samples, x ~ N(0, σ²) and y = cos(t x) + ε: the generalization error.

    With `a = r σ`, `b = t σ` and `E cos(u z) = exp(−u²/2)`::

        E (cos(az) − cos(bz))² = 1 + (e^(−2a²) + e^(−2b²)) / 2 − e^(−(a−b)²/2) − e^(−(a+b)²/2)

    so the valley around the optimum is a Gaussian as wide as 1/σ: a client with a wide x has a
    narrow valley. The square of the noise's deviation is added.

    Examples:
        >>> expected_error(5.0, 5.0, 1.0, 0.0)
        0.0
    """
    a, b = ratio * scale, truth * scale
    squares = 1 + (math.exp(-2 * a * a) + math.exp(-2 * b * b)) / 2
    product = math.exp(-((a - b) ** 2) / 2) + math.exp(-((a + b) ** 2) / 2)
    return squares - product + noise**2


def _checked(values: FloatArray, what: str) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise ConfigError(f"{what}: give a row of finite numbers, at least one")
    return found


Labels = Literal["latent", "observed"]


@dataclass(frozen=True)
class CosineClient:
    """One client's inputs and targets, and σ, the deviation that x was drawn with."""

    x: FloatArray
    y: FloatArray
    scale: float


def cosine_clients(
    scales: Sequence[float] = (1.0, 2.5),
    samples: int = 1000,
    w_true: float = 5.0,
    noise: float = 0.1,
    labels: Labels = "latent",
    seed: int = 0,
) -> tuple[CosineClient, ...]:
    """Draw the clients; y is made from z (`latent`) or from x = σ z (`observed`).

    Examples:
        >>> one, other = cosine_clients(noise=0.0)
        >>> bool(np.allclose(other.y, np.cos(5.0 * other.x / other.scale)))
        True
    """
    _check(scales, samples, w_true, noise, labels)
    clients = []
    for place, scale in enumerate(scales):
        draws = generator(seed, "cosine", client=str(place))
        z, errors = torch.randn(2, samples, generator=draws, dtype=torch.float64)
        inside = z if labels == "latent" else scale * z
        y = torch.cos(w_true * inside) + noise * errors
        clients.append(CosineClient((scale * z).numpy(), y.numpy(), scale))
    return tuple(clients)


def _check(scales: Sequence[float], samples: int, w_true: float, noise: float, labels: str) -> None:
    if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise ConfigError(f"scales = {list(scales)}: legal are numbers above 0, one a client")
    if samples < 2:
        raise ConfigError(f"samples = {samples}: legal are whole numbers from 2")
    if not math.isfinite(w_true):
        raise ConfigError(f"w_true = {w_true}: legal are finite numbers")
    if not (math.isfinite(noise) and noise >= 0):
        raise ConfigError(f"noise = {noise}: legal are numbers from 0")
    if labels not in get_args(Labels):
        raise ConfigError(f"labels: {unknown('kind of label', labels, get_args(Labels))}")


READINGS: dict[Labels, str] = {
    "latent": "y = cos(w_true z) + ε, x = σ z",
    "observed": "y = cos(w_true x) + ε, to the letter",
}
_GRID = 1201


@dataclass(frozen=True)
class Reading:
    """One reading of the toy problem: its clients, their optima and what averaging makes of it."""

    labels: Labels
    clients: tuple[CosineClient, ...]
    optima: tuple[Model, ...]

    @property
    def mean(self) -> Model:
        """What the server makes of the clients' optima."""
        return Model(*map(fmean, zip(*self.optima, strict=True)))

    def models(self, client: int) -> dict[str, Model]:
        """The models whose errors the claim compares, as one client would use them."""
        own = self.optima[client]
        return {
            "own optimum (w*, γ*)": own,
            "no BN, averaged w": Model(fmean(best.w / best.gamma for best in self.optima), 1.0),
            "averaged w, averaged γ": self.mean,
            "averaged w, local γ*": Model(self.mean.w, own.gamma),
        }

    def curves(self, *, normalised: bool) -> list[FloatArray]:
        """Each client's error over `weights()`, with or without local normalisation."""
        return [
            errors(c.x, c.y, weights() / (spread(c.x) if normalised else 1.0)) for c in self.clients
        ]


def weights(points: int = _GRID) -> FloatArray:
    """The w that curves and surfaces are drawn over."""
    return np.linspace(*W_RANGE, points)


CLIENTS = ((BLUE, "-"), (VERMILION, (0, (4, 1.5))))
"""A colour and a line style a client."""
MARKS = (("o", SKY, 11), ("s", PURPLE, 7), ("X", VERMILION, 8), ("D", "#FFFFFF", 4.5))
"""Shape, colour and size; the first is large, because the last may lie upon it."""
_LEVELS = 21


def _draw_curves(readings: Sequence[Reading], stem: Path, note: str) -> tuple[Path, ...]:
    """Draw the clients' errors over w, one panel without and one with local normalisation."""
    with styled():
        figure = Figure(figsize=(PAGE, 2.0 * len(readings) + 0.55))
        grid = figure.subplots(len(readings), 2, squeeze=False, sharey=True)
        for row, reading in zip(grid, readings, strict=True):
            for bn, axes in enumerate(row):
                _draw_panel(axes, reading, bool(bn))
            row[0].set_ylabel("training error")
        for axes in grid[-1]:
            axes.set_xlabel("w")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        return saved(figure, stem, note)


def _draw_panel(axes: Axes, reading: Reading, bn: bool) -> None:
    title = f"{'with' if bn else 'without'} BN: {READINGS[reading.labels]}"
    axes.set_title(plain(title), loc="left")
    clients = zip(reading.clients, reading.curves(normalised=bn), reading.optima, strict=True)
    for i, (client, curve, optimum) in enumerate(clients):
        colour, style = CLIENTS[i]
        label = plain(f"client {i + 1}, σ = {client.scale:g}")
        axes.plot(weights(), curve, color=colour, linestyle=style, label=label)
        best = optimum.w / (1.0 if bn else optimum.gamma)
        if best <= W_RANGE[1]:
            axes.axvline(best, color=colour, linestyle=style, linewidth=0.6, alpha=0.7)
    axes.set_xlim(0, W_RANGE[1])
    axes.set_ylim(bottom=0)


def _draw_surface(reading: Reading, points: int, stem: Path, note: str) -> tuple[Path, ...]:
    """Draw the error of client 1 over w and γ, as contours and as a landscape."""
    w, gamma, client = weights(points), np.linspace(*GAMMA_RANGE, points), reading.clients[0]
    heights = surface(client.x, client.y, w, gamma)
    with styled():
        figure = Figure(figsize=(PAGE, 3.5))
        flat = figure.add_subplot(1, 2, 1)
        flat.set_title(plain(f"Error of client 1, {READINGS[reading.labels]}"), loc="left")
        flat.grid(visible=False)
        levels = np.linspace(0, float(heights.max()), _LEVELS)
        shades = flat.contourf(w, gamma, heights, levels, cmap="viridis")
        shades.set_rasterized(True)  # a picture inside the SVG, in place of megabytes of paths
        ticks = np.arange(0, float(heights.max()), 0.25)
        figure.colorbar(shades, ax=flat, label="training error", ticks=ticks, pad=0.02)
        flat.set(xlabel="w", ylabel="γ", xlim=(0, w[-1]), ylim=(0, gamma[-1]))
        _mark_models(flat, reading)
        _draw_landscape(figure.add_subplot(1, 2, 2, projection="3d"), w, gamma, heights)
        handles, labels = flat.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return saved(figure, stem, note)


def _mark_models(axes: Axes, reading: Reading) -> None:
    """Mark four models and their errors; one that lies outside is named in the legend only."""
    client, (first, second, *_) = reading.clients[0], reading.optima
    models = {
        "w₁*, γ₁*": first,
        "w₂*, γ₂*": second,
        "averaged w, averaged γ": reading.mean,
        "averaged w, local γ₁*": Model(reading.mean.w, first.gamma),
    }
    for (label, (w, gamma)), (mark, face, size) in zip(models.items(), MARKS, strict=True):
        inside = w <= axes.get_xlim()[1] and gamma <= axes.get_ylim()[1]
        outside = "" if inside else f" (outside, w = {w:.1f}, γ = {gamma:.1f})"
        axes.plot(
            [w] if inside else [],
            [gamma] if inside else [],
            linestyle="",
            marker=mark,
            color=face,
            markersize=size,
            label=f"{plain(label)}: {error(client.x, client.y, w, gamma):.3f}{outside}",
            markeredgecolor="black",
            markeredgewidth=0.8,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )


def _draw_landscape(axes: Any, w: FloatArray, gamma: FloatArray, heights: FloatArray) -> None:
    look: dict[str, Any] = {"cmap": "viridis", "linewidth": 0, "shade": False, "rasterized": True}
    axes.plot_surface(*np.meshgrid(w, gamma), heights, rcount=80, ccount=120, **look)
    axes.view_init(elev=52, azim=-118)
    axes.set_box_aspect((1.2, 1.0, 0.55), zoom=0.95)
    axes.set_xlabel("w", labelpad=-6)
    axes.set_ylabel("γ", labelpad=-6)
    axes.set_zlabel("error", labelpad=-8)
    axes.set_zticks(np.arange(0, float(heights.max()), 0.5))
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
    grid = options.pop("grid")
    if not request.changes:  # quick is no other than the paper's scale
        request = replace(request, label="")
    readings = []
    for labels in READINGS:
        clients = cosine_clients(labels=labels, **options)
        readings.append(Reading(labels, clients, tuple(optimum(c.x, c.y) for c in clients)))
    figures = [*_draw_curves(readings, request.folder / "toy-curves", request.label)]
    for reading in readings:
        stem = request.folder / f"toy-surface-{reading.labels}"
        figures += _draw_surface(reading, grid, stem, request.label)
    tables = (_errors_table(request, readings, options), _curves_table(request, readings))
    return Outcome(tables, tuple(figures), tuple(_remark(reading) for reading in readings))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    found = options_of(given, DEFAULTS)
    for key, value in found.items():
        kinds = (int, float) if isinstance(DEFAULTS[key], float) else type(DEFAULTS[key])
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise refused(key, value, f"legal is the like of {DEFAULTS[key]!r}")
    numbers = {type(scale) for scale in found["scales"]} <= {int, float}
    if len(found["scales"]) != _CLIENTS or not numbers:
        raise refused("scales", found["scales"], f"the figures need {_CLIENTS} numbers, one each")
    if not 2 <= found["grid"] <= 5000:
        raise refused("grid", found["grid"], "legal are whole numbers 2 to 5000")
    return found


def _errors_table(
    request: Request, readings: Sequence[Reading], options: Mapping[str, Any]
) -> Table:
    rows, noise = [], options["noise"]
    for reading in readings:
        for number, client in enumerate(reading.clients):
            latent = reading.labels == "latent"  # the t of y = cos(t x) behind the targets
            truth = options["w_true"] / (client.scale if latent else 1.0)
            for name, model in reading.models(number).items():
                measured = error(client.x, client.y, *model)
                ratio = model.w / model.gamma
                expected = expected_error(ratio, truth, client.scale, noise)
                label = (reading.labels, f"client {number + 1}", name)
                rows.append(Row(label, tuple(map(Cell, (*model, measured, expected)))))
    return Table(
        f"{request.name}-errors",
        "Toy example: mean squared error of f(x) = cos(w x / γ)",
        ("w", "γ", "training error", "expected error"),
        tuple(rows),
        f"Noise alone gives {noise**2:g}; the paper states no numbers. {request.label}".strip(),
        ("reading", "client", "model"),
        digits=3,
    )


def _curves_table(request: Request, readings: Sequence[Reading]) -> Table:
    rows = []
    for reading in readings:
        for bn in (False, True):
            label = (reading.labels, "with" if bn else "without")
            rows.append(Row(label, tuple(map(Cell, likeness(*reading.curves(normalised=bn))))))
    return Table(
        f"{request.name}-curves",
        "Toy example: how alike the error curves of both clients are over w in [0.001, 12]",
        ("largest gap", "correlation"),
        tuple(rows),
        f"The paper shows this as a figure and states no numbers. {request.label}".strip(),
        ("reading", "BN"),
        digits=3,
    )


def _remark(reading: Reading) -> str:
    """Say what averaging does to client 1 in this reading, from the numbers."""
    client = reading.clients[0]
    models = reading.models(0).values()
    own, _, both, local = (error(client.x, client.y, *model) for model in models)
    without, with_bn = (likeness(*reading.curves(normalised=bn))[1] for bn in (False, True))
    holds = local < both and with_bn > without
    return (
        f"{reading.labels} ({READINGS[reading.labels]}): the paper's claim "
        f"{'holds' if holds else 'is reversed'}. Client 1 has error {own:.3f} at its optimum, "
        f"{both:.3f} with averaged w and γ, {local:.3f} with averaged w and its own γ; the "
        f"clients' error curves correlate {without:.2f} without BN and {with_bn:.2f} with it"
    )
