"""One look for all figures: readable in a paper's column, safe for colour-blind readers.

Figures as they go into a paper: a column or a page wide, a remark below, SVG and PNG.

The learning-curve picture of a run: accuracy a client and on average, over rounds.

Curves over epochs: training loss (the convergence figures) and test accuracy.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedbn.results.aggregate import Line

matplotlib.use("Agg")


# Okabe and Ito's palette; a method keeps its colour in every figure.
_PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000"]


_OWN = {
    "fedbn": "#D55E00",
    "fedavg": "#0072B2",
    "fedprox": "#009E73",
    "singleset": "#7F7F7F",
    "silobn": "#CC79A7",
    "centralized": "#000000",
}


_RC: dict[Any, Any] = {
    "figure.dpi": 150,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.hashsalt": "fedbn",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the common style; a script that the font does not have becomes boxes, unsaid."""
    with plt.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def plain(text: str) -> str:
    r"""Keep a name from being read as mathematics.

    Examples:
        >>> plain("$site$")
        '\\$site\\$'
    """
    return text.replace("$", r"\$")


def colours(names: list[str]) -> dict[str, str]:
    """Give each method its colour; unknown ones take the palette in order."""
    left = [colour for colour in _PALETTE if colour not in {_OWN.get(name) for name in names}]
    return {name: _OWN.get(name) or left[i % len(left)] for i, name in enumerate(names)}


COLUMN, PAGE = 3.3, 6.8


NAMES = {
    "singleset": "SingleSet",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedbn": "FedBN",
    "silobn": "SiloBN",
    "centralized": "Centralized",
}


DOMAINS = {
    "svhn": "SVHN",
    "usps": "USPS",
    "synthdigits": "SynthDigits",
    "mnist_m": "MNIST-M",
    "mnist": "MNIST",
}


_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "---")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SIGNS_AN_INCH = 20


def across(count: int) -> int:
    """How many panels stand side by side."""
    return 2 if count in (2, 4) else min(3, count)


def panels(count: int, xlabel: str, ylabel: str, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Make a sheet of panels: one fills a column, several a page; the outer ones have labels."""
    columns = across(count)
    lines = math.ceil(count / columns)
    width = COLUMN if count == 1 else PAGE
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(width, 1.75 * lines + 0.75),
        squeeze=False,
        sharex=True,
        sharey=sharey,
    )
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
    """Give each method its colour and, for whoever cannot tell those apart, its marker."""
    palette = colours(list(methods))
    return {m: {"color": palette[m], "marker": _own(m, methods, _MARKERS)} for m in methods}


def hatches(methods: Sequence[str]) -> dict[str, str]:
    """Give each method the hatch of its bars."""
    return {m: _own(m, methods, _HATCHES) for m in methods}


def _own(method: str, methods: Sequence[str], signs: Sequence[str]) -> str:
    """A method of the paper has the same sign in every figure."""
    known = [*NAMES, *(m for m in methods if m not in NAMES)]
    return signs[known.index(method) % len(signs)]


def legend(figure: Figure, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Put one legend above all panels."""
    handles = [
        Line2D([], [], label=plain(NAMES.get(name, name)), markersize=4, **look)
        for name, look in entries.items()
    ]
    wide = figure.get_figwidth() > COLUMN
    figure.legend(handles=handles, loc="outside upper center", ncols=6 if wide else 4)


def saved(figure: Figure, stem: Path, label: str) -> tuple[Path, Path]:
    """Write the remark below, and the figure as SVG and PNG."""
    signs = int(figure.get_figwidth() * _SIGNS_AN_INCH)
    if label:
        figure.supxlabel(plain(textwrap.fill(label, signs)), fontsize=6, color="0.35")
    figure.set_layout_engine("constrained")
    svg, png = stem.with_suffix(".svg"), stem.with_suffix(".png")
    figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=220, metadata={"Software": None})
    plt.close(figure)
    return svg, png


def titled(axis: Axes, name: str) -> None:
    """Name a panel."""
    axis.set_title(plain(DOMAINS.get(name, name)), fontsize=8)


_Series = dict[str, dict[int, list[float]]]  # label of the method -> round -> values over seeds
_MEAN = "mean of clients"
_MOST = 11  # clients; with their mean four lines of three, because a panel takes a second to draw


