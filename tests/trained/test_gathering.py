"""What a report finds in a run folder, whole or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from commanding import newest, with_running_statistics
from fedbn.errors import ConfigError
from fedbn.report.reading import gather
from fedbn.trained.opening import open_run


def test_a_whole_run_misses_nothing_but_pictures(finished, sites):
    found = gather(finished)
    assert found.notes == (f"read {sites}, which {finished / 'config.toml'} names",)
    assert found.missing == {"examples": "the samples are no pictures"}
    assert {r["method"] for r in found.records} == {"fedavg", "fedbn"}


def test_statistics_are_the_clients_own(finished):
    found, state = gather(finished).facts, open_run(finished).state
    layer = found.layers[0]
    assert layer.clients == ("a", "b")
    for row, client in zip(layer.mean, layer.clients, strict=True):
        expected = state.local[client].state[f"{layer.name}.running_mean"]
        assert np.array_equal(row, expected.double().numpy())


def test_a_confusion_agrees_with_the_recorded_accuracy(finished):
    found = gather(finished)
    last = {
        r["client"]: r["value"]
        for r in with_running_statistics(found.records)
        if (r["method"], r["split"], r["metric"], r["round"]) == ("fedbn", "test", "accuracy", 3)
    }
    right = {c.client: c.counts.trace() / c.counts.sum() for c in found.facts.confusions}
    assert right == last


def test_what_is_shared_is_counted_from_the_checkpoint(finished):
    entries = gather(finished).facts.entries
    shared = [entry for entry, sent in entries if sent]
    exchange = next(e for e in gather(finished).exchanges if e.method == "fedbn")
    assert exchange.shared == (len(shared), sum(e.bytes for e in shared))
    assert exchange.local[0] == len(entries) - len(shared)
    assert (exchange.clients, exchange.rounds) == (2, 3)


def test_fedavg_has_no_statistics_to_compare(finished):
    why = gather(finished, method="fedavg").missing["statistics"]
    assert why == "under fedavg all clients share the same BatchNorm statistics"


def test_a_run_whose_data_is_gone_keeps_its_statistics(finished):
    elsewhere = str(finished / "gone")
    for name in ("config.toml", "environment.json"):
        file = finished / name
        path = json.loads((finished / "environment.json").read_text())["config"]["data"]["path"]
        file.write_text(file.read_text().replace(path, elsewhere))
    found = gather(finished)
    assert found.facts.layers
    assert found.facts.confusions == ()
    assert elsewhere in found.missing["confusions"]


def test_data_that_has_changed_is_said(finished):
    file = finished / "environment.json"
    environment = json.loads(file.read_text())
    file.write_text(json.dumps({**environment, "data": {**environment["data"], "b": "0" * 64}}))
    said = "The data has changed since the run was begun: b"
    assert [note for note in gather(finished).notes if "has changed" in note] == [said]


def test_a_run_without_a_whole_checkpoint_keeps_its_records(finished):
    for file in finished.rglob("*.safetensors"):
        file.write_bytes(b"")
    found = gather(finished)
    assert found.facts is None
    assert found.records
    assert "no whole checkpoint is left" in found.missing["statistics"]
    assert found.missing["exchange"] == "no whole checkpoint tells what was shared"


def test_a_damaged_newest_checkpoint_is_said(finished):
    (newest(finished) / "state.safetensors").write_bytes(b"no")
    found = gather(finished)
    assert found.facts.round == 2
    assert any("damaged" in note for note in found.notes)


def test_lines_that_are_no_records_are_left_out_and_counted(finished):
    whole = gather(finished).records
    with (finished / "metrics.jsonl").open("ab") as file:
        file.write(b'[1]\n{"round": 1}\nnull\n\xff\n' + b"[" * 100_000 + b"\n")
    found = gather(finished)
    assert found.records == whole
    assert any("5 of" in note and "are no records" in note for note in found.notes)


def test_jobs_that_are_under_way_are_read_from_their_own_files(finished):
    (finished / "metrics.jsonl").write_bytes(b"")
    assert {r["method"] for r in gather(finished).records} == {"fedavg", "fedbn"}


def test_an_unfinished_run_says_how_far_it_is(finished):
    shutil.rmtree(newest(finished))
    assert gather(finished).notes[0] == (
        "This run is not finished: 1 of 2 jobs are done; fedbn seed 0 at round 2 of 3"
    )


def test_a_request_that_never_began_is_a_report_of_its_configuration(tmp_path):
    (tmp_path / "request.toml").write_text('directory = "."\n[request]\nseeds = [0]\n')
    found = gather(tmp_path)
    assert (found.records, found.facts, found.config) == ([], None, {"seeds": [0]})


def test_a_newer_format_is_said(finished):
    file = finished / "config.toml"
    file.write_text(file.read_text().replace("format = 1", "format = 9"))
    assert "newer fedbn" in gather(finished).missing["statistics"]


@pytest.mark.parametrize("choice", [{"method": "fedbm"}, {"seed": 7}, {"setting": "x"}])
def test_what_the_run_does_not_have_is_refused(finished, choice):
    (what,) = choice
    with pytest.raises(ConfigError, match=f"unknown {what} "):
        gather(finished, **choice)


def test_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no run here"):
        gather(tmp_path)
