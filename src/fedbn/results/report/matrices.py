"""Shaded squares: confusion matrices, and how far clients lie from each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from fedbn.results.report.contents import Array, Confusion
from fedbn.results.report.svg import drawing, label, short, tag

SHADE, WRONG = "#0072B2", "#D55E00"
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
    name = confusion.client
    if confusion.domain != confusion.client:
        name = f"{confusion.client} on {confusion.domain}"
    title = f"{short(name, 26)} · {100 * right:.1f} %"
    spoken = f"Confusion matrix of {name}: {100 * right:.1f} % of {int(counts.sum())} right"
    parts, height = _matrix(counts / sums, texts, classes, wrong=True)
    said = {"text_anchor": "end", "class_": "faint"}
    legend = tag("text", "rows: true · columns: predicted", x=_SIDE, y=height + 12, **said)
    head = label(0, 12, title, most=60, class_="title")
    return drawing(_SIDE, height + 16, spoken, head, *parts, legend)


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
    head = label(0, 12, title, most=40, class_="title")
    return drawing(_SIDE, height + 2, spoken, head, *parts)


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
            tip = tag("title", f"{row} → {column}: {texts[i][j] or '0'}")
            colour = WRONG if wrong and i != j and share else SHADE
            box = {"x": x, "y": y, "width": cell - 1, "height": cell - 1, "rx": 1.5}
            shade = {"fill": colour, "fill_opacity": 0.05 + 0.6 * share}
            parts.append(tag("rect", tip, **box, **shade))
            if len(names) <= _MOST_WITH_NUMBERS and texts[i][j]:
                parts.append(_number(texts[i][j], x + cell / 2, y + cell / 2, cell))
    return parts, top + cell * len(names)


def _names(
    names: Sequence[str], left: float, top: float, cell: float, *, slanted: bool
) -> list[Markup]:
    """Write the names to the left and above; fewer where it is tight."""
    found = []
    for i, name in list(enumerate(names))[:: max(1, math.ceil(11 / cell))]:
        middle = cell * (i + 0.5)
        found.append(label(left - 5, top + middle + 3.5, name, "end", most=_MOST_SIGNS))
        x, y = left + middle, top - 5
        turned = {"transform": f"rotate(-45 {x:.1f} {y:.1f})"} if slanted else {}
        anchor = "start" if slanted else "middle"
        found.append(label(x, y, name, anchor, most=_MOST_SIGNS, **turned))
    return found


def _number(text: str, x: float, y: float, cell: float) -> Markup:
    size = min(11.0, 1.7 * cell / max(2, len(text)))
    style = f"font-size:{size:.1f}px"
    return tag("text", text, x=x, y=y + size * 0.35, text_anchor="middle", style=style)
