"""Drawings of sites: confusion matrices, distances and statistics by layer, example pictures."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from fedbn.report import svg
from fedbn.report.charts import BAR_START, ROW, bar_name, bars
from fedbn.report.contents import Array, Confusion, Example, Layer
from fedbn.report.svg import Scale
from fedbn.results import BLUE, GREEN, VERMILION
from fedbn.text import short, spread
from fedbn.trained.local_parts import layer_distance

_SIDE = 300.0
_MOST_WITH_NUMBERS = 12
_MOST_SIGNS, _SIGN = 12, 6.2  # of a name, and the width of one
MOST_CLASSES = 20


def confusion_matrix(confusion: Confusion, classes: Sequence[str]) -> Markup:
    """Draw a matrix: rows are true classes, columns what the model said, shades shares of a row."""
    counts = confusion.counts
    sums = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    texts = [[str(n) if n else "" for n in row] for row in counts.tolist()]
    right = float(np.trace(counts)) / max(1, int(counts.sum()))
    own = confusion.client == confusion.domain
    name = confusion.client + ("" if own else f" on {confusion.domain}")
    title = f"{short(name, 26)} · {100 * right:.1f} %"
    spoken = f"Confusion matrix of {name}: {100 * right:.1f} % of {int(counts.sum())} right"
    parts, height = _matrix(counts / sums, texts, classes, wrong=True)
    legend = svg.note("rows: true · columns: predicted", _SIDE, height + 12)
    head = svg.label(0, 12, title, most=60, class_="title")
    return svg.drawing(_SIDE, height + 16, spoken, head, *parts, legend)


def distance_matrix(far: Array, names: Sequence[str], title: str) -> Markup:
    """Draw how far clients lie from each other, darker for farther."""
    top = float(far.max(initial=0.0)) or 1.0
    texts = [[f"{d:.2f}" if d < 10 else f"{d:.0f}" for d in row] for row in far.tolist()]
    pairs = [(float(far[i, j]), names[i], names[j]) for i in range(len(far)) for j in range(i)]
    spoken = f"{title}: distances between {len(names)} clients"
    if pairs:
        most, least = max(pairs), min(pairs)
        spoken += f"; farthest {most[1]} and {most[2]}, nearest {least[1]} and {least[2]}"
    parts, height = _matrix(far / top, texts, names, wrong=False)
    head = svg.label(0, 12, title, most=40, class_="title")
    return svg.drawing(_SIDE, height + 2, spoken, head, *parts)


def mistakes(confusion: Confusion, classes: Sequence[str], most: int = 5) -> list[str]:
    """Say which classes were taken for which, the most frequent first."""
    wrong = confusion.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(wrong, axis=None)[::-1][:most]
    pairs = [np.unravel_index(place, wrong.shape) for place in order]
    return [f"{classes[i]} → {classes[j]} ({wrong[i, j]})" for i, j in pairs if wrong[i, j]]


def _matrix(
    shades: Array, texts: Sequence[Sequence[str]], names: Sequence[str], *, wrong: bool
) -> tuple[list[Markup], float]:
    """Draw a square of names against names; returns it and its height."""
    longest = max(len(short(name, _MOST_SIGNS)) for name in names)
    left = 18 + _SIGN * longest
    wide = (_SIDE - left) / len(names)
    slanted = _SIGN * longest > wide
    beyond = max(0.0, 0.7 * _SIGN * longest - wide / 2) if slanted else 0.0  # of the last name
    cell = (_SIDE - left - beyond) / len(names)
    top = 40 + (3.6 * longest if slanted else 0)
    parts = _names(names, left, top, cell, slanted=slanted)
    for i, row in enumerate(names):
        for j, column in enumerate(names):
            share = float(shades[i][j])
            x, y = left + cell * j, top + cell * i
            tip = svg.tag("title", f"{row} → {column}: {texts[i][j] or '0'}")
            colour = VERMILION if wrong and i != j and share else BLUE
            box = {"x": x, "y": y, "width": cell - 1, "height": cell - 1, "rx": 1.5}
            shade = {"fill": colour, "fill_opacity": 0.05 + 0.6 * share}
            parts.append(svg.tag("rect", tip, **box, **shade))
            if len(names) <= _MOST_WITH_NUMBERS and (text := texts[i][j]):
                size = min(11.0, 1.7 * cell / max(2, len(text)))
                at = {"x": x + cell / 2, "y": y + cell / 2 + size * 0.35, "text_anchor": "middle"}
                parts.append(svg.tag("text", text, **at, style=f"font-size:{size:.1f}px"))
    return parts, top + cell * len(names)


def _names(
    names: Sequence[str], left: float, top: float, cell: float, *, slanted: bool
) -> list[Markup]:
    """Write the names to the left and above; fewer where it is tight."""
    found = []
    for i, name in list(enumerate(names))[:: max(1, math.ceil(11 / cell))]:
        middle = cell * (i + 0.5)
        found.append(svg.label(left - 5, top + middle + 3.5, name, "end", most=_MOST_SIGNS))
        x, y = left + middle, top - 5
        turned = {"transform": f"rotate(-45 {x:.1f} {y:.1f})"} if slanted else {}
        anchor = "start" if slanted else "middle"
        found.append(svg.label(x, y, name, anchor, most=_MOST_SIGNS, **turned))
    return found


_WIDTH, _HEIGHT = 320.0, 274.0
_BOX = (44.0, 30.0, 312.0, 246.0)
_MOST_CHANNELS = 128
MOST_LINES = 8


def distances(layer: Layer) -> Array:
    """Measure how far the clients' statistics of a layer lie apart, a row and a column a client.

    Examples:
        >>> one = Layer("bn", ("a", "b"), np.array([[0.0], [3.0]]), np.array([[1.0], [1.0]]))
        >>> distances(one).round(2).tolist()
        [[0.0, 3.0], [3.0, 0.0]]
    """
    mean, variance = torch.from_numpy(layer.mean), torch.from_numpy(layer.variance)
    rows = [layer_distance((mean, variance), one) for one in zip(mean, variance, strict=True)]
    return torch.stack(rows).numpy()


def layer_bars(layers: Sequence[Layer], matrices: Sequence[Array]) -> Markup:
    """Draw a bar a layer: the mean distance of two clients, and a line up to the farthest pair."""
    apart = [far[np.triu_indices(len(far), 1)] if len(far) > 1 else far for far in matrices]
    ends = [(float(pairs.mean()), float(pairs.max())) for pairs in apart]
    top = max((most for _, most in ends), default=1.0) or 1.0
    rows = [partial(_layer, layer.title, *end) for layer, end in zip(layers, ends, strict=True)]
    said = "; ".join(f"{one.title} {mean:.2f}" for one, (mean, _) in zip(layers, ends, strict=True))
    title = "Distance of two clients: mean, and farthest pair"
    return bars(title, f"Mean distance of two clients, by layer: {said}", (0, top * 1.05), rows)


def _layer(title: str, mean: float, most: float, y: float, across: Scale) -> Markup:
    tip = svg.tag("title", f"{title}: mean {mean:.2f}, farthest pair {most:.2f}")
    x, far, middle = across(mean), across(most), y + ROW / 2
    box = {"x": BAR_START, "width": x - BAR_START, "y": y + 4, "height": ROW - 8}
    bar = svg.tag("rect", **box, fill=GREEN, fill_opacity=0.7, rx=2)
    line = svg.tag("line", x1=x, x2=far, y1=middle, y2=middle, stroke="currentColor")
    dot = svg.tag("circle", cx=far, cy=middle, r=2.2, fill="currentColor")
    return svg.tag("g", tip, bar_name(title, y), bar, line, dot)


def profile(layer: Layer, colours: Mapping[str, str], *, deviation: bool) -> Markup:
    """Draw a statistic over channels, ordered by the clients' mean, a line a client."""
    values = np.sqrt(layer.variance) if deviation else layer.mean
    order = spread(np.argsort(values.mean(axis=0)).tolist(), _MOST_CHANNELS)
    shown = [i for i, name in enumerate(layer.clients) if name in colours]
    some = values[shown][:, order]
    low, high = float(some.min()), float(some.max())
    room = 0.05 * (high - low) or 0.5
    left, top, right, bottom = _BOX
    across = svg.linear(0, max(1, len(order) - 1), left + 4, right - 4)
    up = svg.linear(low - room, high + room, bottom, top)
    what = "standard deviation" if deviation else "mean"
    ys = [(up(t), svg.numbered(t)) for t in svg.ticks(low - room, high + room, 6)]
    lines = []
    for row, i in zip(some.tolist(), shown, strict=True):
        name = layer.clients[i]
        place = svg.points(map(across, range(len(order))), map(up, row))
        look = {"fill": "none", "stroke": colours[name], "stroke_width": 1.6}
        lines.append(svg.tag("polyline", svg.tag("title", name), points=place, **look))
    count = f"{len(order)} of {values.shape[1]}" if len(order) < values.shape[1] else len(order)
    spoken = (
        f"Running {what} of {layer.title} over {count} channels, a line each of "
        f"{len(shown)} clients, from {low:.2g} to {high:.2g}"
    )
    head = svg.label(10, 14, f"{layer.title}: running {what}", most=48, class_="title")
    below = svg.note(f"{count} channels, in order", right, bottom + 16)
    return svg.drawing(_WIDTH, _HEIGHT, spoken, head, svg.grid([], ys, _BOX), *lines, below)


_PIXELS = 96


def picture(example: Example) -> Markup:
    """Show an example with its class, and with what the model took it for."""
    sure = f"{100 * example.probability:.0f} %"
    spoken = f"{example.true}, predicted {example.predicted} ({sure})"
    source = f"data:image/png;base64,{base64.b64encode(png(example)).decode()}"
    true, guess = short(example.true, 14), short(example.predicted, 14)
    said = f"✓ {true}" if example.right else f"✗ {true} → {guess}"
    small = max(example.pixels.shape[:2]) < _PIXELS
    image = svg.tag("img", src=source, alt=spoken, title=spoken, class_="pixels" if small else None)
    caption = svg.tag("figcaption", said, svg.tag("small", sure), dir="auto")
    return svg.tag("figure", image, caption, class_="right" if example.right else "wrong")


def png(example: Example) -> bytes:
    """Encode a picture, made smaller where it is large."""
    image = Image.fromarray(example.pixels)
    image.thumbnail((_PIXELS, _PIXELS))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
