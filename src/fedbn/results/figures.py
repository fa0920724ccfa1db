"""The one look of all figures: readable in a paper's column, SVG and PNG, a remark below.

Also the two figures of curves: `curves.png` of a run, and curves over epochs as the paper has them.
"""

from __future__ import annotations

import math
import statistics
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from fedbn.core.statistics_kinds import RUNNING
from fedbn.results import NAMES, colours, name_and_statistics, with_statistics
from fedbn.results.aggregate import MEAN, Curve, ScoreTable

COLUMN, PAGE = 3.3, 6.8
DOMAINS = {
    "svhn": "SVHN",
    "usps": "USPS",
    "synthdigits": "SynthDigits",
    "mnist_m": "MNIST-M",
    "mnist": "MNIST",
}
_BROKEN = {"local": "-.", "exact": "--", "batch": ":"}
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "---")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SIGNS_AN_INCH = 20
_STYLE: dict[str, Any] = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedbn",
}


@contextmanager
def styled(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw in the common style; a script that the font does not have becomes boxes, unsaid."""
    style: dict[Any, Any] = {**_STYLE, **(changes or {})}
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def plain(text: str) -> str:
    r"""Keep a name from being read as mathematics.

    Examples:
        >>> plain("$site$")
        '\\$site\\$'
    """
    return text.replace("$", r"\$")


def panels(count: int, xlabel: str, ylabel: str, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Make a sheet of panels: one fills a column, several a page; the outer ones have labels."""
    columns = 2 if count in (2, 4) else min(3, count)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(COLUMN if count == 1 else PAGE, 1.75 * lines + 0.75))
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=sharey)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(xlabel)
    for axis in axes[:count:columns]:
        axis.set_ylabel(ylabel)
    return figure, axes[:count]


def looks(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give each method its colour and, for whoever cannot tell those apart, its marker.

    A method that is scored with other than running statistics has a broken line.
    """
    palette = colours(methods)
    found: dict[str, dict[str, Any]] = {}
    for label in methods:
        found[label] = {"color": palette[label], "marker": _own(label, methods, _MARKERS)}
        if (kind := name_and_statistics(label)[1]) != RUNNING:
            found[label]["linestyle"] = _BROKEN[kind]
    return found


def hatches(methods: Sequence[str]) -> dict[str, str]:
    """Give each method the hatch of its bars."""
    return {m: _own(m, methods, _HATCHES) for m in methods}


def _own(method: str, methods: Sequence[str], signs: Sequence[str]) -> str:
    """A method of the paper has the same sign in every figure."""
    known = [*NAMES, *(m for m in methods if m not in NAMES)]
    return signs[known.index(method) % len(signs)]


def shown(label: str) -> str:
    """A method of the paper as the paper writes it; the statistics as they are."""
    name, kind = name_and_statistics(label)
    return with_statistics(NAMES.get(name, name), kind)


def legend(figure: Figure, entries: Mapping[str, Mapping[str, Any]]) -> Legend:
    """Put one legend above all panels."""
    handles = [
        Line2D([], [], label=plain(shown(name)), markersize=4, **look)
        for name, look in entries.items()
    ]
    wide = figure.get_figwidth() > COLUMN
    return figure.legend(handles=handles, loc="outside upper center", ncols=6 if wide else 4)


def saved(
    figure: Figure, stem: Path, label: str = "", kinds: Sequence[str] = (".svg", ".png")
) -> tuple[Path, ...]:
    """Write the remark on scale and data below; equal figures give equal files.

    `stem` is the file without its suffix; its folder is made where it is missing.
    """
    if label:
        signs = int(figure.get_figwidth() * _SIGNS_AN_INCH)
        figure.supxlabel(plain(textwrap.fill(label, signs)), fontsize=6, color="0.35")
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = tuple(stem.with_suffix(kind) for kind in kinds)
    for file in files:
        svg = file.suffix == ".svg"
        metadata: dict[str, Any] = {"Date" if svg else "Software": None}
        figure.savefig(file, dpi="figure" if svg else 220, metadata=metadata)
    return files


def headed(axis: Axes, text: str) -> None:
    """Head a panel that stands for itself, as `a  Examples`."""
    axis.set_title(text, loc="left", fontweight="bold")


def titled(axis: Axes, name: str) -> None:
    """Name a panel."""
    axis.set_title(plain(DOMAINS.get(name, name)))


_MEAN = "mean of clients"
_WORST = 5
_MOST = 11  # clients; with their mean four lines of three, because a panel takes a second to draw
_MARKS = 8


def draw_curves(table: ScoreTable, file: Path) -> None:
    """Draw one panel a client and one for their mean: the mean over seeds, shaded ± one std.

    Of many clients the worst are drawn, and their mean with the quartiles of all clients.
    """
    chosen, many = _chosen(table), len(table.columns) > _MOST
    drawn = {name: curves for name in chosen if (curves := table.curves(name))}
    if not drawn:
        return
    if (mean := table.curves(MEAN)) or many:
        drawn[_MEAN] = mean
    with styled():
        figure = _curves(drawn, "round", f"test {table.metric.title}", sharey=True)
        if many:
            spreads, axis = table.quartiles(), figure.axes[len(drawn) - 1]
            for label, look in looks([*spreads]).items():
                rounds, low, high = ([one[i] for one in spreads[label]] for i in range(3))
                axis.fill_between(rounds, low, high, color=look["color"], alpha=0.18, lw=0)
            some = f"the {len(chosen)} worst of {len(table.columns):,} clients"
            figure.legends[0].set_title(f"{some}, and the mean and quartiles of all")
        saved(figure, file, kinds=[file.suffix])


def _chosen(table: ScoreTable) -> list[str]:
    """All clients in their order; of too many, the worst."""
    if len(table.columns) <= _MOST:
        return list(table.columns)
    scores = table.only(RUNNING).scores().values()

    def end(name: str) -> float:
        return statistics.fmean([v for own in scores for v in own.get(name, {}).values()] or [0.0])

    return sorted(table.columns, key=end, reverse=not table.metric.higher)[:_WORST]


def draw_curves_over_epochs(
    curves: Mapping[str, Sequence[Curve]],
    stem: Path,
    ylabel: str,
    label: str = "",
    sharey: bool = False,
) -> tuple[Path, ...]:
    """Draw one panel a name, one line a method (or setting), shaded ± one standard deviation."""
    with styled():
        return saved(_curves(curves, "epoch", ylabel, sharey), stem, label)


def _curves(drawn: Mapping[str, Sequence[Curve]], xlabel: str, ylabel: str, sharey: bool) -> Figure:
    known = looks(list(dict.fromkeys(curve.label for curves in drawn.values() for curve in curves)))
    figure, axes = panels(len(drawn), xlabel, ylabel, sharey)
    for axis, (name, curves) in zip(axes, drawn.items(), strict=True):
        titled(axis, name)
        for curve in curves:
            look, every = known[curve.label], max(1, len(curve.x) // _MARKS)
            axis.plot(curve.x, curve.mean, markersize=3, markevery=every, **look)
            axis.fill_between(curve.x, *curve.band, color=look["color"], alpha=0.18, lw=0)
    legend(figure, known)
    return figure
