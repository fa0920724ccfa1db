"""Drawings of numbers: curves over rounds, a panel a client; bars of gains and of bytes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from markupsafe import Markup

from fedbn.core.metric import PERCENT, Metric
from fedbn.report import svg
from fedbn.report.contents import Exchange, gain_said
from fedbn.report.svg import Scale
from fedbn.results import BLUE, VERMILION, colours
from fedbn.results.aggregate import Curve, Duel, Gain
from fedbn.text import bytes_said

_WIDTH, _HEIGHT = 320.0, 214.0
_BOX = (40.0, 30.0, 310.0, 176.0)  # left, top, right, bottom
_MOST_POINTS = 150
_MOST_TIPS = 50
_DASHES = ("7 3", "2 2.5", "8 3 2 3", "4 4", "12 3", "1 4", "10 2 2 2 2 2")


@dataclass(frozen=True)
class Look:
    """How a method is drawn: its colour, and its dashes for whoever cannot tell colours apart."""

    colour: str
    dashes: str | None

    @property
    def stroke(self) -> dict[str, object]:
        """The attributes of its line."""
        thick = 2.4 if self.dashes is None else 1.8
        return {"stroke": self.colour, "stroke_width": thick, "stroke_dasharray": self.dashes}


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """Give each method its look; FedBN's line, or else the first one's, is the whole one."""
    whole = next((name for name in labels if name.startswith("fedbn")), next(iter(labels), ""))
    others = [name for name in labels if name != whole]
    dashes = {name: _DASHES[i % len(_DASHES)] for i, name in enumerate(others)}
    return {name: Look(colour, dashes.get(name)) for name, colour in colours(labels).items()}


def legend(known: Mapping[str, Look]) -> tuple[tuple[Markup, str], ...]:
    """A short piece of each method's line, and its name."""
    line = {"x1": 1, "x2": 33, "y1": 6, "y2": 6, "fill": "none"}
    pieces = {name: svg.tag("line", **line, **look.stroke) for name, look in known.items()}
    return tuple((svg.swatch(piece, width=34), name) for name, piece in pieces.items())