def draw_curves(records: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw one panel a client and one for their mean: the mean over seeds, shaded ± one std.

    Of many clients some are drawn, evenly from the worst at the end to the best.
    """
    found = _panels(records)
    if not found:
        return
    panels = {name: found[name] for name in [*_chosen(found), _MEAN]}
    shown, clients = len(panels) - 1, len(found) - 1
    title = f"{shown} of {clients:,} clients, the worst first, and the mean of all"
    labels = list(dict.fromkeys(label for series in panels.values() for label in series))
    palette = colours(labels)
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    with styled():
        figure, axes = plt.subplots(
            lines,
            columns,
            figsize=(2.4 * columns + 0.4, 1.9 * lines + 0.5),
            squeeze=False,
            sharex=True,
            sharey=True,
        )
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, (name, series) in zip(axes.flat, panels.items(), strict=False):
            _panel(axis, name, series, palette)
        figure.supxlabel("round", fontsize=8)
        figure.supylabel("test accuracy (%)", fontsize=8)
        handles = [Line2D([], [], color=palette[label], label=plain(label)) for label in labels]
        legend = figure.legend(handles=handles, loc="outside upper center", ncols=len(labels))
        if shown < clients:
            legend.set_title(title)
        figure.set_layout_engine("constrained")
        figure.savefig(file, metadata={"Software": None})
        plt.close(figure)


def _panels(records: Sequence[Mapping[str, Any]]) -> dict[str, _Series]:
    panels: dict[str, _Series] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    means: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for r in records:
        if (r["split"], r["metric"]) != ("test", "accuracy") or r["value"] is None:
            continue
        label = r["method"] if r["setting"] == "default" else f"{r['method']} ({r['setting']})"
        column = r["domain"] if r["client"] == "all" else r["client"]
        panels[column][label][r["round"]].append(100 * r["value"])
        means[label, r["seed"], r["round"]].append(100 * r["value"])
    for (label, _, round), values in means.items():
        panels[_MEAN][label][round].append(float(np.mean(values)))
    return panels


def _chosen(panels: Mapping[str, _Series]) -> list[str]:
    """All clients in their order; of too many, some evenly over their ranks, the worst first."""
    clients = [name for name in panels if name != _MEAN]
    if len(clients) <= _MOST:
        return clients
    ranked = sorted(clients, key=lambda name: _last(panels[name]))
    return [ranked[round(i * (len(ranked) - 1) / (_MOST - 1))] for i in range(_MOST)]


def _last(series: _Series) -> float:
    return float(np.mean([np.mean(by_round[max(by_round)]) for by_round in series.values()]))


def _panel(axis: Axes, name: str, series: _Series, palette: Mapping[str, str]) -> None:
    axis.set_title(plain(name), fontsize=8)
    for label, by_round in series.items():
        rounds = sorted(by_round)
        mean = np.array([np.mean(by_round[round]) for round in rounds])
        std = np.array([np.std(by_round[round]) for round in rounds])
        axis.plot(rounds, mean, color=palette[label], marker="" if len(rounds) > 1 else "o")
        axis.fill_between(rounds, mean - std, mean + std, color=palette[label], alpha=0.18, lw=0)


_MARKS = 8


def draw_curves_over_epochs(
    lines: Mapping[str, Mapping[str, Line]],
    stem: Path,
    ylabel: str,
    label: str = "",
    sharey: bool = False,
) -> tuple[Path, Path]:
    """Draw one panel a name, one line a method (or setting), shaded ± one standard deviation.

    Args:
        lines: By panel, by method.
        stem: The file without its suffix.
        ylabel: What is drawn.
        label: What must be said of scale and data.
        sharey: Draw all panels to one scale.
    """
    methods = list(dict.fromkeys(method for panel in lines.values() for method in panel))
    with styled():
        figure, axes = panels(len(lines), "epoch", ylabel, sharey)
        known = looks(methods)
        for axis, (name, panel) in zip(axes, lines.items(), strict=True):
            titled(axis, name)
            for method, line in panel.items():
                every = max(1, len(line.x) // _MARKS)
                axis.plot(line.x, line.mean, markersize=3, markevery=every, **known[method])
                low = [m - s for m, s in zip(line.mean, line.std, strict=True)]
                high = [m + s for m, s in zip(line.mean, line.std, strict=True)]
                axis.fill_between(line.x, low, high, color=known[method]["color"], alpha=0.18, lw=0)
        legend(figure, known)
        return saved(figure, stem, label)
