"""Items that train and are then shown: tables with the paper's numbers beside ours, figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS
from fedbn.paper.items import Cell, Outcome, Request, Row, Table
from fedbn.paper.numbers import Study, trained_study
from fedbn.paper.paper_figures import draw_against, draw_bars
from fedbn.results import aggregate, with_statistics
from fedbn.results.aggregate import LOSS, LOSS_SEEN, MEAN, Curve, Key, Measure
from fedbn.results.figures import draw_curves_over_epochs
from fedbn.text import counted

T = TypeVar("T")
_DEFAULT, _ALL = "default", "mean of domains"
_BETTER, _BASE = "fedbn", "fedavg"
_GAIN = f"{_BETTER} − {_BASE}"
_GAINED = "Intervals of gains: paired t, for a setting's domains at once (Bonferroni), or its mean."
AXES = {
    "training.local_epochs": "local epochs E",
    "data.percent": "share of the data (%)",
    "data.clients_per_domain": "clients a domain",
    "training.batch_size": "batch size B",
}


def trained(request: Request) -> Outcome:
    """Train what the experiment says, and show it as its table `[reproduce]` says."""
    request, study = trained_study(request)
    draw = {"loss": _loss, "curves": _curves, "against": _against, "bars": _bars}
    figures = [file for kind in study.how.figures for file in draw[kind](request, study)]
    return Outcome(tuple(tables_of(request, study)), tuple(figures), study.remarks)


def tables_of(request: Request, study: Study) -> Iterator[Table]:
    """Make the table of accuracies and, where both were trained, that of gains."""
    domains = dict.fromkeys(d for own in study.cells.values() for d in own if d != MEAN)
    columns, note = (*domains, MEAN), _note(request, study)
    several = study.settings != [_DEFAULT]
    head = ("setting", "method") if several else ("method",)
    title = f"{request.name}: test accuracy in per cent, mean (standard deviation)"
    rows = _accuracies(study, columns, several)
    yield Table(request.name, title, columns, rows, note, head)
    for paper in (paper for paper in study.papers if paper.other_order):
        again = _accuracies(replace(study, papers=(paper,)), columns, several)
        if any(cell and cell.paper is not None for row in again for cell in row.cells):
            name = f"{request.name}-other-order"
            yield Table(name, f"{title}. {paper.title}", columns, again, note, head)
    better = [
        _row(several, with_statistics(_GAIN, kind), setting, cells)
        for setting in study.settings
        for kind in _kinds_of_both(study, setting)
        for cells in [[_gain(study, setting, kind, column) for column in columns]]
    ]
    if better:
        title = f"{request.name}: what FedBN gains over FedAvg, in percentage points"
        if any(cell and cell.interval for row in better for cell in row.cells):
            note = f"{note} {_GAINED}"
        yield Table(f"{request.name}-gain", title, columns, tuple(better), note, head)


def _accuracies(study: Study, columns: tuple[str, ...], several: bool) -> tuple[Row, ...]:
    return tuple(
        _row(several, _label(key), key.setting, cells)
        for key, own in study.cells.items()
        for cells in [[_cell(study, key, own.get(column), column) for column in columns]]
    )


def _label(key: Key) -> str:
    """The method and its statistics, without the setting."""
    return with_statistics(key.method, key.statistics)


def _row(several: bool, method: str, setting: str, cells: list[Cell | None]) -> Row:
    return Row((setting, method) if several else (method,), tuple(cells))


def _cell(study: Study, key: Key, ours: aggregate.Cell | None, column: str) -> Cell | None:
    if ours is None:
        return None
    mean, std = study.paper(key, column) or (None, None)
    return Cell(ours.mean, ours.std, mean, std, ours.seeds, cut=study.cut)


def _kinds_of_both(study: Study, setting: str) -> list[str]:
    """The kinds of statistics that both methods of the gain are scored with."""
    keys = study.scores.keys()
    own = [{k.statistics for k in keys if k[:2] == (m, setting)} for m in (_BETTER, _BASE)]
    return [kind for kind in STATISTICS_KINDS if kind in own[0] & own[1]]


def _gain(study: Study, setting: str, kind: str, column: str) -> Cell | None:
    """The mean over seeds of what one gains over the other, seed by seed."""
    keys = [Key(method, setting, kind) for method in (_BETTER, _BASE)]
    new, old = (study.scores[key].get(column, {}) for key in keys)
    if not new.keys() & old.keys():
        return None
    papers = [study.paper(key, column) for key in keys]
    theirs = papers[0].mean - papers[1].mean if papers[0] and papers[1] else None
    asked = len(_kinds_of_both(study, setting))
    family = asked if column == MEAN else asked * len(study.table.columns)
    return Cell.gained(new, old, family, theirs)


def _note(request: Request, study: Study) -> str:
    best = study.experiment.evaluation.report == "best"
    which = "Best round by validation" if best else "Last round"
    counts = {key.name: len(own) for key, own in study.table.only(RUNNING).histories.items()}
    seeds = "seeds: " + ", ".join(f"{name} {count}" for name, count in counts.items())
    if len({*counts.values()}) == 1:
        seeds = counted(next(iter(counts.values())), "seed")
    parts = [f"{request.label}.", f"{which}, {seeds}."]
    if study.papers and not any(paper_means(study, setting) for setting in study.settings):
        return " ".join([*parts, "No number of the paper's has these settings: no comparison."])
    for paper in study.in_order:
        parts.append(f"Paper: {paper.label}" + (f" ({paper.note})." if paper.note else "."))
    if study.stand_ins and study.papers:
        parts.append(f"Stand-in data, not compared: {', '.join(study.stand_ins)}.")
    return " ".join(parts)


def paper_means(study: Study, setting: str = _DEFAULT) -> Mapping[str, Mapping[str, float]]:
    """The paper's means that may be drawn beside ours, by method and domain."""
    found: dict[str, dict[str, float]] = {}
    for key, domains in study.scores.items():
        for domain in domains:
            number = study.paper(key, domain) if key.setting == setting else None
            if number:
                found.setdefault(key.method, {})[domain] = number.mean
    return found