@dataclass(frozen=True)
class Upward:
    """The axis of a panel: what it shows, from where to where, and whether in powers of ten."""

    what: str
    low: float
    high: float
    log: bool = False

    def scale(self) -> Scale:
        """Map values to places in a panel."""
        _, top, _, bottom = _BOX
        if not self.log:
            return svg.linear(self.low, self.high, bottom, top)
        straight = svg.linear(math.log10(self.low), math.log10(self.high), bottom, top)
        return lambda value: straight(math.log10(max(value, self.low)))

    def ticks(self) -> list[float]:
        """Choose where to write numbers."""
        if not self.log:
            return svg.ticks(self.low, self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        found = [t for t in found if self.low <= t <= self.high]
        return found if len(found) <= 7 else [t for t in found if math.log10(t) % 1 == 0]


def score_axis(curves: Sequence[Curve], metric: Metric) -> Upward:
    """One range for all panels; of a share, from ten to ten."""
    lows = [value for curve in curves for value in curve.band[0]]
    highs = [value for curve in curves for value in curve.band[1]]
    if metric.unit != PERCENT:
        low, high = min(lows, default=0.0), max(highs, default=1.0)
        room = 0.05 * (high - low) or 0.5
        return Upward(f"test {metric.words}", low - room, high + room)
    low = 10 * math.floor(max(0.0, min(lows, default=0.0)) / 10)
    high = 10 * math.ceil(min(100.0, max(highs, default=100.0)) / 10)
    return Upward(f"test {metric.words}", low, max(high, low + 10))


def loss_axis(curves: Sequence[Curve]) -> Upward:
    """The range of a loss, logarithmic where it is wide enough."""
    values = [m for c in curves for m in c.mean]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > 0 and high / low > 8:
        return Upward("loss", low * 0.9, high * 1.1, log=True)
    return Upward("loss", min(0.0, low), high * 1.05 or 1.0)


def panel(title: str, curves: Sequence[Curve], look: Mapping[str, Look], axis: Upward) -> Markup:
    """Draw one panel; a tooltip a round gives the numbers."""
    left, _, right, _ = _BOX
    first = min((c.x[0] for c in curves), default=0)
    last = max((c.x[-1] for c in curves), default=1)
    across = svg.linear(first, last, left + 4, right - 4)
    up = axis.scale()
    # Whole lines first: dashes over them let both be seen.
    ordered = sorted(curves, key=lambda curve: look[curve.label].dashes is not None)
    drawn = [_drawn(c, look[c.label], across, up) for c in ordered]
    ends = [f"{c.label} ends at {_said(c.mean[-1], c.std[-1])}" for c in curves[:6]]
    spoken = f"{title}: {axis.what} over rounds. {'; '.join(ends)}"
    xs = [(across(t), svg.numbered(t)) for t in svg.ticks(first, last) if t == int(t)]
    return _framed(title, spoken, "round", xs, axis, *drawn, _tips(curves, across))


def _framed(
    title: str, spoken: str, what: str, xs: Sequence[tuple[float, str]], axis: Upward, *drawn: str
) -> Markup:
    """Put a panel's lines between its title and its axes; `what` is said below."""
    left, _, right, bottom = _BOX
    up = axis.scale()
    ys = [(up(t), svg.numbered(t)) for t in axis.ticks()]
    head = svg.label(left - 34, 14, title, most=40, class_="title")
    below = svg.note(what, right, bottom + 30)
    return svg.drawing(_WIDTH, _HEIGHT, spoken, head, svg.grid(xs, ys, _BOX), below, *drawn)


_BINS = 20


def histogram(
    values: Mapping[str, Sequence[float]], look: Mapping[str, Look], metric: Metric
) -> Markup:
    """Draw how clients' scores spread: a stepped line a method, the share of clients in a bin."""
    left, _, right, _ = _BOX
    every = [value for own in values.values() for value in own]
    low, width = min(every), (max(every) - min(every)) / _BINS or 1.0
    shares: dict[str, list[float]] = {}
    for label, own in values.items():
        counts = Counter(min(int((value - low) / width), _BINS - 1) for value in own)
        shares[label] = [100 * counts[bin] / len(own) for bin in range(_BINS)]
    axis = Upward("% of clients", 0.0, 1.05 * max(map(max, shares.values())))
    across, up = svg.linear(low, low + width * _BINS, left + 4, right - 4), axis.scale()
    xs = [across(low + width * edge) for bin in range(_BINS) for edge in (bin, bin + 1)]
    lines = [
        svg.tag("polyline", points=svg.points(xs, ys), fill="none", **look[label].stroke)
        for label, own in shares.items()
        if (ys := [up(share) for share in own for _ in range(2)])
    ]
    medians = ", ".join(f"{n}: median {statistics.median(v):.3g}" for n, v in values.items())
    ticks = [(across(t), svg.numbered(t)) for t in svg.ticks(low, low + width * _BINS)]
    title = f"{axis.what} by test {metric.words}"
    spoken = f"How the scores of {len(every) // len(values)} clients spread. {medians}"
    return _framed(title, spoken, metric.title, ticks, axis, *lines)


def _drawn(curve: Curve, look: Look, across: Scale, up: Scale) -> Markup:
    step = max(1, math.ceil(len(curve.x) / _MOST_POINTS))
    # Counted from the end: the last round is what the table shows.
    chosen = sorted(range(len(curve.x) - 1, -1, -step))
    xs = [across(curve.x[i]) for i in chosen]
    low, high = ([up(side[i]) for i in chosen] for side in curve.band)
    mean = [up(curve.mean[i]) for i in chosen]
    if len(xs) == 1:
        return svg.tag("circle", cx=xs[0], cy=mean[0], r=3.0, fill=look.colour)
    line = svg.tag("polyline", points=svg.points(xs, mean), fill="none", **look.stroke)
    if not any(curve.std):
        return line
    band = svg.points([*xs, *reversed(xs)], [*high, *reversed(low)])
    return svg.tag("polygon", points=band, fill=look.colour, fill_opacity=0.14) + line


def _tips(curves: Sequence[Curve], across: Scale) -> Markup:
    """Invisible columns whose tooltips give the numbers of a round."""
    _, top, right, bottom = _BOX
    rounds = sorted({round for curve in curves for round in curve.x})
    step = max(1, math.ceil(len(rounds) / _MOST_TIPS))
    kept = sorted(rounds[::-step])
    half = (across(kept[-1]) - across(kept[0])) / max(1, len(kept) - 1) / 2 if kept else 0.0
    tables = {c.label: dict(zip(c.x, zip(c.mean, c.std, strict=True), strict=True)) for c in curves}
    found = []
    for round in kept:
        lines = [f"round {round}"]
        lines += [f"{n}: {_said(*t[round])}" for n, t in tables.items() if round in t]
        x = across(round) - half
        size = {"x": x, "width": min(2 * half, right - x) or 8.0, "y": top, "height": bottom - top}
        found.append(
            svg.tag("rect", svg.tag("title", "\n".join(lines)), class_="tip", fill="none", **size)
        )
    return Markup("").join(found)


def _said(mean: float, std: float) -> str:
    digits = 1 if abs(mean) >= 10 else 3
    return f"{mean:.{digits}f} ± {std:.{digits}f}" if std else f"{mean:.{digits}f}"


_BAR_WIDTH, BAR_START, ROW = 360.0, 112.0, 22.0
Bar = Callable[[float, Scale], Markup]
SHARED, LOCAL = BLUE, VERMILION


def bars(
    title: str, spoken: str, span: tuple[float, float], rows: Sequence[Bar], sign: str = ""
) -> Markup:
    """Draw a bar a row over one axis; each row draws itself, given its y and the scale."""
    bottom = 24 + ROW * len(rows)
    across = svg.linear(*span, BAR_START, _BAR_WIDTH - 10)
    head = svg.label(0, 12, title, most=60, class_="title")
    drawn = [draw(24 + ROW * i, across) for i, draw in enumerate(rows)]
    axis = svg.uprights(across, span, bottom, sign)
    return svg.drawing(_BAR_WIDTH, bottom + 22, spoken, head, axis, *drawn)


def bar_name(name: str, y: float, **style: object) -> Markup:
    """Write the name of a row before its bar."""
    return svg.label(BAR_START - 8, y + ROW / 2 + 4, name, "end", most=15, **style)


def gain_bars(
    duel: Duel,
    gains: Sequence[Gain],
    metric: Metric,
    intervals: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    others: Iterable[float] = (),
    statistics: str = "",
) -> Markup:
    """Draw one bar per client: the mean over seeds, a whisker for its interval, one dot per seed.

    `intervals` has the ends of the 95 % interval by client, and of the mean as `mean of clients`.
    The axis has room for `others` too, so that several drawings have the same axis. `statistics`
    is the kind that both methods are scored with, where there are several.
    """
    rows = [*gains, *([duel.mean] if duel.mean else [])]
    title = f"Gain of {duel.new} over {duel.old}"
    said = "; ".join(f"{g.client} {gain_said(g.mean, metric)}" for g in rows[:12])
    named = [intervals.get("mean of clients" if g is duel.mean else g.client) for g in rows]
    pairs = zip(rows, named, strict=True)
    drawn = [partial(_gain, gain, metric, gain is duel.mean, ends) for gain, ends in pairs]
    what = f"points of {metric.words}" if metric.unit == PERCENT else metric.title
    values = [value for gain in rows for value in gain.by_seed.values()]
    values += [end for ends in named for end in ends or ()]
    values += others
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.06 * (high - low) or 1.0
    span = (low - room if low < 0 else 0.0), high + room
    both = f", both with {statistics} statistics" if statistics else ""
    spoken = f"{title}{both}, in {what}: {said}"
    return bars(f"{title}, {what}", spoken, span, drawn, "+")


def _gain(
    gain: Gain,
    metric: Metric,
    whole: bool,
    interval: tuple[float, float] | None,
    y: float,
    across: Scale,
) -> Markup:
    middle, zero, end = y + ROW / 2, across(0), across(gain.mean)
    colour = VERMILION if gain.mean >= 0 else BLUE
    box = {"x": min(zero, end), "width": max(abs(end - zero), 0.5), "y": y + 4, "rx": 2}
    look = {"fill": colour, "fill_opacity": 0.85 if whole else 0.5}
    bar = svg.tag("rect", height=ROW - 8, **box, **look)
    whiskers = []
    if interval is not None:
        line = {"x1": across(interval[0]), "x2": across(interval[1]), "y1": middle, "y2": middle}
        whiskers = [svg.tag("line", **line, stroke="currentColor")]
    dots = [
        svg.tag("circle", cx=across(v), cy=middle, r=2.2, fill="none", stroke="currentColor")
        for v in gain.by_seed.values()
    ]
    name = "mean of clients" if whole else gain.client
    style = {"class_": "strong"} if whole else {}
    told = [f"seed {s}: {gain_said(v, metric)}" for s, v in list(gain.by_seed.items())[:20]]
    tip = svg.tag("title", f"{name}: {gain_said(gain.mean, metric)} ({', '.join(told)})")
    shown = [*whiskers, *dots] if len(gain.by_seed) > 1 else []
    return svg.tag("g", tip, bar_name(name, y, **style), bar, *shown)


def exchange_bars(exchanges: Sequence[Exchange]) -> Markup:
    """Draw a bar a method: bytes of the model that travel, and bytes that stay."""
    top = max((e.shared[1] + e.kept for e in exchanges), default=1) or 1
    across = svg.linear(0, top, 0, _BAR_WIDTH - BAR_START - 10)
    parts = []
    for i, e in enumerate(exchanges):
        y, travels = 24 + ROW * i, across(e.shared[1])
        said = f"{e.method}: shares {bytes_said(e.shared[1])}, keeps {bytes_said(e.kept)}"
        box = {"y": y + 4, "height": ROW - 8}
        stays = max(across(e.kept), 1.5 if e.kept else 0.0)
        shared = svg.tag("rect", x=BAR_START, width=travels, fill=SHARED, **box)
        local = svg.tag("rect", x=BAR_START + travels, width=stays, fill=LOCAL, **box)
        parts.append(svg.tag("g", svg.tag("title", said), bar_name(e.method, y), shared, local))
    each = "; ".join(
        f"{e.method} shares {bytes_said(e.shared[1])} and keeps {bytes_said(e.kept)}"
        for e in exchanges[:12]
    )
    spoken = f"Bytes of one model, shared and local: {each}"
    head = svg.label(0, 12, "Bytes of one client's model", class_="title", most=60)
    return svg.drawing(_BAR_WIDTH, 28 + ROW * len(exchanges), spoken, head, *parts)
