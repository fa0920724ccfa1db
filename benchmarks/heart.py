"""Heart disease at four hospitals, below FEDBN_DATA/heart: `python -m benchmarks.heart`.

The rows are those of Fed-Heart-Disease (FLamby): ten columns, rows with a gap left out, the label
num > 0.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from torch import nn

import fedbn
from fedbn.results.aggregate import ScoreTable, summarize
from fedbn.runs import metrics
from fedbn.runs.folder import RunFolder

COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
SETTINGS = {
    "data__label": "disease",
    "data__categorical": ["cp", "restecg"],
    "data__test_share": 0.34,
    "training__lr": 0.02,
    "training__last_batch": "merge",
    "task__class_weights": "balanced",
    "evaluation__every": 10,
}


def net(classes: int, input_shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """Build a network whose inputs each site levels by BatchNorm of its own."""
    (inputs,) = input_shape
    hidden = [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(nn.BatchNorm1d(inputs), *hidden, nn.Linear(width, classes))


def write(source: Path, folder: Path) -> None:
    """Write each hospital's complete rows as a table."""
    for file in source.glob("processed.*.data"):
        rows = [line.split(",") for line in file.read_text().split()]
        lines = [",".join([*COLUMNS, "disease"])]
        for row in rows:
            if not {"?", "NaN"} & set(row[:10]):
                sick = "sick" if float(row[13]) > 0 else "well"
                lines.append(",".join([*(str(float(cell)) for cell in row[:10]), sick]))
        (folder / f"{file.name.split('.')[1]}.csv").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Train four methods with five seeds, and print the table."""
    with tempfile.TemporaryDirectory() as home:
        tables, run = Path(home) / "heart", Path(home) / "run"
        tables.mkdir()
        write(Path(os.environ["FEDBN_DATA"]) / "heart", tables)
        found = fedbn.fit(
            tables,
            net,
            methods=["singleset", "fedavg", "fedprox", "fedbn"],
            seeds=[0, 1, 2, 3, 4],
            rounds=30,
            metrics=["balanced_accuracy", "auroc", "accuracy"],
            out=run,
            **SETTINGS,
        )
        metric = next(iter(found.runs.values())).metric
        table = summarize(ScoreTable.of(metrics.read(RunFolder(run).metrics), metric))
    print(f"test {metric.title}", *table.columns, sep="\t")
    for row in table.rows:
        cells = (str(row.cells.get(column, "–")) for column in table.columns)
        print(row.key.label, *cells, sep="\t")


if __name__ == "__main__":
    main()
