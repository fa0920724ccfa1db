"""The figure of the theory: spectra, bounds and measured curves, from a study's plain dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

NAMES = {"fedavg": "FedAvg", "fedbn": "FedBN"}
COLOURS = {"fedavg": "#0072B2", "fedbn": "#D55E00"}
"""Okabe and Ito's blue and vermilion, apart for every common colour blindness and in grey."""
MARKERS = {"fedavg": "o", "fedbn": "s"}
PRINTED, START, ROUNDS = (0, (4, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5))
"""Line styles: the bound with G∞, the bound with what G(0) tends to, and training in rounds."""
STYLE: dict[Any, Any] = {
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedbn",
}
FLOOR = 0.1
"""The bottom of the error axis, relative to the smallest measured error."""


def draw_theory(study: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Draw a study (`Study.to_dict()`) as `theory.svg` and `theory.png`, one column wide.

    Args:
        study: The plain dict of a study.
        folder: Where the two files go; made where it is missing.

    Returns:
        The SVG's path and the PNG's.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.4, 5.6), layout="constrained")
        spectra, curves = figure.subplots(2, 1, height_ratios=[1, 1.35])
        _draw_spectra(spectra, study)
        _draw_curves(curves, study)
        folder.mkdir(parents=True, exist_ok=True)
        svg, png = folder / "theory.svg", folder / "theory.png"
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, dpi=300)
    return svg, png


def _draw_spectra(axes: Axes, study: Mapping[str, Any]) -> None:
    for name in COLOURS:
        for kind in ("printed", "start"):
            values = study[name][kind]["spectrum"]
            axes.plot(range(1, len(values) + 1), values, **_points(name, kind == "printed"))
    axes.set(yscale="log", xlabel="index, smallest first", ylabel="eigenvalue")
    axes.set_title("a  Spectra of the Gram matrices")
    _legend_below(axes, _spectrum_keys(), drop=0.28)


def _spectrum_keys() -> list[Line2D]:
    labels = {
        ("fedavg", True): r"FedAvg $G^\infty$",
        ("fedavg", False): r"FedAvg $G(0),\ m\to\infty$",
        ("fedbn", True): r"FedBN $G^{*\infty}$",
        ("fedbn", False): r"FedBN $G^*(0),\ m\to\infty$",
    }
    return [Line2D([], [], label=text, **_points(*key)) for key, text in labels.items()]


def _points(name: str, filled: bool) -> dict[str, Any]:
    return {
        "color": COLOURS[name],
        "linewidth": 0.6,
        "marker": MARKERS[name],
        "markersize": 2.6,
        "markerfacecolor": COLOURS[name] if filled else "white",
        "markeredgewidth": 0.7,
    }


def _draw_curves(axes: Axes, study: Mapping[str, Any]) -> None:
    for name, colour in COLOURS.items():
        branch = study[name]
        axes.plot(branch["measured"], color=colour)
        axes.plot(branch["printed"]["curve"], color=colour, linestyle=PRINTED, linewidth=0.9)
        axes.plot(branch["start"]["curve"], color=colour, linestyle=START, linewidth=1.1)
        _mark_violation(axes, branch, name)
    # FedAvg's rounds are joint descent, so only FedBN has a line of its own.
    rounds = study["fedbn"]["rounds"]
    axes.plot(rounds, color=COLOURS["fedbn"], linestyle=ROUNDS, linewidth=0.9)
    measured = [*study["fedavg"]["measured"], *study["fedbn"]["measured"], *rounds]
    axes.set(yscale="log", xlabel="step t", ylabel=r"$\|f(t)-y\|^2$", xlim=(0, len(rounds) - 1))
    axes.set_ylim(max(min(measured), 1e-300) * FLOOR, max(measured) * 4)
    axes.set_title("b  Measured error and its bounds")
    _legend_below(axes, _curve_keys(), drop=0.2)


def _legend_below(axes: Axes, keys: list[Line2D], *, drop: float) -> None:
    axes.legend(
        handles=keys,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.45, -drop),
        borderaxespad=0.0,
        columnspacing=1.2,
        handlelength=2.6,
    )


def _mark_violation(axes: Axes, branch: Mapping[str, Any], name: str) -> None:
    t = branch["printed"]["violation"]
    if t is not None:
        edge: dict[str, Any] = {"color": COLOURS[name], "markeredgecolor": "black"}
        axes.plot([t], [branch["measured"][t]], MARKERS[name], markersize=4.5, **edge)


def _curve_keys() -> list[Line2D]:
    kinds: dict[str, Any] = {
        "measured, joint descent": "-",
        "in rounds (FedAvg: as joint)": ROUNDS,
        r"bound with $G^\infty$": PRINTED,
        r"bound with $G(0),\ m\to\infty$": START,
    }
    broken: dict[str, Any] = {"marker": "o", "markersize": 4, "markerfacecolor": "white"}
    return [
        *(Line2D([], [], color=c, linewidth=3, label=NAMES[n]) for n, c in COLOURS.items()),
        *(Line2D([], [], color="#444444", linestyle=s, label=text) for text, s in kinds.items()),
        Line2D(
            [],
            [],
            color="none",
            label=r"where $G^\infty$'s bound breaks",
            markeredgecolor="k",
            **broken,
        ),
    ]
