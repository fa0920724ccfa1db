"""How different the sites are: their BatchNorm statistics against each other, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from fedbn.results.report.contents import Array, Layer
from fedbn.results.report.svg import (
    drawing,
    grid,
    label,
    linear,
    numbered,
    points,
    tag,
    ticks,
    uprights,
)
from fedbn.results.report.words import spread

_WIDTH, _HEIGHT = 320.0, 274.0
_BOX = (44.0, 30.0, 312.0, 246.0)
_MOST_CHANNELS = 128
MOST_LINES = 8


def distances(layer: Layer) -> Array:
    r"""Measure how far the clients' statistics of a layer lie apart.

    The Fréchet distance of two Gaussians a channel, in units of their common deviation:

    $$d^2 = \frac1C \sum_c
      \frac{(\mu_c - \mu'_c)^2 + (\sigma_c - \sigma'_c)^2}{(\sigma_c^2 + \sigma_c'^2)/2}$$

    Examples:
        >>> one = Layer("bn", ("a", "b"), np.array([[0.0], [3.0]]), np.array([[1.0], [1.0]]))
        >>> distances(one).tolist()
        [[0.0, 3.0], [3.0, 0.0]]
    """
    far = np.zeros((len(layer.mean),) * 2)
    deviation = np.sqrt(layer.variance)
    for i in range(len(far)):
        apart = (layer.mean - layer.mean[i]) ** 2 + (deviation - deviation[i]) ** 2
        common = (layer.variance + layer.variance[i]) / 2
        far[i] = np.sqrt((apart / np.maximum(common, 1e-12)).mean(axis=1))
    return far


def layer_bars(layers: Sequence[Layer], matrices: Sequence[Array]) -> Markup:
    """Draw a bar a layer: the mean distance of two clients, and a line up to the farthest pair."""
    rows = [_pairs(far) for far in matrices]
    top = max((float(pairs.max(initial=0)) for pairs in rows), default=1.0) or 1.0
    names, row, width = 108.0, 22.0, 360.0
    bottom = 24 + row * len(rows)
    across = linear(0, top * 1.05, names + 4, width - 10)
    parts = [uprights(across, (0, top * 1.05), bottom)]
    for i, (layer, pairs) in enumerate(zip(layers, rows, strict=True)):
        y, mean, most = 24 + row * i, float(pairs.mean()), float(pairs.max())
        tip = tag("title", f"{layer.title}: mean {mean:.2f}, farthest pair {most:.2f}")
        name = label(names - 4, y + row / 2 + 4, layer.title, "end", most=15)
        box = {"x": names + 4, "width": across(mean) - names - 4, "y": y + 4, "height": row - 8}
        bar = tag("rect", **box, fill="#009E73", fill_opacity=0.7, rx=2)
        line = tag(
            "line",
            x1=across(mean),
            x2=across(most),
            y1=y + row / 2,
            y2=y + row / 2,
            stroke="currentColor",
        )
        dot = tag("circle", cx=across(most), cy=y + row / 2, r=2.2, fill="currentColor")
        parts.append(tag("g", tip, name, bar, line, dot))
    spoken = "; ".join(
        f"{layer.title} {float(p.mean()):.2f}" for layer, p in zip(layers, rows, strict=True)
    )
    return drawing(
        width,
        bottom + 22,
        f"Mean distance of two clients, by layer: {spoken}",
        label(0, 12, "Distance of two clients: mean, and farthest pair", most=60, class_="title"),
        *parts,
    )


def profile(layer: Layer, colours: Mapping[str, str], *, deviation: bool) -> Markup:
    """Draw a statistic over channels, ordered by the clients' mean, a line a client."""
    values = np.sqrt(layer.variance) if deviation else layer.mean
    order = spread(np.argsort(values.mean(axis=0)).tolist(), _MOST_CHANNELS)
    shown = [i for i, name in enumerate(layer.clients) if name in colours]
    some = values[shown][:, order]
    low, high = float(some.min()), float(some.max())
    room = 0.05 * (high - low) or 0.5
    left, top, right, bottom = _BOX
    across = linear(0, max(1, len(order) - 1), left + 4, right - 4)
    up = linear(low - room, high + room, bottom, top)
    what = "standard deviation" if deviation else "mean"
    ys = [(up(t), numbered(t)) for t in ticks(low - room, high + room, 6)]
    lines = []
    for row, i in zip(some.tolist(), shown, strict=True):
        name = layer.clients[i]
        place = points(map(across, range(len(order))), map(up, row))
        look = {"fill": "none", "stroke": colours[name], "stroke_width": 1.6}
        lines.append(tag("polyline", tag("title", name), points=place, **look))
    count = f"{len(order)} of {values.shape[1]}" if len(order) < values.shape[1] else len(order)
    return drawing(
        _WIDTH,
        _HEIGHT,
        f"Running {what} of {layer.title} over {count} channels, a line each of "
        f"{len(shown)} clients, from {low:.2g} to {high:.2g}",
        label(10, 14, f"{layer.title}: running {what}", most=48, class_="title"),
        grid([], ys, _BOX),
        *lines,
        tag(
            "text",
            f"{count} channels, in order",
            x=right,
            y=bottom + 16,
            text_anchor="end",
            class_="faint",
        ),
    )


def _pairs(far: Array) -> Array:
    return far[np.triu_indices(len(far), 1)] if len(far) > 1 else np.zeros(1)
