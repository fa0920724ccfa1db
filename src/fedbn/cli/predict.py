"""`fedbn predict`, `evaluate` and `export`: a run's models on further samples, and as files."""

from __future__ import annotations

import json as codec
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedbn.cli import completion, console
from fedbn.cli.console import BUT_FIRST, check_out, emit, print_table, say
from fedbn.cli.training import print_summary
from fedbn.core.federation import AnySplit, Targets
from fedbn.core.metric import Metric
from fedbn.core.statistics_kinds import RUNNING, StatisticsKind, kind_of_statistics
from fedbn.data.new_samples import read_samples
from fedbn.errors import ConfigError, FedbnError, GivenInPython, unknown
from fedbn.results.aggregate import MEAN, Cell, Key, Row, Summary
from fedbn.results.result_table import MOST, SCORED_WITH, condensed
from fedbn.results.statistics_remarks import meanings
from fedbn.runs.folder import write_atomically
from fedbn.tasks.making import evaluated
from fedbn.text import counted, listed, shown
from fedbn.trained.evaluation import Matrix, domain_tests, evaluate_all, to_csv, to_json
from fedbn.trained.export import export as exported
from fedbn.trained.joining import labelled
from fedbn.trained.opening import open_run
from fedbn.trained.seen_samples import adapted_with, where_seen, without_seen
from fedbn.trained.trained_run import Predictions, Trained, predict as predicted

_PREDICT = console.examples(
    "fedbn predict runs/first --client photo --data scans/   prints a table",
    "fedbn predict runs/first --client photo --data scans/ --out predictions.csv",
    "fedbn predict runs/first --client clinic --data patients.csv --method fedavg",
)

_EVALUATE = console.examples(
    "fedbn evaluate runs/first                            a row a model",
    "fedbn evaluate runs/first --metric auroc --out s.json   with intervals",
    "fedbn evaluate runs/first --data new_site/ --method fedavg",
)

_EXPORT = console.examples(
    "fedbn export runs/first --client photo",
    "fedbn export runs/first --client photo --out photo.onnx",
    "fedbn export runs/first --client photo --method fedavg --seed 1 --fold-bn",
)

_SHOWN = 10
_Client = Annotated[
    str,
    typer.Option(
        help="Whose model: a training client's or an adapted site's.",
        autocompletion=completion.clients,
    ),
]

app = console.commands()


@app.command(epilog=_PREDICT)
def predict(
    run: console.Run,
    client: _Client,
    data: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="Pictures (a folder, with or without class folders; or one), a table or an npz.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A CSV file for all rows.")
    ] = None,
    method: console.Method = None,
    seed: console.Seed = None,
    setting: console.Setting = None,
    trust: console.Trust = None,
) -> None:
    """Predict with a client's model: one row an input, its class and all probabilities.

    Where the data has labels, the score of the predictions is printed, too. Samples
    that the model was trained on or adapted with are named and not scored.
    """
    check_out(out)
    if out is not None and out.suffix.lower() not in ("", ".csv"):
        raise ConfigError(f"--out {out}: expected a name that ends in .csv, got {out.suffix}")
    trained = open_run(run, method=method, seed=seed, setting=setting, notes=say)
    trained.model(client)
    samples = read_samples(data, trained.preparation, pooled=client == "all")
    found = predicted(trained, client, samples)
    say(*samples.notes, *found.notes)
    if found.labels is not None:
        words, unknown = where_seen(trained, client, samples.encoded)
        found = replace(found, seen=words)
        say(*_seen_told(found, client, unknown))
    if out is None:
        _print_predictions(found)
    else:
        write_atomically(out, found.to_csv(), ConfigError)
        say(f"{len(found.inputs)} rows: {out}")
    if found.score is not None:
        value = f"{trained.metric.said(found.score)} {trained.metric.unit}".rstrip()
        what = "new sample" if any(found.seen) else "sample"
        emit(f"{trained.metric.words} {value} ({counted(len(found.new), what)})")
    elif found.labels is not None:
        emit(f"no {trained.metric.words} of new samples: the model has seen all of these before")


