"""Figures of a study, by the kinds that its table `[reproduce]` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from fedbn.reproduction.item import Request
from fedbn.reproduction.study import Study
from fedbn.reproduction.tabulating import paper_means
from fedbn.results.against_figure import draw_against
from fedbn.results.bars_figure import draw_bars
from fedbn.results.curve_figure import draw_curves_over_epochs
from fedbn.results.series import Line, curves

T = TypeVar("T")
_MEAN, _ALL = "mean", "mean of domains"
_FEDBN = "fedbn"
AXES = {
    "training.local_epochs": "local epochs E",
    "data.percent": "share of the data (%)",
    "data.clients_per_domain": "clients a domain",
    "training.batch_size": "batch size B",
}


def figures(request: Request, study: Study) -> Iterator[Path]:
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
