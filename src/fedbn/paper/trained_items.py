"""Tables of a study: accuracy a method and domain, and what FedBN gains over FedAvg.

Figures of a study, by the kinds that its table `[reproduce]` names.

Items that train and are then shown: tables with the paper's numbers beside ours, figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fedbn.experiments.configuration import checked
from fedbn.paper.items import Cell, Outcome, Request, Row, Table
from fedbn.paper.numbers import Study, studied
from fedbn.paper.paper_figures import draw_against, draw_bars
from fedbn.results.aggregate import Line, curves
from fedbn.results.figures import draw_curves_over_epochs

_DEFAULT, _MEAN_COLUMN = "default", "mean"
_BETTER, _BASE = "fedbn", "fedavg"
_GAIN = f"{_BETTER} − {_BASE}"


def tables_of(request: Request, study: Study) -> Iterator[Table]:
    """Make the table of accuracies and, where both were trained, that of gains."""
    domains = dict.fromkeys(d for own in study.scores.values() for d in own if d != _MEAN_COLUMN)
    columns, note = (*domains, _MEAN_COLUMN), _note(request, study)
    several = any(setting != _DEFAULT for _, setting in study.scores)
    head = ("setting", "method") if several else ("method",)
    rows = [
        _row(several, method, setting, [_cell(study, method, setting, c) for c in columns])
        for method, setting in _ordered(study)
    ]
    title = f"{request.name}: test accuracy in per cent, mean (standard deviation)"
    yield Table(request.name, title, columns, tuple(rows), note, head)
    gains = [
        _row(several, _GAIN, setting, [_gain(study, setting, c) for c in columns])
        for setting in dict.fromkeys(setting for _, setting in study.scores)
        if {(_BETTER, setting), (_BASE, setting)} <= study.scores.keys()
    ]
    if gains:
        title = f"{request.name}: what FedBN gains over FedAvg, in percentage points"
        yield Table(f"{request.name}-gain", title, columns, tuple(gains), note, head)


def _ordered(study: Study) -> list[tuple[str, str]]:
    """Setting by setting, so that methods stand beside each other."""
    named = list(dict.fromkeys(setting for _, setting in study.scores))
    return sorted(study.scores, key=lambda key: named.index(key[1]))


def _row(several: bool, method: str, setting: str, cells: list[Cell | None]) -> Row:
    return Row((setting, method) if several else (method,), tuple(cells))


def _cell(study: Study, method: str, setting: str, column: str) -> Cell | None:
    seeds = study.scores[method, setting].get(column)
    if not seeds:
        return None
    paper = study.paper(method, setting, column)
    return Cell(*_spread(list(seeds.values())), *(paper or ()))


def _gain(study: Study, setting: str, column: str) -> Cell | None:
    """The mean over seeds of what one gains over the other, seed by seed."""
    ours, base = (study.scores[m, setting].get(column, {}) for m in (_BETTER, _BASE))
    both = [ours[seed] - base[seed] for seed in ours if seed in base]
    if not both:
        return None
    papers = [study.paper(m, setting, column) for m in (_BETTER, _BASE)]
    theirs = papers[0].mean - papers[1].mean if papers[0] and papers[1] else None
    return Cell(*_spread(both), theirs)


def _spread(values: list[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _note(request: Request, study: Study) -> str:
    seeds = len(study.experiment.seeds)
    best = study.experiment.evaluation.report == "best"
    which = "Best round by validation" if best else "Last round"
    parts = [f"{request.label}.", f"{which}, {_counted(seeds, 'seed')}."]
    if study.papers and not any(paper_means(study, setting) for _, setting in study.scores):
        return " ".join([*parts, "No number of the paper's has these settings: no comparison."])
    for paper in study.papers:
        parts.append(f"Paper: {paper.label}" + (f" ({paper.note})." if paper.note else "."))
    if study.stand_ins and study.papers:
        parts.append(f"Stand-in data, not compared: {', '.join(study.stand_ins)}.")
    return " ".join(parts)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def paper_means(study: Study, setting: str = _DEFAULT) -> Mapping[str, Mapping[str, float]]:
    """The paper's means that may be drawn beside ours, by method and domain."""
    found: dict[str, dict[str, float]] = {}
    for (method, own), domains in study.scores.items():
        for domain in domains:
            number = study.paper(method, own, domain) if own == setting else None
            if number:
                found.setdefault(method, {})[domain] = number.mean
    return found


T = TypeVar("T")
_MEAN, _ALL = "mean", "mean of domains"
_FEDBN = "fedbn"


AXES = {
    "training.local_epochs": "local epochs E",
    "data.percent": "share of the data (%)",
    "data.clients_per_domain": "clients a domain",
    "training.batch_size": "batch size B",
}


