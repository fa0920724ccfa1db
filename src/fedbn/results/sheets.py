"""Figures as they go into a paper: a column or a page wide, a remark below, SVG and PNG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedbn.results.style import colours, plain

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
