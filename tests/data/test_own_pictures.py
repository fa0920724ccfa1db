"""One's own pictures: patients, manifests, normalising, grey, and folders larger than memory."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from loading import read_samples
from PIL import Image

import fedbn
from fedbn.core.federation import Split
from fedbn.data import own_pictures
from fedbn.data.checks import examine_path, recognize
from fedbn.data.lazy_split import LazySplit
from fedbn.datasets.own_files import folders
from fedbn.errors import ConfigError, DataError
from fedbn.trained.evaluation import domain_tests
from fedbn.trained.joining import with_client


@pytest.fixture
def pictures(tmp_path):
    """Two sites, two classes, six patients with two pictures each."""
    draws = np.random.default_rng(0)
    for site in ("north", "south"):
        for at in range(12):
            name = (
                tmp_path / "pictures" / site / ("cat", "dog")[at // 6] / f"p{at // 2}_{at % 2}.png"
            )
            name.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draws.integers(0, 256, (8, 8, 3), np.uint8)).save(name)
    return tmp_path / "pictures"


def manifest(pictures, change=lambda rows: rows, name="list.csv"):
    rows = [["path", "label", "site", "patient", "split"]]
    for file in sorted(pictures.rglob("*.png")):
        patient = file.name.split("_")[0]
        split = "test" if patient in ("p2", "p5") else "train"
        rows.append(
            [str(file.relative_to(pictures)), file.parent.name, file.parts[-3], patient, split]
        )
    with (pictures / name).open("w", newline="") as stream:
        csv.writer(stream).writerows(change(rows))
    return str(pictures / name)


def files_of(split):
    return set(split.groups.tolist())


def test_a_pattern_in_the_name_keeps_a_patient_on_one_side(pictures):
    made = folders(str(pictures), group=r"^(p\d+)_", test_share=0.34)
    for client in made.clients:
        assert len(client.train.groups.unique()) == 4
        assert len(client.tests[client.name].groups.unique()) == 2
    assert not any("begin alike" in text for text in made.remarks)
    with pytest.raises(DataError, match=r"does not match data\.group"):
        folders(str(pictures), group="^x")
    with pytest.raises(ConfigError, match="no regular expression"):
        folders(str(pictures), group="(")


def test_a_manifest_reads_as_the_folders_it_names(pictures):
    made = folders(manifest(pictures))
    assert [client.name for client in made.clients] == ["north", "south"]
    assert made.classes == ("cat", "dog")
    assert [len(made.clients[0].train), len(made.clients[0].tests["north"])] == [8, 4]
    undivided = folders(manifest(pictures, lambda rows: [row[:4] for row in rows]), test_share=0.34)
    assert len(undivided.clients[0].tests["north"].groups.unique()) == 2
    kind, text = recognize(manifest(pictures))
    assert (kind, "a manifest of pictures" in text) == ("folders", True)
    result = fedbn.fit(manifest(pictures), rounds=1, notes=lambda text: None)
    assert sorted(result.models) == ["north", "south"]
    assert examine_path(manifest(pictures), {}, lambda changed: made) == []


def test_a_pattern_finds_the_patients_of_a_manifest_that_names_none(pictures):
    path = manifest(pictures, lambda rows: [row[:3] for row in rows])
    made = folders(path, group=r"^(p\d+)_", test_share=0.34, group_scope="site")
    for client in made.clients:
        assert len(client.train.groups.unique()) == 4
        assert len(client.tests[client.name].groups.unique()) == 2
    assert made.remarks == ()
    with pytest.raises(DataError, match=r"does not match data\.group"):
        folders(path, group="^x")


def changed(row, column, value):
    def change(rows):
        rows[row][column] = value
        return rows

    return change


@pytest.mark.shows("S07", "S08", "S09")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (changed(3, 0, "gone.png"), r"row 4: .*gone\.png: no such file"),
        (changed(1, 4, "test"), "site north: 'p0' is in both train and test"),
        (changed(2, 4, "tset"), r"row 3: unknown split 'tset': did you mean 'test'"),
        (changed(2, 3, ""), "row 3: no value in 'patient'"),
        (changed(2, 1, ""), r"row 3: no value in 'label'"),
        (lambda rows: [row for row in rows if row[4] != "test"], "no row of split 'test'"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_one_line(pictures, change, match):
    with pytest.raises(DataError, match=match):
        folders(manifest(pictures, change))


@pytest.mark.shows("S08")
def test_a_patient_in_train_and_test_folders_is_refused(pictures):
    for file in sorted(pictures.rglob("*.png")):
        part = "test" if file.name.endswith("_1.png") else "train"
        target = file.parents[1] / part / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    for site in ("north", "south"):
        for name in ("cat", "dog"):
            (pictures / site / name).rmdir()
    folders(str(pictures))
    with pytest.raises(DataError, match="'p0' is in both train and test"):
        folders(str(pictures), group=r"^(p\d+)_")


def test_pictures_may_stay_grey_be_normalised_and_augmented(pictures):
    plain = folders(str(pictures))
    grey = folders(str(pictures), channels=1)
    assert grey.input_shape == (1, 8, 8)
    usual = folders(str(pictures), normalize="imagenet", augment=True)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in own_pictures._IMAGENET)
    x = plain.clients[0].train.x / 255
    assert torch.allclose(usual.clients[0].train.x, (x - mean) / deviation, atol=1e-5)
    assert usual.clients[0].train.augment is not None
    assert usual.clients[0].tests["north"].augment is None
    assert usual.preparation["normalize"] == own_pictures._IMAGENET
    with pytest.raises(ConfigError, match=r"normalize has 3 means, data\.channels is 1"):
        folders(str(pictures), channels=1, normalize="imagenet")
    with pytest.raises(ConfigError, match=r"data\.normalize.*legal are 'imagenet'"):
        fedbn.fit(str(pictures), rounds=1, data__normalize=[[0.5], [0.0]])


def test_a_trained_model_prepares_new_pictures_as_its_own(pictures, tmp_path):
    fitted = fedbn.fit(
        str(pictures), rounds=1, data__normalize="imagenet", out=tmp_path / "run",
        notes=lambda text: None,
    )  # fmt: skip
    test = fitted.federation.clients[0].train
    samples = read_samples(pictures / "north", fedbn.open_run(tmp_path / "run").inputs)
    assert all(any(torch.equal(x, other) for other in samples.x) for x in test.x[:2])


@pytest.mark.parametrize("workers", [0, 1])
def test_folders_larger_than_memory_are_read_lazily_to_the_same_bits(
    pictures, monkeypatch, workers
):
    held = fedbn.fit(str(pictures), rounds=2, data__group=r"^(p\d+)_", notes=lambda text: None)
    monkeypatch.setattr(own_pictures, "free_memory", lambda: 1000.0)
    said = []
    lazy = fedbn.fit(
        str(pictures), rounds=2, data__group=r"^(p\d+)_", data__workers=workers, notes=said.append
    )
    assert isinstance(held.federation.clients[0].train, Split)
    assert isinstance(lazy.federation.clients[0].train, LazySplit)
    assert any("read when they are needed" in text for text in said)
    assert held.records == lazy.records


def test_a_run_keeps_how_its_pictures_were_read(pictures, tmp_path, monkeypatch):
    how = {"rounds": 1, "out": tmp_path / "run", "notes": lambda text: None}
    fedbn.fit(str(pictures), **how)
    assert "lazy = false" in (tmp_path / "run" / "config.toml").read_text()
    monkeypatch.setattr(own_pictures, "free_memory", lambda: 1000.0)
    held = fedbn.open_run(tmp_path / "run").federation
    assert isinstance(held.clients[0].train, Split)


def test_a_damaged_picture_that_is_read_later_is_named(pictures):
    next(pictures.rglob("p1_0.png")).write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"site north, .*sample \d+: .*p1_0\.png: not a picture"):
        fedbn.fit(str(pictures), rounds=1, data__lazy=True, data__size=8, notes=lambda text: None)


def test_pictures_of_8_and_of_16_bit_read_later_are_those_in_memory(pictures, tmp_path):
    """At one site, where data.depth says what 16 bit mean; a run remembers it either way."""
    for name in ("p0_0.png", "p4_1.png"):
        for file in pictures.rglob(name):
            Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 60).save(file)
    how = {"rounds": 2, "data__size": 8, "notes": lambda text: None}
    held, lazy = (
        fedbn.fit(str(pictures), out=tmp_path / f"{late}", data__lazy=late, data__depth=4095, **how)
        for late in (False, True)
    )
    assert held.records == lazy.records
    files = [read_samples(pictures / "north", run.inputs) for run in (held, lazy)]
    assert lazy.inputs["preparation"]["depth"] == 4095
    assert torch.equal(files[0].x, files[1].x)
    assert files[1].notes == ()
    with pytest.raises(DataError, match=r"sample \d+: .*must be alike \(.*set data\.depth: 65535"):
        fedbn.fit(str(pictures), data__lazy=True, **how)


def test_pictures_beside_train_and_test_are_not_left_out_silently(tmp_path):
    for part in ("train", "test", "val"):
        for number, name in enumerate(("cat", "dog", "cat")):
            home = tmp_path / "sites" / "a" / part / name
            home.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(home / f"{number}.png")
    (tmp_path / "sites" / "a" / "notes").mkdir()
    says = r"a/val: pictures in an unknown part 'val': did you mean 'valid'\?"
    with pytest.raises(DataError, match=says):
        folders(str(tmp_path / "sites"))
    (tmp_path / "sites" / "a" / "val").rename(tmp_path / "sites" / "a" / "valid")
    assert len(folders(str(tmp_path / "sites")).clients[0].valid) == 3


def test_a_site_in_memory_is_scored_beside_those_that_are_read_later(pictures):
    """As one that joined a run on pictures read later, whose own data is small."""
    run = fedbn.fit(str(pictures), rounds=1, data__lazy=True, notes=lambda text: None)
    (new,) = folders(str(pictures), lazy=False).clients[:1]
    both = with_client(run.federation, replace(new, name="new", tests={"new": new.tests["north"]}))
    tests = domain_tests(replace(run, source=lambda: both))
    assert {name: type(split) for name, split in tests.items()} == {
        "north": LazySplit,
        "south": LazySplit,
        "new": Split,
    }
