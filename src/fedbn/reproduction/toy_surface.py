"""The toy example of the introduction: figures 1 and 2, and the numbers behind their claim.

The paper's words leave open what differs between the clients; both readings are computed (see
`fedbn.data._cosine`): `latent`, in which the claim holds, is drawn as surface too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbn.data._cosine import CosineClient, Labels, cosine_clients
from fedbn.errors import ConfigError, unknown
from fedbn.reproduction.item import Cell, Outcome, Request, Row, Table
from fedbn.results.toy_figure import draw_toy_curves, draw_toy_surface
from fedbn.theory import toy

READINGS: dict[Labels, str] = {
    "latent": "y = cos(w_true z) + ε, x = σ z",
    "observed": "y = cos(w_true x) + ε, to the letter",
}
DEFAULTS: dict[str, Any] = {
    "scales": [1.0, 2.5],
    "samples": 1000,
    "w_true": 5.0,
    "noise": 0.1,
    "seed": 0,
    "grid": 240,
}
_CLIENTS = 2


@dataclass(frozen=True)
class Place:
    """A model (w, γ) as a client would use it, under a name."""

    name: str
    w: float
    gamma: float


@dataclass(frozen=True)
class Reading:
    """One reading of the toy problem: its clients, their optima and what averaging makes of it."""

    labels: Labels
    clients: tuple[CosineClient, ...]
    optima: tuple[toy.Optimum, ...]

    @property
    def mean_w(self) -> float:
        """w̄, the mean of the clients' w*."""
        return toy.averaged([best.w for best in self.optima])

    @property
    def mean_gamma(self) -> float:
        """γ̄, the mean of the clients' γ*."""
        return toy.averaged([best.gamma for best in self.optima])

    def truth(self, client: CosineClient, w_true: float) -> float:
        """The t of y = cos(t x) that is behind a client's targets."""
        return w_true / client.scale if self.labels == "latent" else w_true

    def places(self, client: int) -> list[Place]:
        """The models whose errors the claim compares, for one client."""
        own = self.optima[client]
        without = toy.averaged([best.w / best.gamma for best in self.optima])
        return [
            Place("own optimum (w*, γ*)", own.w, own.gamma),
            Place("no BN, averaged w", without, 1.0),
            Place("averaged w, averaged γ", self.mean_w, self.mean_gamma),
            Place("averaged w, local γ*", self.mean_w, own.gamma),
        ]


def reproduce(request: Request) -> Outcome:
    """Compute and draw the toy example."""
    options = _options(request.options)
    if not request.changes:  # quick is no other than the paper's scale
        request = replace(request, label="")
    readings = [_read(labels, options) for labels in READINGS]
    figures = _draw(request, readings, options)
    tables = (_errors_table(request, readings, options), _curves_table(request, readings))
    return Outcome(tables, figures, tuple(_remark(reading) for reading in readings))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    for key in given:
        if key not in DEFAULTS:
            legal = [f"reproduce.options.{name}" for name in DEFAULTS]
            raise ConfigError(unknown("key", f"reproduce.options.{key}", legal))
    found = {**DEFAULTS, **given}
    for key, value in found.items():
        kinds = (int, float) if isinstance(DEFAULTS[key], float) else type(DEFAULTS[key])
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigError(
                f"reproduce.options.{key} = {value!r}: legal is the like of {DEFAULTS[key]!r}"
            )
    if len(found["scales"]) != _CLIENTS:
        raise ConfigError(
            f"reproduce.options.scales = {found['scales']}: the figures need {_CLIENTS}, one a "
            "client"
        )
    if not 2 <= found["grid"] <= 5000:
        raise ConfigError(
            f"reproduce.options.grid = {found['grid']!r}: legal are whole numbers 2 to 5000"
        )
    return found


def _read(labels: Labels, options: Mapping[str, Any]) -> Reading:
    drawn = {key: value for key, value in options.items() if key != "grid"}
    clients = cosine_clients(labels=labels, **drawn)
    return Reading(labels, clients, tuple(toy.optimum(*_arrays(client)) for client in clients))


def _arrays(client: CosineClient) -> tuple[toy.Array, toy.Array]:
    return client.x.numpy(), client.y.numpy()


def _weights(points: int) -> toy.Array:
    return np.linspace(*toy.W_RANGE, points)


def _curves(reading: Reading, *, normalised: bool, points: int = 1201) -> list[toy.Array]:
    w = _weights(points)
    return [
        toy.errors(*_arrays(client), w / (client.gamma if normalised else 1.0))
        for client in reading.clients
    ]


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
        "title": f"{'with' if bn else 'without'} BN: {READINGS[reading.labels]}",
        "w": _weights(1201),
        "errors": dict(zip(names, _curves(reading, normalised=bn), strict=True)),
        "best": dict(zip(names, best, strict=True)),
    }


def _study(reading: Reading, grid: int) -> dict[str, Any]:
    """What the surface of client 1 shows; the other client's optimum is marked without an error."""
    w, gamma = _weights(grid), np.linspace(*toy.GAMMA_RANGE, grid)
    x, y = _arrays(reading.clients[0])
    first, second = reading.optima[:2]
    places = {
        "w₁*, γ₁*": (first.w, first.gamma),
        "w₂*, γ₂*": (second.w, second.gamma),
        "averaged w, averaged γ": (reading.mean_w, reading.mean_gamma),
        "averaged w, local γ₁*": (reading.mean_w, first.gamma),
    }
    return {
        "title": f"Error of client 1, {READINGS[reading.labels]}",
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
                    toy.error(*_arrays(client), place.w, place.gamma),
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
            one, other = _curves(reading, normalised=bn)[:2]
            alike = toy.likeness(one, other)
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
    x, y = _arrays(reading.clients[0])
    own, _, both, local = (toy.error(x, y, p.w, p.gamma) for p in reading.places(0))
    without, with_bn = (
        toy.likeness(*_curves(reading, normalised=bn)[:2]).correlation for bn in (False, True)
    )
    holds = local < both and with_bn > without
    return (
        f"{reading.labels} ({READINGS[reading.labels]}): the paper's claim "
        f"{'holds' if holds else 'is reversed'}. Client 1 has error {own:.3f} at its optimum, "
        f"{both:.3f} with averaged w and γ, {local:.3f} with averaged w and its own γ; the "
        f"clients' error curves correlate {without:.2f} without BN and {with_bn:.2f} with it"
    )
