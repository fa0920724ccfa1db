"""The paper's kinds of figures: against a swept value, bars (figure 5), a race, the theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from fedbn.paper import items
from fedbn.results import NAMES, colours, figures
from fedbn.results.aggregate import Cell

Cells = Mapping[str, Mapping[str, Cell]]
"""Of a method, of a domain or at a value of the axis: the accuracy over seeds."""


def draw_against(
    lines: Mapping[str, Cells], stem: Path, xlabel: str, label: str = ""
) -> tuple[Path, ...]:
    """Draw one panel a domain, one line a method, the values of the axis at equal distances.

    `lines` go by panel, by method, by value of the axis; `label` says what must be said of scale
    and data.
    """
    methods = list(dict.fromkeys(method for panel in lines.values() for method in panel))
    with figures.styled():
        figure, axes = figures.panels(len(lines), xlabel, "test accuracy (%)")
        known = figures.looks(methods)
        for axis, (name, panel) in zip(axes, lines.items(), strict=True):
            figures.titled(axis, name)
            ticks = list(dict.fromkeys(value for line in panel.values() for value in line))
            axis.set_xticks(range(len(ticks)), [figures.plain(tick) for tick in ticks])
            for method, line in panel.items():
                axis.errorbar(
                    [ticks.index(value) for value in line],
                    [cell.mean for cell in line.values()],
                    [cell.spread for cell in line.values()],
                    markersize=4,
                    capsize=2,
                    elinewidth=0.8,
                    **known[method],
                )
        figures.legend(figure, known)
        return figures.saved(figure, stem, label)


_GROUP = 0.84
_PATCH = ("facecolor", "hatch", "edgecolor")


def draw_bars(
    values: Cells,
    stem: Path,
    label: str = "",
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[Path, ...]:
    """Draw the bars by method and domain; the paper's means, where given, as short black lines."""
    domains = list(dict.fromkeys(domain for own in values.values() for domain in own))
    faces, width = _faces(list(values)), _GROUP / len(values)
    with figures.styled():
        wide = figures.PAGE if len(domains) * len(values) > 12 else figures.COLUMN
        figure = Figure(figsize=(wide, 2.5))
        axis = figure.subplots()
        axis.grid(axis="x", visible=False)
        ends: list[float] = []
        for number, (method, own) in enumerate(values.items()):
            shift = (number - (len(values) - 1) / 2) * width
            for domain, cell in own.items():
                x = domains.index(domain) + shift
                axis.bar(x, cell.mean, width, yerr=cell.spread or None, **faces[method])
                ends += [cell.mean - cell.spread, cell.mean + cell.spread]
                theirs = (paper or {}).get(method, {}).get(domain)
                if theirs is not None:
                    ends.append(theirs)
                    axis.hlines(theirs, x - 0.4 * width, x + 0.4 * width, color="black", lw=1.6)
        axis.set_xticks(
            range(len(domains)), [figures.plain(figures.DOMAINS.get(d, d)) for d in domains]
        )
        axis.set_ylim(max(0, 10 * ((min(ends) - 5) // 10)), min(100, 10 * (max(ends) // 10 + 1)))
        axis.set_ylabel("test accuracy (%)")
        handles: list[Patch | Line2D] = [
            Patch(label=figures.plain(figures.shown(m)), **{k: face[k] for k in _PATCH})
            for m, face in faces.items()
        ]
        if paper:
            handles.append(Line2D([], [], color="black", lw=1.6, label="paper"))
        figure.legend(handles=handles, loc="outside upper center", ncols=5)
        return figures.saved(figure, stem, label)


def _faces(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    known, hatched = figures.looks(methods), figures.hatches(methods)
    return {
        m: {
            "facecolor": known[m]["color"],
            "hatch": hatched[m],
            "edgecolor": "white",
            "linewidth": 0.4,
            # Black shows on every bar but Centralized's.
            "ecolor": "0.6" if m == "centralized" else "black",
            "error_kw": {"elinewidth": 0.8, "capsize": 1.5},
        }
        for m in methods
    }


Runs = Sequence[Sequence[float]]
"""Losses step by step, of one seed each."""
_MARKS = 6


def draw_race(
    panels: Mapping[str, Mapping[str, Runs]], stem: Path, label: str = ""
) -> tuple[Path, ...]:
    """Draw a column a setting: losses on a log scale above, how much lower the second's is below.

    `panels` go by setting, by method; the first method is the one to compare with.
    """
    known = figures.looks(list(dict.fromkeys(m for panel in panels.values() for m in panel)))
    with figures.styled():
        figure = Figure(figsize=(figures.PAGE, 3.6))
        grid = figure.subplots(2, len(panels), squeeze=False, sharex=True, height_ratios=[1.5, 1])
        for (name, panel), (above, below) in zip(panels.items(), grid.T, strict=True):
            figures.titled(above, name)
            _draw_losses(above, panel, known)
            _draw_gain(below, panel, known)
            below.sharey(grid[1, 0])
            below.label_outer()
        grid[0, 0].set_ylabel("training loss")
        figures.legend(figure, known)
        return figures.saved(figure, stem, label)


def _draw_losses(axes: Axes, panel: Mapping[str, Runs], known: Mapping[str, Any]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for method, runs in panel.items():
        _band(axes, np.asarray(runs), known[method])


def _draw_gain(axes: Axes, panel: Mapping[str, Runs], known: Mapping[str, Any]) -> None:
    first, second = list(panel)[:2]
    gain = 100 * (1 - np.asarray(panel[second]) / np.asarray(panel[first]))
    axes.axhline(0.0, color=known[first]["color"], linewidth=0.8)
    _band(axes, gain, known[second])
    axes.set_xlabel("step")
    axes.set_ylabel(f"{NAMES.get(second, second)} lower by (%)")


def _band(axes: Axes, runs: NDArray[np.float64], look: Mapping[str, Any]) -> None:
    """Draw the mean over seeds and, shaded, all that lies between the least and the largest."""
    steps = np.arange(1, runs.shape[1] + 1)
    every = max(1, runs.shape[1] // _MARKS)
    axes.plot(steps, runs.mean(axis=0), markersize=3, markevery=every, **look)
    axes.fill_between(
        steps, runs.min(axis=0), runs.max(axis=0), color=look["color"], alpha=0.18, lw=0
    )


COLOURS = colours(["fedavg", "fedbn"])
MARKERS = {"fedavg": "o", "fedbn": "s"}
PRINTED, START, ROUNDS = (0, (4, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5))
"""Line styles: the bound with G∞, the bound with what G(0) tends to, and training in rounds."""
_GRAMS = {
    ("fedavg", "printed"): r"FedAvg $G^\infty$",
    ("fedavg", "start"): r"FedAvg $G(0),\ m\to\infty$",
    ("fedbn", "printed"): r"FedBN $G^{*\infty}$",
    ("fedbn", "start"): r"FedBN $G^*(0),\ m\to\infty$",
}
FLOOR = 0.1
"""The bottom of the error axis, relative to the smallest measured error."""


def draw_theory(study: Mapping[str, Any], folder: Path) -> tuple[Path, ...]:
    """Draw a study (`Study.to_dict()`) as `theory.svg` and `theory.png`, one column wide."""
    with figures.styled({"axes.grid": False, "axes.linewidth": 0.6, "lines.linewidth": 1.2}):
        figure = Figure(figsize=(figures.COLUMN, 5.6))
        spectra, curves = figure.subplots(2, 1, height_ratios=[1, 1.35])
        _draw_spectra(spectra, study)
        _draw_curves(curves, study)
        return figures.saved(figure, folder / "theory")


def _draw_spectra(axes: Axes, study: Mapping[str, Any]) -> None:
    for name in COLOURS:
        for kind in ("printed", "start"):
            values, filled = study[name][kind]["spectrum"], kind == "printed"
            axes.plot(
                range(1, len(values) + 1),
                values,
                color=COLOURS[name],
                linewidth=0.6,
                marker=MARKERS[name],
                markersize=2.6,
                markerfacecolor=COLOURS[name] if filled else "white",
                markeredgewidth=0.7,
                label=_GRAMS[name, kind],
            )
    axes.set(yscale="log", xlabel="index, smallest first", ylabel="eigenvalue")
    figures.headed(axes, "a  Spectra of the Gram matrices")
    _legend_below(axes, axes.get_legend_handles_labels()[0], drop=0.28)


def _draw_curves(axes: Axes, study: Mapping[str, Any]) -> None:
    for name, colour in COLOURS.items():
        branch = study[name]
        axes.plot(branch["measured"], color=colour)
        axes.plot(branch["printed"]["curve"], color=colour, linestyle=PRINTED, linewidth=0.9)
        axes.plot(branch["start"]["curve"], color=colour, linestyle=START, linewidth=1.1)
        t = branch["printed"]["violation"]
        if t is not None:
            edge: dict[str, Any] = {"color": colour, "markeredgecolor": "black"}
            axes.plot([t], [branch["measured"][t]], MARKERS[name], markersize=4.5, **edge)
    # FedAvg's rounds are joint descent, so only FedBN has a line of its own.
    rounds = study["fedbn"]["rounds"]
    axes.plot(rounds, color=COLOURS["fedbn"], linestyle=ROUNDS, linewidth=0.9)
    measured = [*study["fedavg"]["measured"], *study["fedbn"]["measured"], *rounds]
    axes.set(yscale="log", xlabel="step t", ylabel=r"$\|f(t)-y\|^2$", xlim=(0, len(rounds) - 1))
    axes.set_ylim(max(min(measured), 1e-300) * FLOOR, max(measured) * 4)
    figures.headed(axes, "b  Measured error and its bounds")
    _legend_below(axes, _curve_keys(), drop=0.2)


def _legend_below(axes: Axes, keys: Sequence[Artist], *, drop: float) -> None:
    axes.legend(
        handles=keys,
        ncols=2,
        fontsize=6.5,
        loc="upper center",
        bbox_to_anchor=(0.45, -drop),
        borderaxespad=0.0,
        columnspacing=1.2,
        handlelength=2.6,
    )


def _curve_keys() -> list[Line2D]:
    kinds: dict[str, Any] = {
        "measured, joint descent": "-",
        "in rounds (FedAvg: as joint)": ROUNDS,
        r"bound with $G^\infty$": PRINTED,
        r"bound with $G(0),\ m\to\infty$": START,
    }
    broken: dict[str, Any] = {"color": "none", "marker": "o", "markersize": 4}
    broken |= {"markerfacecolor": "white", "markeredgecolor": "k"}
    return [
        *(Line2D([], [], color=c, linewidth=3, label=NAMES[n]) for n, c in COLOURS.items()),
        *(Line2D([], [], color="#444444", linestyle=s, label=text) for text, s in kinds.items()),
        Line2D([], [], label=r"where $G^\infty$'s bound breaks", **broken),
    ]


def draw_intervals(
    axis: Axes,
    at: Sequence[float],
    gains: Sequence[items.Cell],
    look: Mapping[str, Any],
    **more: Any,
) -> None:
    """Draw gains with their intervals, where there are any, and the line of no gain."""
    axis.axhline(0, color="black", lw=0.8)
    ours = np.array([gain.ours for gain in gains])
    ends = np.array([gain.interval or (gain.ours, gain.ours) for gain in gains]).reshape(-1, 2)
    reach = [ours - ends[:, 0], ends[:, 1] - ours]
    sizes = {"markersize": 3, "capsize": 1.5, "elinewidth": 0.7, "lw": 1}
    axis.errorbar(at, ours, reach, **{**sizes, **look, **more})
