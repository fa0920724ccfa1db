"""Every experiment file loads, and every item runs for two rounds through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w

from commanding import call
from fedbn.experiments import configuration
from fedbn.experiments.configuration import changed, checked, held_experiment, read_toml, scaled
from fedbn.experiments.jobs import jobs
from fedbn.paper.items import entries
from fedbn.paper.numbers import table
from fedbn.runs.folder import RunFolder

FILES = sorted(configuration.folder().glob("*.toml"))
RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDS = sorted(file.parent.name for file in RESULTS.glob("*/config.toml"))
TRAINED = [entry.name for entry in entries() if entry.by == "trained"]
TINY = ("training.rounds=2", "model.args.width=2", "data.test_limit=10", "evaluation.every=1")
SWEEPS = {
    "digits-batch-epochs": ("training.batch_size=[50,'full']", "training.local_epochs=[1,2]"),
    "digits-data-size": ("data.percent=[20,10]",),
    "digits-heterogeneity": ("data.clients_per_domain=[1,2]",),
    "digits-local-epochs": ("training.local_epochs=[1,2]",),
}


@pytest.fixture(autouse=True)
def _no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path / "no data"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_file_says_what_it_is_and_is_right_at_both_scales(file: Path) -> None:
    header = file.read_text(encoding="utf-8").split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert "Where in the paper" in header
    command = "reproduce" if "reproduce" in (raw := read_toml(file)) else "run"
    assert f"fedbn {command} {file.stem}" in header
    assert jobs(checked(raw, file.name))
    assert jobs(checked(scaled(raw, "quick"), file.name))


@pytest.mark.parametrize("name", [entry.name for entry in entries()])
def test_an_item_that_trains_on_batches_states_what_happens_to_the_last_one(name: str) -> None:
    """Its published numbers depend on it, so they must not depend on the default."""
    training = read_toml(configuration.find(name)).get("training", {})
    in_batches = training and training.get("batch_size") != "full"
    expected = "merge" if name == "digits-centralized" else "keep"
    assert training.get("last_batch") == (expected if in_batches else None)


@pytest.mark.parametrize("name", RECORDS)
def test_committed_records_are_read_with_the_last_batch_they_were_made_with(name: str) -> None:
    """Most were made before the key existed, when every run kept its last batches."""
    experiment = held_experiment(RunFolder(RESULTS / name))
    expected = "merge" if name in ("centralized-0", "last-batch") else "keep"
    assert experiment.training.last_batch == expected


@pytest.mark.parametrize("name", [entry.name for entry in entries()])
def test_an_item_tells_its_place_and_its_cost_and_its_numbers_are_there(name: str) -> None:
    raw = read_toml(configuration.find(name))
    how = checked(raw).reproduce
    assert how is not None
    assert how.place
    assert how.cost.quick
    assert how.cost.paper
    assert all(table(one).numbers for one in how.paper)
    for changes in how.without.values():
        assert jobs(checked(changed(scaled(raw, "quick"), changes)))


@pytest.mark.parametrize("name", TRAINED)
def test_an_item_runs_for_two_rounds(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [*TINY, *(f"sweep.{sweep}" for sweep in SWEEPS.get(name, ()))]
    if name.startswith("digits") and name not in SWEEPS and name != "digits-unequal":
        settings.append("data.percent=10")
    asked = [part for setting in settings for part in ("--set", setting)]
    item = name if name.startswith("digits") else _on_embedded_data(name, tmp_path)
    answer = call("reproduce", item, *asked, "--seed", 3, "--workers", 1, "--out", out)
    assert answer.code == 0, answer.err
    result = json.loads((out / "result.json").read_bytes())
    assert "data digits_mini in place of" in " ".join(result["changes"])
    assert "digits_mini" in result["tables"][0]["note"]
    assert not any(
        c and c["paper"] for t in result["tables"] for r in t["rows"] for c in r["cells"]
    )
    figures = [out / figure for figure in result["figures"]]
    assert {figure.suffix for figure in figures} == {".svg", ".png"}
    assert all(figure.stat().st_size > 5000 for figure in figures)
    for suffix in ("csv", "md", "tex"):
        assert (out / f"{name}.{suffix}").read_text(encoding="utf-8")


def _on_embedded_data(name: str, folder: Path) -> Path:
    """Copy an item and change it, as a user does, so that it needs no files."""
    raw = {
        k: v for k, v in read_toml(configuration.find(name)).items() if k not in ("task", "sweep")
    }
    raw["quick"].pop("data", None)
    tiny = {"data": {"name": "digits_mini", "percent": 10}, "model": {"name": "small_cnn"}}
    file = folder / f"{name}.toml"
    file.write_text("# Mine\n" + tomli_w.dumps(changed(raw, tiny)), encoding="utf-8")
    return file
