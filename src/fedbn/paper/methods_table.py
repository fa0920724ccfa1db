"""Every method on small data sets: its score, and what it gains over FedAvg and over SiloBN."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbn.core.metric import first_metric
from fedbn.experiments.configuration import changed
from fedbn.paper.configurations import is_there
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of
from fedbn.results import display_name
from fedbn.results.aggregate import MEAN, Scores, ScoreTable
from fedbn.runs.folder import RunFolder

DEFAULTS: dict[str, Any] = {"also": {}}
BASES = ("fedavg", "silobn")
_UNTUNED = "Every method as it is by default: nothing was tuned."


def methods(request: Request) -> Outcome:
    """Train all methods on each data set that is there, and tabulate them."""
    base, options = request.several(), options_of(request.options, DEFAULTS)
    parts = {base["data"]["name"]: base}
    parts |= {name: changed(base, changes) for name, changes in options["also"].items()}
    tables, remarks = [], []
    for name, raw in parts.items():
        if not is_there(raw["data"]["name"]):
            remarks.append(f"left out, its files are not there: {name}")
            continue
        records = request.train(raw, Path(f"run-{name}"))
        metric = first_metric(RunFolder(request.folder / f"run-{name}").read_environment())
        scores = ScoreTable.of(records, metric).by_domain().scores()
        found = {key.method: own for key, own in scores.items()}
        tables += [_scores(request, name, metric.title, found), _gains(request, name, found)]
    return Outcome(tuple(tables), (), tuple(remarks))


def _scores(request: Request, name: str, title: str, found: Mapping[str, Scores]) -> Table:
    columns = tuple(dict.fromkeys(column for own in found.values() for column in own))
    rows = [
        Row((display_name(m),), tuple(Cell.of(own[c].values()) for c in columns))
        for m, own in found.items()
    ]
    head = f"{name}, test {title}, mean (standard deviation)"
    return request.table(f"{request.name}-{name}", head, columns, rows, _UNTUNED)


def _gains(request: Request, name: str, found: Mapping[str, Scores]) -> Table:
    """What each gains in the mean over clients, over each of `BASES`."""
    means, asked = {method: own[MEAN] for method, own in found.items()}, len(found) - 1
    rows = []
    for m, own in means.items():
        cells = [None if m == b else Cell.gained(own, means[b], family=asked) for b in BASES]
        rows.append(Row((display_name(m),), tuple(cells)))
    note = f"{_UNTUNED} Intervals hold for all {asked} comparisons of a column at once."
    columns = (f"over {display_name(base)}" for base in BASES)
    title = f"{name}, what each method gains in the mean over clients, in points"
    return request.table(f"{request.name}-{name}-gain", title, columns, rows, note)
