"""`fedbn predict`: a client's model on further samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbn.cli.options import Trust
from fedbn.cli.output import emit
from fedbn.cli.using import Method, Run, Seed, Setting, check_out, opened, say, write_out

if TYPE_CHECKING:
    from fedbn.trained.trained_run import Predictions


_EXAMPLES = """[bold]Examples[/bold]

fedbn predict runs/first --client photo --data scans/                 a table on the terminal

fedbn predict runs/first --client photo --data scans/ --out predictions.csv

fedbn predict runs/first --client clinic --data patients.csv --method fedavg --seed 1"""


_SHOWN = 10


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=_EXAMPLES)(predict)


def predict(
    run: Run,
    client: Annotated[
        str, typer.Option(help="Whose model: a training client's or an adapted site's.")
    ],
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
    method: Method = None,
    seed: Seed = None,
    setting: Setting = None,
    trust: Trust = None,
) -> None:
    """Predict with a client's model: one row an input, its class and all probabilities.

    Where the data has labels, the accuracy is told too.
    """
    from fedbn.data.new_samples import read_samples
    from fedbn.trained.trained_run import predict as predicted

    check_out(out)
    trained = opened(run, method, seed, setting)
    trained.model(client)
    samples = read_samples(data, trained.inputs)
    for text in samples.notes:
        say(text)
    found = predicted(trained, client, samples)
    if out is None:
        _print(found)
    else:
        write_out(out, found.to_csv())
        say(f"{len(found.inputs)} rows: {out}")
    if found.accuracy is not None:
        right = round(found.accuracy * len(found.inputs))
        emit(f"accuracy {found.accuracy:.1%} ({right} of {len(found.inputs)})")


def _print(found: Predictions) -> None:
    from fedbn.cli.data._common import print_table

    labelled = found.labels is not None
    rows = [
        [row[0], row[1], *(row[2:3] if labelled else []), f"{chances.max():.3f}"]
        for row, chances, _ in zip(found.rows(), found.proba, range(_SHOWN), strict=False)
    ]
    titles = ["input", "predicted", *(["label"] if labelled else []), "probability"]
    print_table(titles, rows)
    if len(found.inputs) > _SHOWN:
        say(f"the first {_SHOWN} of {len(found.inputs)}; --out FILE writes all, with every class")
