"""The tables and the figure of `gain_decomposition`, from its stored parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedbn.paper.gain_parts import Part
from fedbn.paper.gain_scoring import (
    AGAIN,
    AVERAGED,
    BATCHES,
    BEFORE,
    BETWEEN,
    DOSES,
    EXACT,
    FEDAVG,
    FEDBN,
    LOCAL,
    MEAN_AFFINE,
    OTHER,
    POOLED,
    RUNNING,
    TUNED,
    WINDOWS,
)
from fedbn.paper.items import Cell, Request, Row, Table
from fedbn.results import BLUE, GREEN, ORANGE, VERMILION
from fedbn.results.figures import PAGE, headed, plain, saved, styled
from fedbn.results.paired_tests import paired
from fedbn.text import counted

Way = tuple[str, str]
"""Weights and statistics."""
Pair = tuple[Way, Way]
"""Two ways, the second of which is taken off the first."""


@dataclass(frozen=True)
class Study:
    """The finished parts of one data set."""

    name: str
    title: str
    parts: Sequence[Part]

    def seeds(self, value: Callable[[Part], float]) -> dict[int, float]:
        """One number per seed, the mean over its divisions."""
        found: dict[int, list[float]] = {}
        for part in self.parts:
            found.setdefault(part.seed, []).append(value(part))
        return {seed: fmean(values) for seed, values in found.items()}

    def score(self, way: Way) -> dict[int, float]:
        """The mean over clients of a test score, by seed."""
        weights, statistics = way
        return self.seeds(lambda part: fmean(part.scores[weights][statistics]))

    def difference(self, pair: Pair, family: int = 1) -> Cell:
        """What one way scores above another, seed by seed."""
        return Cell.gained(self.score(pair[0]), self.score(pair[1]), family)

    def differences(self, pairs: Sequence[Pair], family: int) -> tuple[Cell, ...]:
        """The differences of several pairs."""
        return tuple(self.difference(pair, family) for pair in pairs)

    @property
    def splits(self) -> list[int]:
        """The divisions."""
        return sorted({part.split for part in self.parts})

    def of_split(self, split: int) -> Study:
        """The parts of one division."""
        return replace(self, parts=[part for part in self.parts if part.split == split])


PRINTED: Pair = ((FEDBN, RUNNING), (FEDAVG, RUNNING))
EXACT_BOTH: Pair = ((FEDBN, EXACT), (FEDAVG, EXACT))
REMAINS: dict[str, Pair] = {
    "as printed": PRINTED,
    "FedAvg pooled": ((FEDBN, EXACT), (FEDAVG, POOLED)),
    "FedAvg local": ((FEDBN, RUNNING), (FEDAVG, LOCAL)),
    "both exact": EXACT_BOTH,
}
PIECES: dict[str, Pair] = {
    "as printed": PRINTED,
    "FedAvg's statistics inexact": ((FEDAVG, POOLED), (FEDAVG, RUNNING)),
    "FedAvg's statistics global": ((FEDAVG, EXACT), (FEDAVG, POOLED)),
    "weights and affine": EXACT_BOTH,
    "FedBN's statistics inexact": ((FEDBN, RUNNING), (FEDBN, EXACT)),
}
"""The first is the sum of the others."""
GLOBAL: dict[str, Way] = {
    "running + between": (FEDAVG, RUNNING + BETWEEN),
    "averaged exact": (FEDAVG, AVERAGED),
    "averaged exact + between": (FEDAVG, AVERAGED + BETWEEN),
    "pooled exact": (FEDAVG, POOLED),
    "own running": (FEDAVG, LOCAL),
    "own exact": (FEDAVG, EXACT),
}
_METHODS = {FEDAVG: "FedAvg", FEDBN: "FedBN"}
_SAMPLES = [f"{count} samples" for count in DOSES]
_BATCHES = [f"batches of {size}" for size in BATCHES]
_LOSSES = {
    "seen in batches": ("seen", "seen"),
    "running": (RUNNING, RUNNING),
    "FedAvg pooled": (POOLED, EXACT),
    "both exact": (EXACT, EXACT),
}


def tables(request: Request, studies: Sequence[Study]) -> Iterator[Table]:
    """Make all tables."""
    family, note = len(studies), _note(request, studies)

    def made(
        end: str, title: str, columns: Sequence[str], rows: Sequence[Row], *head: str
    ) -> Table:
        name, title = f"{request.name}{end}", f"{request.name}: {title}"
        return Table(name, title, tuple(columns), tuple(rows), note, ("data", *head), 1)

    def by_method(pairs: Callable[[str], list[Pair]]) -> list[Row]:
        return [
            Row((study.title, name), study.differences(pairs(method), family))
            for study in studies
            for method, name in _METHODS.items()
        ]

    def by_study(pairs: Sequence[Pair]) -> list[Row]:
        return [Row((study.title,), study.differences(pairs, family)) for study in studies]

    yield made(
        "",
        "test score in per cent as printed, and with each client's exact statistics",
        ("FedAvg", "FedBN", "FedBN − FedAvg", "FedAvg, exact", "FedBN, exact", "difference, exact"),
        [Row((study.title,), _scores(study, family)) for study in studies],
    )
    title = "FedBN − FedAvg as printed, and the four pieces that add up to it, in points"
    yield made("-pieces", title, [*PIECES], by_study([*PIECES.values()]))
    title = "FedBN − FedAvg, each with statistics of the same kind, in points"
    yield made("-remains", title, [*REMAINS], by_study([*REMAINS.values()]))
    title = "FedAvg with other statistics − FedAvg as printed, in points"
    taken_off = [(way, (FEDAVG, RUNNING)) for way in GLOBAL.values()]
    yield made("-global", title, [*GLOBAL], by_study(taken_off))
    yield made(
        "-windows",
        "running averages − exact statistics of the same kind, in points",
        [name if name == "all" else f"momentum {name}" for name in WINDOWS],
        [
            Row((study.title, label), study.differences(_windows(*what), family))
            for study in studies
            for label, what in _WINDOWED.items()
        ],
        "statistics",
    )
    title = "other statistics of a client's own data − exact ones, same weights, in points"
    columns = ("own running", "before averaging", "collected again", *_BATCHES)
    yield made("-lag", title, columns, by_method(_lag), "weights")
    title = "what local affine parts and own statistics gain, in points"
    columns = ("affine, pooled", "affine, own", "statistics, common", "statistics, local")
    yield made("-affine", title, columns, by_method(_affine), "weights")
    title = "another client's exact statistics, or those of few samples − own ones, in points"
    yield made("-dose", title, (OTHER, *_SAMPLES), by_method(_dose), "weights")
    losses = made(
        "-loss",
        "FedAvg's training loss divided by FedBN's",
        [*_LOSSES],
        [
            Row((study.title, when), _ratios(study, last, family))
            for study in studies
            for when, last in (("last round", True), ("all rounds", False))
        ],
        "rounds",
    )
    yield replace(losses, digits=2, signed=False)
    yield made(
        "-divisions",
        "FedBN − FedAvg in each division into training and test data, in points",
        ("as printed", "both exact"),
        [
            Row((study.title, str(n)), study.of_split(n).differences([PRINTED, EXACT_BOTH], family))
            for study in studies
            for n in study.splits
        ],
        "division",
    )


def _note(request: Request, studies: Sequence[Study]) -> str:
    sizes: dict[str, list[str]] = {}
    for study in studies:
        seeds = counted(len({part.seed for part in study.parts}), "seed")
        divisions = counted(len(study.splits), "division")
        sizes.setdefault(f"{seeds} × {divisions}", []).append(study.title)
    said = "; ".join(f"{size}: {', '.join(names)}" for size, names in sizes.items())
    parts = [
        f"{said}.",
        "A seed's number is the mean over clients and divisions.",
        "Differences are paired by seed; intervals hold for all data sets of a column at once "
        f"(paired t, Bonferroni, {len(studies)}).",
        request.label and f"{request.label}.",
    ]
    return " ".join(filter(None, parts))


def _scores(study: Study, family: int) -> tuple[Cell, ...]:
    def score(*way: str) -> Cell:
        return Cell.of(study.score((way[0], way[1])).values())

    return (
        score(FEDAVG, RUNNING),
        score(FEDBN, RUNNING),
        study.difference(PRINTED, family),
        score(FEDAVG, EXACT),
        score(FEDBN, EXACT),
        study.difference(EXACT_BOTH, family),
    )


_WINDOWED = {
    "FedAvg, averaged": (FEDAVG, "averaged", AVERAGED),
    "FedAvg, own": (FEDAVG, "local", EXACT),
    "FedBN, own": (FEDBN, "local", EXACT),
}


def _windows(method: str, kind: str, exact: str) -> list[Pair]:
    return [((method, f"{kind} window {name}"), (method, exact)) for name in WINDOWS]


def _lag(method: str) -> list[Pair]:
    exact, before = (method, EXACT), method + BEFORE
    return [
        ((method, LOCAL), exact),
        ((before, LOCAL), (before, EXACT)),
        *(((method, statistics), exact) for statistics in (AGAIN, *_BATCHES)),
    ]


def _affine(method: str) -> list[Pair]:
    common, local = method, method + TUNED
    if method == FEDBN:
        common, local = method + MEAN_AFFINE, method
    return [
        ((local, POOLED), (common, POOLED)),
        ((local, EXACT), (common, EXACT)),
        ((common, EXACT), (common, POOLED)),
        ((local, EXACT), (local, POOLED)),
    ]


def _dose(method: str) -> list[Pair]:
    return [((method, statistics), (method, EXACT)) for statistics in (OTHER, *_SAMPLES)]


def _ratios(study: Study, last: bool, family: int) -> tuple[Cell, ...]:
    return tuple(_ratio(study, *kinds, last, family) for kinds in _LOSSES.values())


def _ratio(study: Study, mine_by: str, theirs_by: str, last: bool, family: int) -> Cell:
    """The geometric mean of a ratio of losses, with an interval over seeds."""

    def logarithm(part: Part) -> float:
        mine, theirs = part.losses[FEDAVG][mine_by], part.losses[FEDBN][theirs_by]
        rounds = [max(mine, key=int)] if last else [*mine]
        return fmean(math.log(fmean(mine[n]) / fmean(theirs[n])) for n in rounds)

    found = study.seeds(logarithm)
    test = paired([*found.values()], family)
    cell = Cell(math.exp(fmean(found.values())), seeds=len(found))
    if test.low is None or test.high is None:
        return cell
    return replace(cell, interval=(math.exp(test.low), math.exp(test.high)))


_SERIES: Mapping[str, tuple[str, str, str]] = {
    "as printed": ("as printed: each method with the averages that it leaves", VERMILION, "o"),
    "FedAvg pooled": ("FedAvg with exact statistics of all clients' data together", ORANGE, "^"),
    "FedAvg local": ("FedAvg with each client's own running averages", BLUE, "s"),
    "both exact": ("both with each client's own exact statistics", GREEN, "D"),
}
_APART = 0.18


def draw(request: Request, studies: Sequence[Study]) -> tuple[Path, ...]:
    """Draw what FedBN is ahead by as printed, and what of it remains."""
    with styled():
        figure = Figure(figsize=(PAGE, 0.55 * len(studies) + 1.5))
        axis = figure.subplots()
        axis.axvline(0, color="black", lw=0.8)
        for number, (name, pair) in enumerate(REMAINS.items()):
            _, colour, marker = _SERIES[name]
            cells = [study.difference(pair, len(studies)) for study in studies]
            ends = [cell.interval or (cell.ours, cell.ours) for cell in cells]
            reach = [
                [cell.ours - low for cell, (low, _) in zip(cells, ends, strict=True)],
                [high - cell.ours for cell, (_, high) in zip(cells, ends, strict=True)],
            ]
            shift = _APART * ((len(REMAINS) - 1) / 2 - number)
            at = [len(studies) - 1 - place + shift for place in range(len(studies))]
            look: dict[str, Any] = {"color": colour, "marker": marker, "ls": "", "markersize": 4}
            look |= {"capsize": 1.5, "elinewidth": 0.8}
            axis.errorbar([cell.ours for cell in cells], at, xerr=reach, **look)
        for place in range(1, len(studies)):
            axis.axhline(place - 0.5, color="0.85", lw=0.6)
        headed(axis, "How far FedBN is ahead of FedAvg")
        axis.set_yticks(range(len(studies)), [plain(study.title) for study in studies[::-1]])
        axis.set_ylim(-0.6, len(studies) - 0.4)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("points of test score (left of 0 FedAvg is ahead)")
        handles = [
            Line2D([], [], color=colour, marker=marker, ls="", markersize=4, label=label)
            for label, colour, marker in _SERIES.values()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=2)
        return saved(figure, request.folder / request.name, request.label)
