"""The tables of docs/reproduction.md are what a command makes of the records in docs/results."""

from __future__ import annotations

from pathlib import Path

import pytest

from commanding import call

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
    for run in DOCS.glob("results/*/"):
        rows = (run / "metrics.jsonl").read_text()
        text = (run / "environment.json").read_text() + (run / "config.toml").read_text()
        jobs = {line.partition('"round"')[0] for line in rows.splitlines()}
        assert len(rows.encode()) <= LARGEST * len(jobs)
        assert '"directory": "."' in text
        assert "/root" not in text
