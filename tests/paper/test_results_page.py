"""The tables of docs/reproduction.md are what a command makes of the records in docs/results."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scipy import stats

from commanding import call
from fedbn.paper.output import to_markdown
from fedbn.paper.shift_map import Scores, dials_table
from fedbn.results.paired_tests import paired
from reproducing import request

DOCS = Path(__file__).parents[2] / "docs"
LARGEST = 400_000  # bytes of records a job


@pytest.mark.parametrize(
    ("item", "folders", "tables"),
    [
        ("digits-methods", "digits-*", ("", "-gain")),
        ("digits-local-epochs", "sweep-local-epochs", ("", "-gain")),
        ("digits-data-size", "sweep-data-size", ("", "-gain")),
        ("digits-heterogeneity", "sweep-heterogeneity", ("", "-gain")),
        ("digits-batch-epochs", "sweep-batch-epochs", ("", "-gain")),
        ("digits-batch-epochs", "last-batch", ("",)),
        ("digits-centralized", "centralized-0", ("",)),
        ("office", "office-*", ("", "-gain")),
        ("office-authors", "authors-office-*", ("",)),
    ],
)
def test_tables_are_those_of_the_records(item: str, folders: str, tables: str, tmp_path: Path):
    runs = sorted(DOCS.glob(f"results/{folders}"))
    answer = call("reproduce", item, "--from", *runs, "--out", tmp_path)
    assert answer.code == 0, answer.err
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for table in tables:
        text = (tmp_path / f"{item}{table}.md").read_text(encoding="utf-8")
        rows = [row for row in text.splitlines() if row[:1] == "|"]
        assert len(rows) > 3
        assert "\n".join(rows) in page


def test_what_is_said_of_convergence_is_in_the_records() -> None:
    losses: dict[tuple[str, int, int], dict[str, float]] = defaultdict(dict)
    seen: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for file in sorted(DOCS.glob("results/digits-*/metrics.jsonl")):
        for record in map(json.loads, file.read_text().splitlines()):
            key = record["method"], record["seed"], record["round"]
            if (record["split"], record["metric"]) == ("train", "loss"):
                losses[key][record["client"]] = record["value"]
            elif record["metric"] == "training_loss":
                seen[key].append(record["value"])
    seeds = sorted({seed for method, seed, _ in losses if method == "fedbn"})
    rounds = range(25, 301, 25)
    lower, ratios = [], []
    for seed in seeds:
        both = [(losses["fedavg", seed, n], losses["fedbn", seed, n]) for n in rounds]
        lower += [own[client] < other[client] for other, own in both for client in own]
        ratios.append([fmean(other.values()) / fmean(own.values()) for other, own in both])
    means = [fmean(map(math.log, own)) for own in ratios]
    reach = float(stats.t.ppf(0.975, len(seeds) - 1)) * stdev(means) / math.sqrt(len(seeds))
    middle, low, high = (math.exp(fmean(means) + by) for by in (0, -reach, reach))
    batches = [
        fmean(
            math.log(fmean(seen["fedavg", s, n]) / fmean(seen["fedbn", s, n]))
            for n in range(1, 301)
        )
        for s in seeds
    ]
    level = paired(batches)
    assert level.low is not None
    assert level.high is not None
    times = [f"{math.exp(by):.2f}" for by in (fmean(batches), level.low, level.high)]
    counts = [
        sum(fmean(seen["fedbn", s, n]) < fmean(seen["fedavg", s, n]) for n in range(1, 301))
        for s in seeds
    ]
    page = " ".join((DOCS / "reproduction.md").read_text(encoding="utf-8").split())
    every = [ratio for own in ratios for ratio in own]
    assert f"n = {len(seeds)}, 300 of 300 epochs" in page
    assert f"({sum(lower)} of {len(lower)})" in page
    assert f"{min(every):.0f} to {max(every):.0f} times as high" in page
    assert f"{middle:.0f} times ({low:.0f} to {high:.0f}, over seeds)" in page
    assert f"{times[0]} times as high ({times[1]} to {times[2]})" in page
    assert f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} of 300 epochs" in page


def _gains(folders: str, setting: str, metric: str, last: int) -> dict[str, list[float]]:
    """What FedBN gains over FedAvg in points, at each client, a number a seed."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for file in sorted(DOCS.glob(f"results/{folders}/metrics.jsonl")):
        for row in map(json.loads, file.read_text().splitlines()):
            kind = row["setting"], row["split"], row["metric"], row["round"]
            if kind == (setting, "test", metric, last):
                found[row["method"], row["client"]][row["seed"]] = 100 * row["value"]
    return {
        client: [value - found["fedavg", client][seed] for seed, value in sorted(own.items())]
        for (method, client), own in found.items()
        if method == "fedbn"
    }


def _said(value: float | None) -> str:
    return f"{value:+.1f}".replace("-", "−")


def test_the_gains_in_the_mean_are_those_of_the_records() -> None:
    def mean(gains: dict[str, list[float]], but: str = "") -> list[float]:
        kept = [own for client, own in gains.items() if client != but]
        return [fmean(values) for values in zip(*kept, strict=True)]

    digits = _gains("digits-*", "default", "accuracy", 300)
    measured, normalised = (
        _gains("heart", f"normalise={known},batchnorm=True", "label_accuracy", 15)
        for known in (False, True)
    )
    ranked = [
        mean(_gains("heart", f"normalise={known},batchnorm=True", "auroc", 15))
        for known in (False, True)
    ]
    means = mean(measured), mean(normalised)
    apart = [a - b for a, b in zip(*means, strict=True)]
    page = " ".join((DOCS / "reproduction.md").read_text(encoding="utf-8").split())
    for gaps in (mean(digits), mean(digits, "synthdigits"), *means, *ranked, apart):
        test = paired(gaps)
        said = _said(test.difference), f"{_said(test.low)} to {_said(test.high)}"
        assert " (".join(said) in page or ", ".join(said) in page, said
    others = paired(mean(measured, "switzerland"))
    said = _said(others.difference), f"{_said(others.low)} to {_said(others.high)}"
    assert "the other three " + ", ".join(said) in page


def test_the_table_of_hospitals_is_that_of_the_records(tmp_path: Path) -> None:
    answer = call("reproduce", "heart", "--from", DOCS / "results" / "heart", "--out", tmp_path)
    assert answer.code == 0, answer.err
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in csv.DictReader((tmp_path / "heart.csv").read_text(encoding="utf-8").splitlines()):
        text = f"{float(cell['ours']):.1f} ({float(cell['std']):.1f})"
        rows[cell["setting"], cell["method"]].append(text)
    assert len(rows) == 20
    for row in rows.values():
        assert " | ".join(row) in page


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
