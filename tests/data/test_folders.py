"""A user's own picture folders."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import loaded
from PIL import Image

from commanding import call
from fedbn.core.findings import check_federation
from fedbn.datasets.own_files import folders
from fedbn.errors import ConfigError, DataError


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with nothing in it."""
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def make(root: Path, counts: dict[str, int], size: int = 8) -> Path:
    """Pictures as SITE/CLASS, or SITE/train/CLASS, each of its own grey value."""
    for number, (place, count) in enumerate(counts.items()):
        (root / place).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            grey = Image.new("L", (size, size), 10 * number + index)
            grey.save(root / place / f"{index:02}.png")
    return root


def test_sites_classes_and_a_stratified_seeded_split(own):
    make(own, {"north/dog": 10, "north/cat": 5, "süd/cat": 10, "süd/dog": 5})
    federation = folders(str(own))
    assert [client.name for client in federation.clients] == ["north", "süd"]
    assert federation.classes == ("cat", "dog")
    north = federation.clients[0]
    assert north.train.y.bincount().tolist() == [4, 8]
    assert north.tests["north"].y.bincount().tolist() == [1, 2]
    assert north.train.x.shape == (12, 3, 8, 8)
    assert north.train.x.dtype == torch.uint8
    again, other = folders(str(own)), folders(str(own), split_seed=1)
    assert again.fingerprint() == federation.fingerprint()
    assert other.fingerprint() != federation.fingerprint()
    assert check_federation(federation) == []


def test_given_train_test_and_valid_are_used(own):
    make(
        own,
        {
            **{f"a/train/{c}": 4 for c in ("x", "y")},
            **{f"a/test/{c}": 2 for c in ("x", "y")},
            **{f"a/valid/{c}": 1 for c in ("x", "y")},
            **{f"b/{c}": 5 for c in ("x", "y")},
        },
    )
    a, b = folders(str(own)).clients
    assert (len(a.train), len(a.tests["a"]), len(a.valid)) == (8, 4, 2)
    assert (len(b.train), len(b.tests["b"]), b.valid) == (8, 2, None)


def test_a_class_may_be_called_train(own):
    make(own, {"a/train": 5, "a/bus": 5})
    assert folders(str(own)).classes == ("bus", "train")


def test_train_without_test_is_an_error(own):
    make(own, {"a/train/x": 5, "a/valid/x": 5})
    with pytest.raises(DataError, match="has train/, valid/ but no test/"):
        folders(str(own))


@pytest.mark.shows("D25")
def test_a_class_missing_at_a_site_is_only_warned_of(own):
    make(own, {"a/x": 5, "a/y": 5, "b/x": 5})
    warnings = check_federation(folders(str(own)))
    assert warnings == ["client b has no training sample of class y"]


def test_size_is_chosen_and_said_or_given(own):
    make(own, {"a/x": 5, "a/y": 5}, size=40)
    make(own, {"b/x": 5, "b/y": 5}, size=50)
    chosen = folders(str(own))
    assert chosen.input_shape == (3, 32, 32)
    assert chosen.remarks == ("pictures of 40×40 to 50×50 pixels resized to 32×32",)
    given = folders(str(own), size=12)
    assert given.input_shape == (3, 12, 12)
    assert given.remarks == ()


def test_the_cache_gives_the_same_pixels(own, data_folder):
    make(own, {"a/x": 5, "a/y": 5})
    plain = folders(str(own)).fingerprint()
    assert not list(data_folder.rglob("x.npy"))
    assert [folders(str(own), cache=True).fingerprint() for _ in range(2)] == [plain, plain]
    assert list(data_folder.rglob("x.npy"))


def test_the_cache_keeps_sites_apart_whose_files_have_names_sizes_and_times_in_common(own):
    parts = [f"{part}/{label}" for part in ("train", "test") for label in "xy"]
    make(own, {f"{site}/{part}": 2 for site in "ab" for part in parts})
    for file in own.rglob("*.png"):
        Image.open(file).save(file.with_suffix(".bmp"))
        file.unlink()
        os.utime(file.with_suffix(".bmp"), ns=(10**18, 10**18))
    assert folders(str(own), cache=True).fingerprint() == folders(str(own)).fingerprint()


def test_an_entry_that_knows_only_names_sizes_and_times_is_not_believed(own, data_folder):
    make(own, {"a/train/x": 2, "a/train/y": 2, "a/test/x": 1, "a/test/y": 1})
    files = [own / "a" / "train" / label / f"{n:02}.png" for label in "xy" for n in range(2)]
    known = [[f.name, 1, f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    text = json.dumps({"pixels": 1, "size": 8, "files": known}, sort_keys=True)
    entry = data_folder / ".cache" / "folders" / hashlib.sha256(text.encode()).hexdigest()[:20]
    entry.mkdir(parents=True)
    np.save(entry / "x.npy", np.full((4, 3, 8, 8), 255, np.uint8))
    assert folders(str(own), cache=True).fingerprint() == folders(str(own)).fingerprint()


@pytest.mark.shows("D12")
def test_sixteen_bit_pictures_make_all_sites_floats_of_one_depth(own):
    make(own, {"a/x": 5, "a/y": 5, "b/x": 5, "b/y": 5})
    deep = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    Image.fromarray(deep).save(own / "b" / "y" / "00.png")
    plain = folders(str(own), size=64)
    assert {s.x.dtype for c in plain.clients for s in c.splits} == {torch.float32}
    assert plain.preparation == {"depth": 65535}
    assert folders(str(own), size=64, depth=4095, cache=True).preparation == {"depth": 4095}
    (said,) = plain.remarks
    assert said.startswith("16-bit pictures keep their depth: 0 to 65535 (data.depth) becomes")
    twelve = make(own.parent / "twelve", {"a/x": 5, "a/y": 5})
    for file in twelve.rglob("*.png"):
        Image.fromarray(deep).save(file)
    (said,) = folders(str(twelve)).remarks
    assert said.endswith("none is above 4095: data.depth = 4095 uses the whole range")
    (said,) = folders(str(twelve), depth=4095).remarks
    assert "whole range" not in said


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"path": None}, ConfigError, "data.path is needed"),
        ({"path": "missing"}, DataError, "no such folder; expected PATH/SITE/CLASS"),
        ({"test_share": 1.5}, ConfigError, "data.test_share = 1.5: input should be less than 1"),
        ({"size": 1}, ConfigError, "data.size = 1: input should be greater than or equal to 4"),
        ({"depth": 100_000}, ConfigError, "data.depth = 100000: .* less than or equal to 65535"),
    ],
)
def test_wrong_options(own, monkeypatch, options, error, message):
    monkeypatch.chdir(own)
    make(own / "data", {"a/x": 5, "a/y": 5})
    with pytest.raises(error, match=message):
        loaded("folders", **{"path": "data", **options})