def _seen_told(found: Predictions, client: str, unknown: str) -> Iterator[str]:
    """Say which samples the model has seen before, and what is not known of that."""
    for where, verb in (("training", "was trained on"), ("adaptation", "was adapted with")):
        names = [name for name, one in zip(found.inputs, found.seen, strict=True) if one == where]
        if names:
            count = f"{len(names)} of {counted(len(found.inputs), 'sample')}"
            yield f"the model of {client} {verb} {count}: {listed(names)}; not scored"
    if unknown:
        yield f"not known whether the model was trained on these samples: {unknown}"


def _print_predictions(found: Predictions) -> None:
    # The input, what is predicted, what is true and where the sample was seen.
    words = 2 + (found.labels is not None) + any(found.seen)
    titles, rows = found.header()[:words], [r[:words] for r in islice(found.rows(), _SHOWN)]
    if found.task.targets is Targets.CLASS:
        titles = [*titles, "probability"]
        rows = [[*r, f"{p.max():.3f}"] for r, p in zip(rows, found.proba, strict=False)]
    print_table(titles, rows)
    if len(found.inputs) > _SHOWN:
        say(f"the first {_SHOWN} of {len(found.inputs)}; --out FILE writes all, with every class")


@app.command(epilog=_EVALUATE)
def evaluate(
    run: console.Run,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Labelled data to score on, in place of the run's test data."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What to print; what the run is judged by unless given.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All metrics: .json, or .csv with a row a number."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Bootstrap resamples behind an interval.")
    ] = 1000,
    clients: console.Clients = "some",
    statistics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="BatchNorm statistics of the models: running, local, exact or batch; may be "
            "repeated. All that the run was scored with unless given.",
        ),
    ] = None,
    json: console.Json = False,
    method: console.Method = None,
    seed: console.Seed = None,
    setting: console.Setting = None,
    trust: console.Trust = None,
) -> None:
    """Score every client's model on every domain's test data: who may use whose model.

    The run's metrics, and for classes balanced accuracy, macro F1, AUROC and
    calibration error, each with a 95 % interval. Adapted sites are rows too.
    Samples of --data that the run was trained on are named and not scored, and so are
    adapted sites that have seen some of them.
    Of more than a dozen clients, how they spread: each on its own test data where
    domains are as many, unless --clients all asks for every pair.
    """
    check_out(out)
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise ConfigError(f"--out {out}: legal are names that end in .json or .csv")
    trained = open_run(run, method=method, seed=seed, setting=setting, notes=say)
    trained.check_network()
    known = {one.name: one for one in evaluated(trained.plan.task)}
    if metric is not None and metric not in known:
        raise ConfigError(f"--metric: {unknown('metric', metric, known)}")
    tests, without = (_own_tests(trained), []) if data is None else _tests(trained, data)
    many = len(trained.clients) > MOST and clients == "some"
    own = many and len(tests) > MOST
    asked = [kind_of_statistics(name) for name in statistics or ()]
    found = [
        evaluate_all(trained, tests, own=own, resamples=resamples, without=without, statistics=kind)
        for kind in asked or _kinds_to_score(trained)
    ]
    if out is not None:
        content = to_json(found) if out.suffix.lower() == ".json" else to_csv(found)
        write_atomically(out, content, ConfigError)
        say(f"all metrics: {out}")
    if json:
        emit(to_json(found).decode(), end="")
    else:
        judged_by = known[metric] if metric else trained.metric
        (_print_spread if many else _print_matrices)(found, judged_by)
        say(*_said_of_statistics(found))


def _kinds_to_score(trained: Trained) -> tuple[StatisticsKind, ...]:
    """The kinds that the run was scored with; running ones alone if its data is not there."""
    kinds = trained.statistics
    if len(kinds) > 1:
        try:
            trained.federation  # noqa: B018 - the data is loaded here, or is not there
        except FedbnError as error:
            others = ", ".join(kind for kind in kinds if kind != RUNNING)
            say(f"not scored with {others} statistics, which need the training data: {error}")
            return (RUNNING,)
    return kinds


def _said_of_statistics(found: Sequence[Matrix]) -> Iterator[str]:
    """Explain the statistics if there are several, and why clients lack a score."""
    for matrix in found:
        reasons: dict[str, list[str]] = {}
        for client, reason in matrix.unscored.items():
            reasons.setdefault(reason, []).append(client)
        for reason, names in reasons.items():
            yield f"{matrix.statistics} statistics of {listed(names)}: {reason}"
    yield from meanings(matrix.statistics for matrix in found)


