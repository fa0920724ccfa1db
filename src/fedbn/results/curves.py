"""The learning-curve picture of a run: accuracy a client and on average, over rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedbn.results.style import colours, plain, styled

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
