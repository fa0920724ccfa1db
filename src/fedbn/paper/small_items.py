"""The synthetic experiment of the appendix, and the data sets at a glance.

Of the synthetic experiment the paper shows one figure of training losses and states no numbers, so
ours are what can be counted: the loss at the end, FedBN's divided by FedAvg's of the same seed, and
the step at which FedBN has come as far as FedAvg comes in all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbn.data.survey import survey
from fedbn.datasets import PUBLIC_PICTURES
from fedbn.errors import ConfigError
from fedbn.experiments.configuration import checked
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import data_name, load_federation
from fedbn.paper import trained_items
from fedbn.paper.items import Cell, Outcome, Request, Row, Table, options_of, refused
from fedbn.paper.numbers import trained_study
from fedbn.paper.paper_figures import draw_race
from fedbn.results.aggregate import LOSS_SEEN, MEAN, ScoreTable
from fedbn.results.data_figure import draw_data

BASE, BETTER = "fedavg", "fedbn"
Losses = dict[str, dict[str, dict[int, list[float]]]]
"""By setting, method and seed: the training loss of every step, the mean over clients."""
_OPEN = "the paper has lr 1e-05 and leaves open the loss, a mean or a sum, and the output's start"
_SAME = 0.01
"""A loss that is smaller by less than this part is called the same."""


def synthetic(request: Request) -> Outcome:
    """Train, tabulate and draw."""
    request, study = trained_study(request)
    request = replace(request, label=f"{request.label}; {_OPEN}")
    losses = losses_by_step(study.clients)
    for setting, methods in losses.items():
        if not {BASE, BETTER} <= methods.keys():
            raise ConfigError(f"{request.name}: {setting} lacks {BASE} or {BETTER}; it needs both")
    accuracy = next(trained_items.tables_of(request, study))
    panels = {
        _shown(setting): {m: list(methods[m].values()) for m in (BASE, BETTER)}
        for setting, methods in losses.items()
    }
    figures = draw_race(panels, request.folder / f"{request.name}-loss", request.label)
    remarks = tuple(_remark(setting, methods) for setting, methods in losses.items())
    return Outcome((_table(request, losses), accuracy), figures, (*remarks, *study.remarks))


def losses_by_step(table: ScoreTable) -> Losses:
    """Collect the training losses; a step's is the mean over clients."""
    losses: Losses = {}
    for key, seeds in table.histories.items():
        for seed, history in seeds.items():
            if steps := history.numbers.get(LOSS_SEEN):
                line = [steps[step][MEAN] for step in sorted(steps)]
                losses.setdefault(key.setting, {}).setdefault(key.method, {})[seed] = line
    return losses


def caught_up(ours: Sequence[float], base: Sequence[float]) -> int | None:
    """The step, from 1, at which ours is as low as the other's last; None if it never is.

    Examples:
        >>> caught_up([4.0, 2.0, 1.0, 0.5], [4.0, 3.0, 2.5, 2.0])
        2
    """
    return next((step for step, loss in enumerate(ours, 1) if loss <= base[-1]), None)


def _table(request: Request, losses: Losses) -> Table:
    rows = []
    for setting, methods in losses.items():
        for method in (BASE, BETTER):
            cells = [Cell.of(values) if values else None for values in _values(methods, method)]
            rows.append(Row((_shown(setting), method), tuple(cells)))
    columns = ("loss, step 1", "loss, last step", "by FedAvg's", "as low as FedAvg's last at")
    note = f"Mean over seeds (standard deviation). The paper states no numbers. {request.label}."
    title = f"{request.name}: training loss, the mean over both clients"
    return Table(
        f"{request.name}-loss", title, columns, tuple(rows), note, ("setting", "method"), 4
    )


def _values(methods: Mapping[str, Mapping[int, list[float]]], method: str) -> list[list[float]]:
    own, base = methods[method], methods[BASE]
    pairs = [(own[seed], base[seed]) for seed in own if seed in base and method != BASE]
    steps = (caught_up(*pair) for pair in pairs)
    return [
        [line[0] for line in own.values()],
        [line[-1] for line in own.values()],
        [mine[-1] / theirs[-1] for mine, theirs in pairs],
        [step for step in steps if step is not None],
    ]


def _remark(setting: str, methods: Mapping[str, Mapping[int, list[float]]]) -> str:
    """Say in a sentence how FedBN compares, from the numbers."""
    own, base = methods[BETTER], methods[BASE]
    ratios = [own[seed][-1] / base[seed][-1] for seed in own if seed in base]
    lower, mean = sum(ratio < 1 for ratio in ratios), statistics.fmean(ratios)
    start, end = (statistics.fmean(line[i] for line in base.values()) for i in (0, -1))
    size = "no faster to the eye" if abs(1 - mean) < _SAME else f"{100 * (1 - mean):.0f} % lower"
    return (
        f"{_shown(setting)}: FedAvg's loss goes from {start:.3g} to {end:.3g}; FedBN's last is "
        f"{mean:.4f} of it ({size}), lower with {lower} of {len(ratios)} seeds"
    )


def _shown(setting: str) -> str:
    return setting.replace("=", " ").replace(",", ", ")


DEFAULTS: dict[str, Any] = {"samples": 100, "examples": 10, "also": []}


def data_view(request: Request) -> Outcome:
    """Draw every data set that is asked for, and tabulate the domains' distances."""
    options = options_of(request.options, DEFAULTS, counts=("samples", "examples"))
    also = options["also"]
    if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
        raise refused("also", also, "legal is a list of data sets' names")
    others = [DataSection.model_validate({"name": name}, context=request.held) for name in also]
    sections = [checked(request.experiment, request.name, request.held).data, *others]
    # Without changes, quick is no other than the paper's scale.
    said = [request.label] if request.changes else []
    tables, figures, remarks = [], [], []
    for section in sections:
        federation = load_federation(section)
        public = data_name(section)[0] in PUBLIC_PICTURES
        found = survey(federation, options["samples"], options["examples"] if public else 0)
        remarks += found["remarks"]
        shown = {**found, "remarks": [*found["remarks"], *said]}
        stem = f"{request.name}-{found['name']}"
        figures += [draw_data(shown, request.folder / f"{stem}.{end}") for end in ("svg", "png")]
        if len(found["clients"]) > 1:
            tables.append(_view_table(stem, shown))
    return Outcome(tuple(tables), tuple(figures), tuple(dict.fromkeys(remarks)))


def _view_table(name: str, found: Mapping[str, Any]) -> Table:
    clients = tuple(found["clients"])
    lines = zip(clients, found["distances"], strict=True)
    rows = tuple(Row((client,), tuple(map(Cell, line))) for client, line in lines)
    note = (
        "0: alike; 1: as far apart as samples are from the mean of all. The diagonal compares two "
        "halves of one client, which is what chance gives."
    )
    said = " ".join([note, *(f"{remark}." for remark in found["remarks"])])
    title = f"{found['name']}: Fréchet distance of the clients' training samples"
    return Table(f"{name}-distances", title, clients, rows, said, ("client",))
