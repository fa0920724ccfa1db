"""Small drawings as SVG inside a page: elements that escape what they hold, scales and axes.

Colours stand as plain attributes and text takes the page's, so that a stylesheet can turn a
drawing dark, and a browser that knows no stylesheet still shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from fedbn.text import short, shown

Scale = Callable[[float], float]


def tag(element: str, *children: str, **attributes: object) -> Markup:
    """Make an element; text and values of attributes are escaped.

    Signs that show nothing, or turn the direction of writing, are escaped so that they are seen.

    Examples:
        >>> str(tag("text", "a < b", x=1.5, text_anchor="end"))
        '<text x="1.5" text-anchor="end">a &lt; b</text>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_seen(_plain(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(c if isinstance(c, Markup) else escape(_seen(c)) for c in children)
    return Markup(f"<{element}{pairs}>{inner}</{element}>" if inner else f"<{element}{pairs}/>")


def drawing(width: float, height: float, label: str, *children: str) -> Markup:
    """Make a whole drawing that a screen reader calls by its label."""
    size = {"viewBox": f"0 0 {_plain(width)} {_plain(height)}", "role": "img"}
    named = {"aria_label": label, "style": f"max-width:{_plain(width * 1.3)}px"}
    return tag("svg", *children, **size, **named)


def points(xs: Iterable[float], ys: Iterable[float]) -> str:
    """Write places as the list that a polyline takes."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def linear(low: float, high: float, begin: float, end: float) -> Scale:
    """Map [low, high] to [begin, end]; a range of no width maps to the middle.

    Examples:
        >>> linear(0, 10, 0, 100)(2.5)
        25.0
    """
    if high <= low:
        return lambda value: (begin + end) / 2
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Choose round numbers in a range.

    Examples:
        >>> ticks(0, 93)
        [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    if not high > low or not math.isfinite(high - low):
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def label(
    x: float, y: float, text: str, anchor: str = "start", most: int = 18, **more: object
) -> Markup:
    """Write a name; where it is cut, the whole is its tooltip."""
    cut = short(text, most)
    tip = [tag("title", text)] if cut != text else []
    where = {"x": x, "y": y, "text_anchor": None if anchor == "start" else anchor}
    return tag("text", Markup(escape(cut)) + Markup("").join(tip), **where, **more)


def note(text: str, x: float, y: float) -> Markup:
    """Write a faint remark that ends at a place."""
    return tag("text", text, x=x, y=y, text_anchor="end", class_="faint")


def swatch(*shapes: Markup, width: int) -> Markup:
    """Make a small drawing for a legend, which a screen reader leaves out."""
    size = {"viewBox": f"0 0 {width} 12", "width": width, "height": 12}
    return tag("svg", *shapes, **size, aria_hidden="true")


def numbered(value: float) -> str:
    """Write a tick's number without needless zeros.

    Examples:
        >>> numbered(20.0), numbered(-0.05)
        ('20', '−0.05')
    """
    return f"{value:.6g}".replace("-", "−")


def grid(
    xs: Sequence[tuple[float, str]],
    ys: Sequence[tuple[float, str]],
    box: tuple[float, float, float, float],
) -> Markup:
    """Draw faint lines at the ticks of both axes, with their numbers outside the box."""
    left, _, right, bottom = box
    faint = {"stroke": "#888888", "stroke_opacity": 0.25}
    parts = [tag("line", x1=left, x2=right, y1=y, y2=y, **faint) for y, _ in ys]
    parts += [tag("text", text, x=left - 5, y=y + 3.5, text_anchor="end") for y, text in ys]
    parts += [tag("text", text, x=x, y=bottom + 14, text_anchor="middle") for x, text in xs]
    parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, stroke="#888888"))
    return Markup("").join(parts)


def uprights(across: Scale, span: tuple[float, float], bottom: float, sign: str = "") -> Markup:
    """Draw faint lines upwards at the ticks of an axis, with their numbers below."""
    parts = []
    for t in ticks(*span):
        x = across(t)
        look = {"stroke": "#888888", "stroke_opacity": 0.25 if t else 0.9}
        parts.append(tag("line", x1=x, x2=x, y1=20, y2=bottom, **look))
        text = f"{sign if t > 0 else ''}{numbered(t)}"
        parts.append(tag("text", text, x=x, y=bottom + 14, text_anchor="middle"))
    return Markup("").join(parts)


def _seen(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))


def _plain(value: object) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)
