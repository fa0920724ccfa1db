"""The domains at a glance: examples, histograms, and how far domains are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbn.data._view import survey
from fedbn.experiments.loading import checked
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation
from fedbn.reproduction.item import Cell, Outcome, Request, Row, Table
from fedbn.reproduction.options import options_of, refused
from fedbn.results.data_figure import draw_data

DEFAULTS: dict[str, Any] = {"samples": 100, "examples": 10, "also": []}


def data_view(request: Request) -> Outcome:
    """Draw every data set that is asked for, and tabulate the domains' distances."""
    options = _options(request.options)
    sections = [
        checked(request.experiment).data,
        *(DataSection(name=name) for name in options["also"]),
    ]
    # Without changes, quick is no other than the paper's scale.
    said = [request.label] if request.changes else []
    tables, figures, remarks = [], [], []
    for federation in [load_federation(section) for section in sections]:
        found = survey(federation, options["samples"], options["examples"])
        remarks += found["remarks"]
        shown = {**found, "remarks": [*found["remarks"], *said]}
        stem = f"{request.name}-{found['name']}"
        figures += [draw_data(shown, request.folder / f"{stem}.{end}") for end in ("svg", "png")]
        if len(found["clients"]) > 1:
            tables.append(_table(stem, shown))
    return Outcome(tuple(tables), tuple(figures), tuple(dict.fromkeys(remarks)))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    found = options_of(given, DEFAULTS, counts=("samples", "examples"))
    also = found["also"]
    if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
        raise refused("also", also, "legal is a list of data sets' names")
    return found


def _table(name: str, found: Mapping[str, Any]) -> Table:
    rows = [
        Row((client,), tuple(Cell(value) for value in line))
        for client, line in zip(found["clients"], found["distances"], strict=True)
    ]
    note = (
        "0: alike; 1: as far apart as samples are from the mean of all. The diagonal compares two "
        "halves of one client, which is what chance gives."
    )
    return Table(
        f"{name}-distances",
        f"{found['name']}: Fréchet distance of the clients' training samples",
        tuple(found["clients"]),
        tuple(rows),
        " ".join([note, *(f"{remark}." for remark in found["remarks"])]),
        ("client",),
    )
