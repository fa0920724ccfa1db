"""Bars: what each client gains, and what travels against what stays."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedbn.results.report.contents import Exchange
from fedbn.results.report.series import Duel, Gain
from fedbn.results.report.svg import Scale, drawing, label, linear, tag, uprights
from fedbn.results.report.words import bytes_said, points_said

_WIDTH, _ROW, _NAMES = 360.0, 22.0, 108.0
BETTER, WORSE = "#D55E00", "#0072B2"
SHARED, LOCAL = "#0072B2", "#D55E00"


def gain_bars(duel: Duel, gains: Sequence[Gain]) -> Markup:
    """Draw a bar a client: the mean over seeds, a whisker of one std, a dot a seed."""
    rows = [*gains, *([duel.mean] if duel.mean else [])]
    low, high = _reach(rows)
    bottom = 24 + _ROW * len(rows)
    across = linear(low, high, _NAMES + 4, _WIDTH - 10)
    parts = [uprights(across, (low, high), bottom, "+")]
    for i, gain in enumerate(rows):
        parts.append(_gain(gain, 24 + _ROW * i, across, whole=gain is duel.mean))
    title = f"Gain of {duel.new} over {duel.old}"
    spoken = "; ".join(f"{g.client} {points_said(g.mean)}" for g in rows[:12])
    return drawing(
        _WIDTH,
        bottom + 22,
        f"{title}, in points of accuracy: {spoken}",
        label(0, 12, f"{title}, points of accuracy", most=60, class_="title"),
        *parts,
    )


def _reach(rows: Sequence[Gain]) -> tuple[float, float]:
    values = [v for g in rows for v in (*g.by_seed.values(), g.mean - g.std, g.mean + g.std)]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.06 * (high - low) or 1.0
    return (low - room if low < 0 else 0.0), high + room


def _gain(gain: Gain, y: float, across: Scale, whole: bool) -> Markup:
    middle, zero, end = y + _ROW / 2, across(0), across(gain.mean)
    colour = BETTER if gain.mean >= 0 else WORSE
    box = {"x": min(zero, end), "width": max(abs(end - zero), 0.5), "y": y + 4, "rx": 2}
    look = {"fill": colour, "fill_opacity": 0.85 if whole else 0.5}
    bar = tag("rect", height=_ROW - 8, **box, **look)
    ends = [across(gain.mean - gain.std), across(gain.mean + gain.std)]
    whisker = tag("line", x1=ends[0], x2=ends[1], y1=middle, y2=middle, stroke="currentColor")
    dots = [
        tag("circle", cx=across(v), cy=middle, r=2.2, fill="none", stroke="currentColor")
        for v in gain.by_seed.values()
    ]
    name = "mean of clients" if whole else gain.client
    style = {"class_": "strong"} if whole else {}
    seeds = ", ".join(f"seed {s}: {points_said(v)}" for s, v in list(gain.by_seed.items())[:20])
    tip = tag("title", f"{name}: {points_said(gain.mean)} ({seeds})")
    shown = [whisker, *dots] if len(gain.by_seed) > 1 else []
    text = label(_NAMES - 4, middle + 4, name, "end", most=15, **style)
    return tag("g", tip, text, bar, *shown)


def exchange_bars(exchanges: Sequence[Exchange]) -> Markup:
    """Draw a bar a method: bytes of the model that travel, and bytes that stay."""
    top = max((e.shared[1] + e.kept for e in exchanges), default=1) or 1
    across = linear(0, top, 0, _WIDTH - _NAMES - 10)
    parts = []
    for i, e in enumerate(exchanges):
        y, x = 24 + _ROW * i, _NAMES + across(e.shared[1])
        said = f"{e.method}: shares {bytes_said(e.shared[1])}, keeps {bytes_said(e.kept)}"
        box = {"y": y + 4, "height": _ROW - 8}
        stays = max(across(e.kept), 1.5 if e.kept else 0.0)
        shared = tag("rect", x=_NAMES, width=across(e.shared[1]), fill=SHARED, **box)
        local = tag("rect", x=x, width=stays, fill=LOCAL, **box)
        name = label(_NAMES - 8, y + _ROW / 2 + 4, e.method, "end", most=15)
        parts.append(tag("g", tag("title", said), name, shared, local))
    spoken = "; ".join(
        f"{e.method} shares {bytes_said(e.shared[1])} and keeps {bytes_said(e.kept)}"
        for e in exchanges[:12]
    )
    return drawing(
        _WIDTH,
        28 + _ROW * len(exchanges),
        f"Bytes of one model, shared and local: {spoken}",
        label(0, 12, "Bytes of one client's model", class_="title", most=60),
        *parts,
    )
