"""Items that train and are then shown: tables with the paper's numbers beside ours, figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedbn.experiments.loading import checked
from fedbn.reproduction import drawing, tabulating
from fedbn.reproduction.item import Outcome, Request
from fedbn.reproduction.study import Study, studied


def trained(request: Request) -> Outcome:
    """Train what the experiment says, and show it as its table `[reproduce]` says."""
    raw = {key: value for key, value in request.experiment.items() if key != "reproduce"}
    records = request.train(raw, Path("run"))
    study = studied(request, records)
    request = replace(request, label=label(request, study))
    tables = tuple(tabulating.tables(request, study))
    figures = tuple(drawing.figures(request, study))
    return Outcome(tables, figures, study.remarks)


def label(request: Request, study: Study) -> str:
    """What every picture and table says: the scale, what was cut, and what the data is not."""
    how = checked(request.experiment).reproduce
    place = f"{how.place[:1].upper()}{how.place[1:]}. " if how and how.place else ""
    settings = request.label or "The paper's settings"
    return place + "; ".join([settings, *study.data_remarks])
