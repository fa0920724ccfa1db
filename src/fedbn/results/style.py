"""One look for all figures: readable in a paper's column, safe for colour-blind readers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

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