def test_empty_places_are_named(own):
    with pytest.raises(DataError, match="no sites"):
        folders(str(own))
    (own / "a").mkdir()
    with pytest.raises(DataError, match="no class folders"):
        folders(str(own))
    (own / "a" / "x").mkdir()
    with pytest.raises(DataError, match="site a: no pictures"):
        folders(str(own))


def test_links_to_above_are_neither_sites_nor_classes(own):
    make(own, {"a/x": 5, "a/y": 5})
    (own / "again").symlink_to(own)
    (own / "a" / "again").symlink_to(own / "a")
    federation = folders(str(own))
    assert [client.name for client in federation.clients] == ["a"]
    assert federation.classes == ("x", "y")


@pytest.mark.shows("C09")
def test_two_sites_that_are_one_folder_by_a_link_are_refused(own):
    make(own, {"a/x": 5, "a/y": 5})
    (own / "b").symlink_to(own / "a")
    with pytest.raises(DataError, match=r"own/b: the same as .*own/a, by a link; each client"):
        folders(str(own))


def test_a_pipe_among_pictures_is_named_and_not_waited_for(own):
    make(own, {"a/x": 5, "a/y": 5})
    os.mkfifo(own / "a" / "x" / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: not a file, but a pipe"):
        folders(str(own), cache=True)


def named(own: Path, names: dict[str, list[str]]) -> Path:
    """Empty-looking pictures of one site under the names given, by class."""
    for label, files in names.items():
        (own / "a" / label).mkdir(parents=True)
        for file in files:
            Image.new("L", (8, 8)).save(own / "a" / label / f"{file}.png")
    return own


def test_names_that_share_a_stem_in_train_and_test_are_said(own):
    patients = {label: [f"{label}{n:02}_{k}" for n in range(6) for k in range(5)] for label in "xy"}
    (said,) = folders(str(named(own, patients))).remarks
    assert said.startswith("files that begin alike are in both train and test (beginnings in test:")
    assert re.search(r"a (\d+) of \1, as x\d\d_\d\.png and x\d\d_\d\.png", said)


@pytest.mark.parametrize(
    "names",
    [
        lambda label, n: f"{n:03}",  # numbers alone
        lambda label, n: f"frame_{n:04}",  # Office-31
        lambda label, n: f"{'xy'.index(label):03}_{n:04}",  # Caltech-256: the number of the class
        lambda label, n: f"ISIC_{n:07}",
        lambda label, n: f"2024_{n:04}",
    ],
)
def test_names_that_only_count_are_no_stems(own, names):
    named(own, {label: [names(label, n) for n in range(20)] for label in "xy"})
    assert folders(str(own)).remarks == ()


def test_a_division_by_patient_has_no_stems_in_common(own):
    for part, patients in (("train", range(6)), ("test", range(6, 9))):
        files = [f"p{n:02}_{k}" for n in patients for k in range(4)]
        named(own / "own", {f"{part}/{label}": [f"{label}{f}" for f in files] for label in "xy"})
    assert folders(str(own / "own")).remarks == ()


def test_run_names_files_that_it_leaves_out_as_data_check_does(tmp_path):
    home = tmp_path / "sites"
    for site in ("north", "south"):
        for number in range(6):
            file = home / site / ("cat", "dog")[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (40 * number, 9, 9)).save(file)
    for name in ("north/cat/scan.dcm", "north/dog/scan.DCM", "south/dog/IM0001"):
        (home / name).write_bytes(b"DICM")
    for name in ("north/cat/notes.txt", "south/labels.csv", "south/cat/0.xml", "south/.DS_Store"):
        (home / name).write_text("a note")
    Image.new("RGB", (8, 8)).save(home / "south" / "stray.png")
    (said,) = (text for text in folders(str(home)).remarks if "left out" in text)
    assert "3 files in class folders without the suffix of a picture: left out" in said
    assert "(north 2, south 1; the first is" in said
    assert "scan.dcm" in said
    assert "1 file with the suffix of a picture outside the class folders: left out" in said
    answer = call("run", "--data", home, "--dry-run")
    assert answer.code == 0
    assert "scan.dcm" in answer.err
    checked = call("data", "check", home, "--json")
    assert checked.out.count("left out") == 6  # file by file
    for name in ("north/cat/scan.dcm", "north/dog/scan.DCM", "south/dog/IM0001"):
        (home / name).unlink()
    (home / "south" / "stray.png").unlink()
    assert not any("left out" in text for text in folders(str(home)).remarks)
