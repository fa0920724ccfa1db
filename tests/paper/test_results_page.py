"""The tables of docs/reproduction.md are what a command makes of the records in docs/results."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from commanding import call
from fedbn.paper.output import to_markdown
from fedbn.paper.shift_map import Scores, dials_table
from reproducing import request

DOCS = Path(__file__).parents[2] / "docs"
LARGEST = 400_000  # bytes of records a job


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results") / "digits-methods"
    runs = sorted(DOCS.glob("results/digits-*"))
    answer = call("reproduce", "digits-methods", "--from", *runs, "--out", out)
    assert answer.code == 0, answer.err
    return out


@pytest.mark.parametrize("table", ["digits-methods.md", "digits-methods-gain.md"])
def test_a_table_is_that_of_the_records(made: Path, table: str):
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    rows = [
        row for row in (made / table).read_text(encoding="utf-8").splitlines() if row[:1] == "|"
    ]
    assert len(rows) > 3
    assert "\n".join(rows) in page


def test_records_are_small_and_name_no_machine():
    for file in DOCS.glob("results/*/metrics.jsonl"):
        run, rows = file.parent, file.read_text()
        text = (run / "environment.json").read_text() + (run / "config.toml").read_text()
        jobs = {line.partition('"round"')[0] for line in rows.splitlines()}
        assert len(rows.encode()) <= LARGEST * len(jobs)
        assert '"directory": "."' in text
        assert "/root" not in text


@pytest.mark.parametrize(
    "table",
    [
        "shift-map/shift-map-dials.md",
        "shift-map/shift-map-longer.md",
        "methods/methods-digits_mini-gain.md",
        "methods/methods-heart-gain.md",
        "leak/leak.md",
    ],
)
def test_the_page_of_methods_shows_the_tables_as_they_were_made(table: str):
    page = (DOCS / "which-method.md").read_text(encoding="utf-8")
    made = (DOCS / "results" / table).read_text(encoding="utf-8").splitlines()
    assert "\n".join(row for row in made if row[:1] == "|") in page


def test_the_map_is_what_its_accuracies_say():
    folder = DOCS / "results" / "shift-map"
    scores: Scores = defaultdict(lambda: defaultdict(dict))
    for row in csv.DictReader((folder / "shift-map-scores.csv").read_text().splitlines()):
        own = scores[row["dial"], row["strength"]][row["method"]]
        own[int(row["seed"])] = float(row["accuracy"])
    asked = request("shift-map", folder, scale="paper")
    assert len(scores) == 65
    made = to_markdown(dials_table(asked, scores))
    assert made == (folder / "shift-map-dials.md").read_text(encoding="utf-8")