def _loss(request: Request, study: Study) -> Iterator[Path]:
    """Training loss over epochs, of the averaged models and as seen while training.

    The paper does not say which it draws. The averaged models are scored on the clients' training
    data with the statistics they would be used with; the other loss is seen on the way, in batches.
    """
    for measure, end, name in (
        (LOSS, "loss", "loss on training data"),
        (LOSS_SEEN, "loss-seen", "loss seen while training"),
    ):
        stem = request.folder / f"{request.name}-{end}"
        yield from draw_curves_over_epochs(_panels(study, measure), stem, name, request.label)


def _panels(study: Study, measure: Measure) -> dict[str, list[Curve]]:
    """A panel a domain, or a panel a setting where there are several."""
    several = len({key.setting for key in study.table.histories}) > 1
    panels: dict[str, list[Curve]] = {}
    for key in study.table.drawn:
        for column in (MEAN,) if several else (*study.table.columns, MEAN):
            short = key.setting.replace("local_epochs=", "E = ").replace("batch_size=", "B = ")
            panel = panels.setdefault(short if several else column, [])
            panel += study.curves(key, column, _label(key), measure)
    return _mean_last({name: panel for name, panel in panels.items() if panel})


def _curves(request: Request, study: Study) -> Iterator[Path]:
    """FedBN's test accuracy over epochs: a panel a batch size, a line a number of local epochs."""
    panels: dict[str, list[Curve]] = {}
    for key in (key for key in study.table.only(RUNNING).histories if key.method == _BETTER):
        parts = _parts(key.setting)
        panel = panels.setdefault(f"B = {parts.get('batch_size', '?')}", [])
        panel += study.curves(key, MEAN, f"E = {parts.get('local_epochs', '?')}")
    stem = request.folder / f"{request.name}-curves"
    ylabel = "FedBN, test accuracy (%)"
    yield from draw_curves_over_epochs(panels, stem, ylabel, request.label, sharey=True)


def _against(request: Request, study: Study) -> Iterator[Path]:
    """Final accuracy against a swept key: a panel a domain."""
    key = study.how.against or ""
    panels: dict[str, dict[str, dict[str, aggregate.Cell]]] = {}
    for row, domains in study.cells.items():
        at = _parts(row.setting).get(key.rpartition(".")[2], row.setting)
        for domain, cell in domains.items():
            panels.setdefault(domain, {}).setdefault(_label(row), {})[at] = cell
    stem = request.folder / f"{request.name}-accuracy"
    yield from draw_against(_mean_last(panels), stem, AXES.get(key, key), request.label)


def _bars(request: Request, study: Study) -> Iterator[Path]:
    """Bars of each setting, with the paper's numbers where they may be compared."""
    for setting in study.settings:
        values = {
            _label(key): {domain: cell for domain, cell in own.items() if domain != MEAN}
            for key, own in study.cells.items()
            if key.setting == setting
        }
        end = "" if len(study.settings) == 1 else f"-{setting.replace('=', '-').replace(',', '-')}"
        stem = request.folder / f"{request.name}-bars{end}"
        yield from draw_bars(values, stem, request.label, paper_means(study, setting))


def _mean_last(panels: Mapping[str, T]) -> dict[str, T]:
    found = {name: panel for name, panel in panels.items() if name != MEAN}
    return {**found, _ALL: panels[MEAN]} if MEAN in panels else found


def _parts(setting: str) -> dict[str, str]:
    return dict(part.split("=") for part in setting.split(",") if "=" in part)
