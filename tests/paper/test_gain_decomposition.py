"""What FedBN's gain is made of: parts are stored, gone on with, tabulated and drawn."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.errors import ConfigError, DamagedRun
from fedbn.paper.gain_decomposition import gain_decomposition, redivided
from fedbn.paper.gain_parts import Part, read, write
from fedbn.paper.items import Outcome
from reproducing import numbers, request

NAME = "gain-decomposition"
TINY = (
    "reproduce.options.most_rounds=2",
    'reproduce.options.parts.brightness.change.model={name="small_cnn", args={width=2}}',
    'reproduce.options.parts.demo.change={model={name="small_cnn", args={width=2}}, '
    "data={name='digits_mini', percent=20, test_limit=20}}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gain")


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Outcome:
    return gain_decomposition(request(NAME, folder, *TINY))


def test_the_pieces_add_up_to_the_gain_as_printed(outcome: Outcome):
    tables = {table.name.removeprefix(NAME): numbers(table) for table in outcome.tables}
    assert [*tables[""]] == [("embedded digits",), ("brightness 0.6",)]
    for label, (printed, *pieces) in tables["-pieces"].items():
        assert printed == pytest.approx(sum(pieces))
        fedavg, fedbn, gain, exact, both, difference = tables[""][label]
        assert printed == pytest.approx(gain)
        assert gain == pytest.approx(fedbn - fedavg)
        assert difference == pytest.approx(both - exact)
        remains = tables["-remains"][label]
        assert remains[0] == pytest.approx(gain)
        assert remains[3] == pytest.approx(difference)
        assert remains[1] == pytest.approx(both - fedavg - tables["-global"][label][3])


def test_tables_are_made_of_what_is_stored(outcome: Outcome, folder: Path):
    lines = (folder / "parts" / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    parts = [json.loads(line) for line in lines]
    assert [(part["split"], part["seed"]) for part in parts] == [(0, 0), (0, 1)]
    assert parts[0]["settings"]["training"]["rounds"] == 2
    assert parts[0]["clients"] == ["plain", "inverted", "photo", "faded", "painted"]
    assert parts[0]["test"] == [20] * 5

    def mean(weights: str, statistics: str) -> float:
        return fmean(fmean(part["scores"][weights][statistics]) for part in parts)

    tables = {table.name.removeprefix(NAME): numbers(table) for table in outcome.tables}
    key = "embedded digits"
    assert tables[""][(key,)][0] == pytest.approx(mean("fedavg", "running"))
    assert tables["-dose"][key, "FedBN"][0] == pytest.approx(
        mean("fedbn", "another client") - mean("fedbn", "exact")
    )
    assert tables["-lag"][key, "FedAvg"][1] == pytest.approx(
        mean("fedavg, before averaging", "local") - mean("fedavg, before averaging", "exact")
    )
    assert tables["-windows"][key, "FedAvg, averaged"][3] == pytest.approx(
        mean("fedavg", "averaged window all") - mean("fedavg", "averaged exact")
    )
    assert tables["-affine"][key, "FedAvg"][0] == pytest.approx(
        mean("fedavg, tuned affine", "pooled") - mean("fedavg", "pooled")
    )
    assert tables["-affine"][key, "FedBN"][1] == pytest.approx(
        mean("fedbn", "exact") - mean("fedbn, mean affine", "exact")
    )
    ratios = [
        math.log(fmean(part["losses"]["fedavg"]["running"]["2"]))
        - math.log(fmean(part["losses"]["fedbn"]["running"]["2"]))
        for part in parts
    ]
    assert tables["-loss"][key, "last round"][1] == pytest.approx(math.exp(fmean(ratios)))


def test_the_figure_is_drawn(outcome: Outcome):
    assert [figure.name for figure in outcome.figures] == [f"{NAME}.svg", f"{NAME}.png"]
    text = outcome.figures[0].read_text(encoding="utf-8")
    assert all(said in text for said in ("embedded digits", "as printed", "FedBN is ahead"))


def test_a_stored_part_is_not_trained_again(
    outcome: Outcome, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedbn.paper.gain_decomposition.measure", None)
    again = gain_decomposition(request(NAME, folder, *TINY))
    assert again.tables == outcome.tables


def test_only_the_part_that_is_missing_is_trained(outcome: Outcome, folder: Path, tmp_path: Path):
    file = tmp_path / "parts" / "brightness.jsonl"
    stored = read(folder / "parts" / "brightness.jsonl")
    told: list[str] = []
    write(file, stored[1:])
    asked = request(NAME, tmp_path, *TINY, 'reproduce.options.only=["brightness"]')
    gain_decomposition(replace(asked, tell=told.append))
    assert told == ["brightness 0.6: division 0, seed 0"]
    assert read(file) == stored  # the same numbers again, in the same place


def test_parts_of_other_settings_are_not_mixed(outcome: Outcome, folder: Path):
    asked = request(NAME, folder, *TINY[1:], "reproduce.options.most_rounds=3")
    with pytest.raises(ConfigError, match=r"made with training.rounds = 2, but 3 is asked for"):
        gain_decomposition(asked)


def test_data_that_is_not_there_is_left_out_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDBN_DATA", str(tmp_path / "nothing"))
    only = 'reproduce.options.only=["demo", "heart", "retina"]'
    made = gain_decomposition(request(NAME, tmp_path, *TINY, only))
    assert made.remarks == (
        "heart disease: left out, its files are not there",
        "retinal vessels (Dice): left out, its files are not there",
    )
    with pytest.raises(ConfigError, match="no data set has a seed that is finished"):
        gain_decomposition(request(NAME, tmp_path, 'reproduce.options.only=["heart"]'))


def test_an_unknown_data_set_or_key_is_named(tmp_path: Path):
    asked = request(NAME, tmp_path, 'reproduce.options.only=["hearts"]')
    with pytest.raises(ConfigError, match="heart"):
        gain_decomposition(asked)
    asked = request(NAME, tmp_path, "reproduce.options.parts.demo.split=2")
    with pytest.raises(ConfigError, match=r"parts.demo.splits"):
        gain_decomposition(asked)


def test_a_damaged_file_of_parts_is_named(tmp_path: Path):
    file = tmp_path / "demo.jsonl"
    file.write_text('{"split": 0', encoding="utf-8")
    with pytest.raises(DamagedRun, match=r"demo.jsonl: expected one part per line"):
        read(file)


def test_a_division_keeps_sizes_classes_and_groups():
    y = torch.arange(2).repeat(30)
    train = Split(torch.arange(40.0)[:, None], y[:40], groups=torch.arange(20).repeat_interleave(2))
    test = Split(torch.arange(40.0, 60)[:, None], y[40:], groups=torch.arange(10).repeat(2))
    federation = Federation("f", (Client("a", "a", train, {"a": test}),), ("0", "1"))
    assert redivided(federation, 0) is federation
    one, two = (redivided(federation, split).clients[0] for split in (1, 2))
    for client in (one, two):
        assert (len(client.train), len(client.tests["a"])) == (40, 20)
        samples = [*client.train.x[:, 0].tolist(), *client.tests["a"].x[:, 0].tolist()]
        assert sorted(samples) == list(range(60))
        held = client.tests["a"].groups
        assert held is not None
        assert not set(held.tolist()) & set(client.train.groups.tolist())
    assert one.train.x.tolist() != two.train.x.tolist()


def test_parts_are_written_in_their_order(tmp_path: Path):
    parts = [
        Part(split, seed, "accuracy, %", ("a",), (2,), (3,), {}, {"fedavg": {"exact": (1.5,)}}, {})
        for split, seed in ((1, 0), (0, 2), (0, 1))
    ]
    write(tmp_path / "one" / "demo.jsonl", parts)
    found = read(tmp_path / "one" / "demo.jsonl")
    assert [(part.split, part.seed) for part in found] == [(0, 1), (0, 2), (1, 0)]