def _own_tests(trained: Trained) -> dict[str, AnySplit]:
    try:
        return domain_tests(trained)
    except GivenInPython as error:
        raise ConfigError(f"{error.fact}; score on labelled files with --data PATH") from error


def _tests(trained: Trained, data: Path) -> tuple[dict[str, AnySplit], list[str]]:
    """Read samples to score on; and name the adapted sites that have seen some of them."""
    samples = read_samples(data, trained.preparation)
    whole, where = labelled(trained, samples, data), shown(data)
    completed, notes = trained.completed(samples, "")
    say(*samples.notes, *notes)
    new, left_out = without_seen(trained, whole, where, samples.names)
    sites, said = adapted_with(trained, whole.take(new), where)
    say(*left_out, *said)
    return {data.resolve().stem or "data": replace(whole, x=completed).take(new)}, sites


def _print_matrices(found: Sequence[Matrix], metric: Metric) -> None:
    for matrix in found:
        rows = [
            [c, *(_cell(matrix.values[metric.name][c][d], metric) for d in matrix.domains)]
            for c in matrix.clients
        ]
        if len(found) > 1:
            emit(SCORED_WITH[matrix.statistics])
        print_table([f"{metric.title}: model of", *matrix.domains], rows, BUT_FIRST)
        if len(found) > 1:
            emit()
    sizes = ", ".join(f"{domain} {size}" for domain, size in found[0].samples.items())
    say(f"95 % intervals in brackets; test samples: {sizes}")


def _print_spread(found: Sequence[Matrix], metric: Metric) -> None:
    """Print of many models how their scores spread: on each domain, or on their own test data."""
    columns: dict[Key, dict[str, Cell]] = {}
    for matrix in found:
        for client, row in matrix.values[metric.name].items():
            for domain, (value, *_) in row.items():
                name = "own test data" if len(matrix.domains) > MOST else domain
                cells = columns.setdefault(Key(name, "default", matrix.statistics), {})
                if not math.isnan(value):
                    cells[client] = Cell.of([metric.scale * value], metric.form)
    for cells in columns.values():
        if cells:
            mean = statistics.fmean(cell.mean for cell in cells.values())
            cells[MEAN] = Cell.of([mean], metric.form)
    rows = tuple(Row(key, cells) for key, cells in columns.items())
    clients = list(dict.fromkeys(client for matrix in found for client in matrix.clients))
    print_summary(condensed(Summary((*clients, MEAN), rows, (0,), metric=metric)))


def _cell(value: tuple[float, float, float], metric: Metric) -> str:
    if math.isnan(value[0]):
        return "–"
    point, low, high = map(metric.said, value)
    return f"{point} [{low}, {high}]"


@app.command(epilog=_EXPORT)
def export(
    run: console.Run,
    client: _Client,
    form: Annotated[
        Literal["safetensors", "onnx", "torch-export"] | None,
        typer.Option(
            "--format",
            help="safetensors (weights), onnx or torch-export (whole); by the end of --out "
            "unless given.",
        ),
    ] = None,
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Fold BatchNorm into the layers before it.")
    ] = False,
    out: Annotated[
        str | None,  # not a Path, which would lose the slash at the end of a new folder
        typer.Option(metavar="PATH", help="The file, or a folder/; RUN/exports unless given."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    method: console.Method = None,
    seed: console.Seed = None,
    setting: console.Setting = None,
    trust: console.Trust = None,
    json: console.Json = False,
) -> None:
    """Write a client's model as a file that runs without fedbn, checked, with a model card."""
    trained = open_run(run, method=method, seed=seed, setting=setting, notes=say)
    found = exported(trained, client, form, out=out, fold_bn=fold_bn, force=force)
    if json:
        emit(codec.dumps(asdict(found), indent=2, ensure_ascii=False, default=str))
        return
    checked = found.agreement
    folded = ", ".join(f"{norm} into {layer}" for norm, layer in found.folded.items())
    text = (
        f"wrote {found.file} ({found.bytes:,} bytes) and {found.card.name}; on {checked.samples} "
        f"{checked.inputs} its outputs are within {checked.worst:.2g} of the model's"
    )
    emit(shown(text + (f"; folded: {folded}" if folded else "")))
