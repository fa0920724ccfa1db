"""`fedbn evaluate`: who may use whose model."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.options import Trust
from fedbn.cli.output import emit
from fedbn.cli.using import Method, Run, Seed, Setting, check_out, opened, say, write_out

if TYPE_CHECKING:
    from fedbn.core.federation import Split
    from fedbn.trained.evaluation import Matrix
    from fedbn.trained.trained_run import Trained


_EXAMPLES = """[bold]Examples[/bold]

fedbn evaluate runs/first                                    accuracy, a row a client's model

fedbn evaluate runs/first --metric auroc --out scores.json   all metrics, with intervals

fedbn evaluate runs/first --data new_site/ --method fedavg"""


class Metric(StrEnum):
    """The metrics of `fedbn.use.metrics`."""

    ACCURACY = "accuracy"
    BALANCED_ACCURACY = "balanced_accuracy"
    MACRO_F1 = "macro_f1"
    AUROC = "auroc"
    CALIBRATION_ERROR = "calibration_error"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=_EXAMPLES)(evaluate)


def evaluate(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Labelled data to score on, in place of the run's test data."
        ),
    ] = None,
    metric: Annotated[Metric, typer.Option(help="What to print.")] = Metric.ACCURACY,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All metrics: .json, or .csv with a row a number."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Bootstrap resamples behind an interval.")
    ] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    method: Method = None,
    seed: Seed = None,
    setting: Setting = None,
    trust: Trust = None,
) -> None:
    """Score every client's model on every domain's test data: who may use whose model.

    Accuracy, balanced accuracy, macro F1, AUROC and calibration error, each with a 95 % interval
    by bootstrap. Sites that were adapted are rows like the others.
    """
    from fedbn.errors import ConfigError
    from fedbn.trained.evaluation import evaluate_all

    check_out(out)
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise ConfigError(f"--out {out}: legal are names that end in .json or .csv")
    trained = opened(run, method, seed, setting)
    tests = None if data is None else _tests(trained, data)
    found = evaluate_all(trained, tests, resamples=resamples)
    if out is not None:
        write_out(out, found.to_json() if out.suffix.lower() == ".json" else found.to_csv())
        say(f"all metrics: {out}")
    if json:
        emit(found.to_json().decode(), end="")
    else:
        _print(found, metric)


def _tests(trained: Trained, data: Path) -> dict[str, Split]:
    from fedbn.core.federation import Split
    from fedbn.data.new_samples import read_samples
    from fedbn.errors import DataError
    from fedbn.trained.trained_run import samples_of

    samples = read_samples(data, trained.inputs)
    for text in samples.notes:
        say(text)
    if samples.y is None:
        raise DataError(
            f"{data}: no labels; to score a model they are needed (`fedbn predict` needs none)"
        )
    x = samples_of(samples.x, trained.inputs, str(data))
    return {data.resolve().stem or "data": Split(x, samples.y)}


def _print(found: Matrix, metric: Metric) -> None:
    from fedbn.cli.data._common import print_table

    percent = metric is Metric.ACCURACY or metric is Metric.BALANCED_ACCURACY
    title = f"{metric.replace('_', ' ')}{', %' if percent else ''}"
    rows = [
        [client, *(_cell(found.values[metric][client][d], percent) for d in found.domains)]
        for client in found.clients
    ]
    print_table([f"{title}: model of", *found.domains], rows, numbers=True)
    sizes = ", ".join(f"{domain} {found.samples[domain]}" for domain in found.domains)
    say(f"95 % intervals in brackets; test samples: {sizes}")


def _cell(value: tuple[float, float, float], percent: bool) -> str:
    if math.isnan(value[0]):
        return "–"
    scale, digits = (100, 1) if percent else (1, 3)
    point, low, high = (f"{scale * number:.{digits}f}" for number in value)
    return f"{point} [{low}, {high}]"
