"""Requests for items, as the command line makes them, with training in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedbn.experiments.configuration import checked
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import prepare, start
from fedbn.paper.configurations import asked
from fedbn.paper.items import Request, Table, find
from fedbn.results.aggregate import Records
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder


def request(name: str, folder: Path, *settings: str, scale: str = "quick") -> Request:
    """What the module of an item is given."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = asked(find(name)[0], scale, {}, settings)
    return Request(
        name=name,
        scale="quick" if scale == "quick" else "paper",
        folder=folder,
        experiment=wanted.raw,
        train=trainer(folder),
        tell=lambda line: None,
        workers=1,
        label="; ".join(wanted.changes),
        changes=wanted.changes,
        cut=wanted.cut,
    )


def trainer(folder: Path) -> Callable[[Mapping[str, Any], Path], Records]:
    """Trains a configuration in a run folder, or goes on with it."""

    def train(raw: Mapping[str, Any], place: Path) -> Records:
        planner, run = Planner(), RunFolder(folder / place)
        experiment = checked(raw)
        todo = prepare(experiment, planner)
        if not run.config.exists():
            run.begin(dict(raw))
        with run.locked():
            start(experiment, todo, planner, run, lambda event: None, workers=1)
        return metrics.read(run.metrics)

    return train


def numbers(table: Table) -> dict[tuple[str, ...], list[float | None]]:
    """Our numbers by the row's label."""
    return {row.label: [c.ours if c else None for c in row.cells] for row in table.rows}
