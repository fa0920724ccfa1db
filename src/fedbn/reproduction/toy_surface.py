"""The toy example of the introduction: figures 1 and 2, and the numbers behind their claim.

Both readings of the problem are computed and drawn (see `toy_reading`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbn.reproduction.item import Cell, Outcome, Request, Row, Table
from fedbn.reproduction.options import options_of, refused
from fedbn.reproduction.toy_reading import READINGS, Reading, arrays, read, weights
from fedbn.results.toy_figure import draw_toy_curves, draw_toy_surface
from fedbn.theory import toy

DEFAULTS: dict[str, Any] = {
    "scales": [1.0, 2.5],
    "samples": 1000,
    "w_true": 5.0,
    "noise": 0.1,
    "seed": 0,
    "grid": 240,
}
_CLIENTS = 2


def toy_surface(request: Request) -> Outcome:
    """Compute and draw the toy example."""
    options = _options(request.options)
    if not request.changes:  # quick is no other than the paper's scale
        request = replace(request, label="")
    drawn = {key: value for key, value in options.items() if key != "grid"}
    readings = [read(labels, drawn) for labels in READINGS]
    figures = _draw(request, readings, options)
    tables = (_errors_table(request, readings, options), _curves_table(request, readings))
    return Outcome(tables, figures, tuple(_remark(reading) for reading in readings))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    found = options_of(given, DEFAULTS)
    for key, value in found.items():
        kinds = (int, float) if isinstance(DEFAULTS[key], float) else type(DEFAULTS[key])
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise refused(key, value, f"legal is the like of {DEFAULTS[key]!r}")
    if len(found["scales"]) != _CLIENTS:
        raise refused("scales", found["scales"], f"the figures need {_CLIENTS}, one a client")
    if not 2 <= found["grid"] <= 5000:
        raise refused("grid", found["grid"], "legal are whole numbers 2 to 5000")
    return found


def _draw(
    request: Request, readings: Sequence[Reading], options: Mapping[str, Any]
) -> tuple[Path, ...]:
    panels = [_panel(reading, bn) for reading in readings for bn in (False, True)]
    figures = list(draw_toy_curves(panels, request.folder / "toy-curves", request.label))
    for reading in readings:
        stem = request.folder / f"toy-surface-{reading.labels}"
        figures += draw_toy_surface(_study(reading, options["grid"]), stem, request.label)
    return tuple(figures)


def _panel(reading: Reading, bn: bool) -> dict[str, Any]:
    names = [f"client {i}, σ = {c.scale:g}" for i, c in enumerate(reading.clients, 1)]
    best = [found.w / (1.0 if bn else found.gamma) for found in reading.optima]
    return {
        "title": f"{'with' if bn else 'without'} BN: {reading.formula}",
        "w": weights(),
        "errors": dict(zip(names, reading.curves(normalised=bn), strict=True)),
        "best": dict(zip(names, best, strict=True)),
    }


def _study(reading: Reading, grid: int) -> dict[str, Any]:
    """What the surface of client 1 shows; the other client's optimum is marked without an error."""
    w, gamma = weights(grid), np.linspace(*toy.GAMMA_RANGE, grid)
    x, y = arrays(reading.clients[0])
    first, second = reading.optima[:2]
    places = {
        "w₁*, γ₁*": (first.w, first.gamma),
        "w₂*, γ₂*": (second.w, second.gamma),
        "averaged w, averaged γ": (reading.mean_w, reading.mean_gamma),
        "averaged w, local γ₁*": (reading.mean_w, first.gamma),
    }
    return {
        "title": f"Error of client 1, {reading.formula}",
        "w": w,
        "gamma": gamma,
        "errors": toy.surface(x, y, w, gamma),
        "points": {name: (*at, toy.error(x, y, *at)) for name, at in places.items()},
    }


def _errors_table(
    request: Request, readings: Sequence[Reading], options: Mapping[str, Any]
) -> Table:
    rows = []
    for reading in readings:
        for number, client in enumerate(reading.clients):
            truth = reading.truth(client, options["w_true"])
            for place in reading.places(number):
                ratio = place.w / place.gamma
                values = (
                    place.w,
                    place.gamma,
                    toy.error(*arrays(client), place.w, place.gamma),
                    toy.expected_error(ratio, truth, client.scale, options["noise"]),
                )
                label = (reading.labels, f"client {number + 1}", place.name)
                rows.append(Row(label, tuple(Cell(value) for value in values)))
    return Table(
        f"{request.name}-errors",
        "Toy example: mean squared error of f(x) = cos(w x / γ)",
        ("w", "γ", "training error", "expected error"),
        tuple(rows),
        _note(
            request, f"Noise alone gives {options['noise'] ** 2:g}; the paper states no numbers."
        ),
        ("reading", "client", "model"),
        digits=3,
    )


def _curves_table(request: Request, readings: Sequence[Reading]) -> Table:
    rows = []
    for reading in readings:
        for bn in (False, True):
            alike = reading.likeness(normalised=bn)
            label = (reading.labels, "with" if bn else "without")
            rows.append(Row(label, (Cell(alike.gap), Cell(alike.correlation))))
    return Table(
        f"{request.name}-curves",
        "Toy example: how alike the error curves of both clients are over w in [0.001, 12]",
        ("largest gap", "correlation"),
        tuple(rows),
        _note(request, "The paper shows this as a figure and states no numbers."),
        ("reading", "BN"),
        digits=3,
    )


def _note(request: Request, text: str) -> str:
    return f"{text} {request.label}".strip()


def _remark(reading: Reading) -> str:
    """Say what averaging does to client 1 in this reading, from the numbers."""
    x, y = arrays(reading.clients[0])
    own, _, both, local = (toy.error(x, y, p.w, p.gamma) for p in reading.places(0))
    without, with_bn = (reading.likeness(normalised=bn).correlation for bn in (False, True))
    holds = local < both and with_bn > without
    return (
        f"{reading.labels} ({reading.formula}): the paper's claim "
        f"{'holds' if holds else 'is reversed'}. Client 1 has error {own:.3f} at its optimum, "
        f"{both:.3f} with averaged w and γ, {local:.3f} with averaged w and its own γ; the "
        f"clients' error curves correlate {without:.2f} without BN and {with_bn:.2f} with it"
    )
