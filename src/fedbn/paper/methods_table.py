"""Every method on small data sets: its score, and what it gains over FedAvg and over SiloBN."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbn.core.metric import first_metric
from fedbn.core.statistics_kinds import RUNNING
from fedbn.experiments.configuration import changed
from fedbn.paper.configurations import is_there
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of
from fedbn.results import display_name, statistics_remarks, with_statistics
from fedbn.results.aggregate import MEAN, Key, Scores, ScoreTable
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
        table = ScoreTable.of(records, metric)
        found = table.by_domain().scores()
        tables += [_scores(request, name, metric.title, found), _gains(request, name, found)]
        said = statistics_remarks.same_training(table, "last")
        remarks += [f"{name}: {text}" for text in said]
    return Outcome(tuple(tables), (), tuple(remarks))


def _shown(key: Key) -> str:
    """The method as papers write it, with the statistics that it is scored with."""
    return with_statistics(display_name(key.method), key.statistics)


def _scores(request: Request, name: str, title: str, found: Mapping[Key, Scores]) -> Table:
    columns = tuple(dict.fromkeys(column for own in found.values() for column in own))
    rows = [
        Row((_shown(key),), tuple(Cell.of(own[c].values()) if c in own else None for c in columns))
        for key, own in found.items()
    ]
    head = f"{name}, test {title}, mean (standard deviation)"
    meanings = statistics_remarks.meanings(key.statistics for key in found)
    note = " ".join([_UNTUNED, *(f"{text}." for text in meanings)])
    return request.table(f"{request.name}-{name}", head, columns, rows, note)


def _gains(request: Request, name: str, found: Mapping[Key, Scores]) -> Table:
    """What each gains in the mean over clients, over each of `BASES` with the same statistics."""
    means = {key: own[MEAN] for key, own in found.items() if MEAN in own}
    rivals = {key: [key._replace(method=base) for base in BASES] for key in means}
    compared = [
        [key for key, others in rivals.items() if others[place] in means.keys() - {key}]
        for place in range(len(BASES))
    ]
    asked = max(map(len, compared))
    rows = []
    for key, own in means.items():
        cells = [
            Cell.gained(own, means[other], family=asked) if key in those else None
            for other, those in zip(rivals[key], compared, strict=True)
        ]
        if key.statistics == RUNNING or any(cells):
            rows.append(Row((_shown(key),), tuple(cells)))
    note = f"{_UNTUNED} Intervals hold for all {asked} comparisons of a column at once."
    columns = (f"over {display_name(base)}" for base in BASES)
    title = f"{name}, what each method gains in the mean over clients, in points"
    return request.table(f"{request.name}-{name}-gain", title, columns, rows, note)