def figures_of(request: Request, study: Study) -> Iterator[Path]:
    """Draw all figures of an item; each as SVG and PNG."""
    kinds: dict[str, Callable[[Request, Study], Iterator[Path]]] = {
        "loss": _loss,
        "curves": _curves,
        "against": _against,
        "bars": _bars,
    }
    for kind in study.how.figures:
        yield from kinds[kind](request, study)


def _loss(request: Request, study: Study) -> Iterator[Path]:
    """Training loss over epochs, of the averaged models and as seen while training.

    The paper does not say which it draws. The averaged models are scored on the clients' training
    data with the statistics they would be used with; the other loss is seen on the way, in batches.
    """
    for metric, end, name in (
        ("loss", "loss", "loss on training data"),
        ("training_loss", "loss-seen", "loss seen while training"),
    ):
        panels = _loss_panels(study, metric)
        stem = request.folder / f"{request.name}-{end}"
        yield from draw_curves_over_epochs(panels, stem, name, request.label)


def _loss_panels(study: Study, metric: str) -> dict[str, dict[str, Line]]:
    """A panel a domain, or a panel a setting where there are several."""
    lines = curves(study.records, metric, "train", study.epochs)
    several = len({setting for _, setting, _ in lines}) > 1
    panels: dict[str, dict[str, Line]] = {}
    for (method, setting, domain), line in lines.items():
        if several and domain == _MEAN:
            panels.setdefault(_shown(setting), {})[method] = line
        elif not several:
            panels.setdefault(domain, {})[method] = line
    return _mean_last(panels)


def _curves(request: Request, study: Study) -> Iterator[Path]:
    """FedBN's test accuracy over epochs: a panel a batch size, a line a number of local epochs."""
    panels: dict[str, dict[str, Line]] = {}
    for (method, setting, domain), line in curves(
        study.records, "accuracy", "test", study.epochs
    ).items():
        if method == _FEDBN and domain == _MEAN:
            parts = dict(part.split("=") for part in setting.split(","))
            panel = panels.setdefault(f"B = {parts.get('batch_size', '?')}", {})
            scale = Line(line.x, [100 * v for v in line.mean], [100 * v for v in line.std])
            panel[f"E = {parts.get('local_epochs', '?')}"] = scale
    stem = request.folder / f"{request.name}-curves"
    yield from draw_curves_over_epochs(
        panels, stem, "FedBN, test accuracy (%)", request.label, sharey=True
    )


def _against(request: Request, study: Study) -> Iterator[Path]:
    """Final accuracy against a swept key: a panel a domain."""
    key = study.how.against or ""
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (method, setting), domains in study.scores.items():
        value = dict(part.split("=") for part in setting.split(",") if "=" in part)
        at = value.get(key.rpartition(".")[2], setting)
        for domain, seeds in domains.items():
            panels.setdefault(domain, {}).setdefault(method, {})[at] = list(seeds.values())
    stem = request.folder / f"{request.name}-accuracy"
    yield from draw_against(_mean_last(panels), stem, AXES.get(key, key), request.label)


def _bars(request: Request, study: Study) -> Iterator[Path]:
    """Bars of each setting, with the paper's numbers where they may be compared."""
    named = list(dict.fromkeys(setting for _, setting in study.scores))
    for setting in named:
        values = {
            method: {d: list(seeds.values()) for d, seeds in domains.items() if d != _MEAN}
            for (method, own), domains in study.scores.items()
            if own == setting
        }
        end = "" if len(named) == 1 else f"-{setting.replace('=', '-').replace(',', '-')}"
        stem = request.folder / f"{request.name}-bars{end}"
        yield from draw_bars(values, stem, request.label, paper_means(study, setting))


def _mean_last(panels: Mapping[str, T]) -> dict[str, T]:
    found = {name: panel for name, panel in panels.items() if name != _MEAN}
    return {**found, _ALL: panels[_MEAN]} if _MEAN in panels else found


def _shown(setting: str) -> str:
    return setting.replace("local_epochs=", "E = ").replace("batch_size=", "B = ")


def trained(request: Request) -> Outcome:
    """Train what the experiment says, and show it as its table `[reproduce]` says."""
    raw = {key: value for key, value in request.experiment.items() if key != "reproduce"}
    records = request.train(raw, Path("run"))
    study = studied(request, records)
    request = replace(request, label=item_label(request, study))
    tables = tuple(tables_of(request, study))
    figures = tuple(figures_of(request, study))
    return Outcome(tables, figures, study.remarks)


def item_label(request: Request, study: Study) -> str:
    """What every picture and table says: the scale, what was cut, and what the data is not."""
    how = checked(request.experiment).reproduce
    place = f"{how.place[:1].upper()}{how.place[1:]}. " if how and how.place else ""
    settings = request.label or "The paper's settings"
    return place + "; ".join([settings, *study.data_remarks])
