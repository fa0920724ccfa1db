import json
import logging
import os
import pwd
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fedbn.data import storage
from fedbn.data.storage import cached, fingerprint
from fedbn.errors import DataError

KEY = {"option": 1}


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_warned", set())


class Maker:
    """Counts how often arrays are made."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"x": np.arange(6, dtype=np.uint8).reshape(2, 3), "y": np.array([1, 2])}


def test_a_second_call_maps_what_the_first_made(data_folder: Path):
    make = Maker()
    first, second = (cached("set", KEY, make) for _ in range(2))
    assert make.calls == 1
    for arrays in (first, second):
        assert isinstance(arrays["x"], np.memmap)
        assert arrays["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert arrays["y"].tolist() == [1, 2]


def test_an_entry_tells_what_it_depends_on(data_folder: Path):
    cached("set", KEY, Maker())
    (entry,) = (data_folder / ".cache" / "set").iterdir()
    assert json.loads((entry / "depends_on.json").read_text()) == KEY


def test_another_key_is_another_entry():
    make = Maker()
    cached("set", {"option": 1}, make)
    cached("set", {"option": 2}, make)
    assert make.calls == 2


def test_writing_to_an_array_leaves_the_cache_alone():
    make = Maker()
    cached("set", KEY, make)["x"][:] = 9
    assert cached("set", KEY, make)["x"].max() == 5


def test_a_damaged_entry_is_made_anew(data_folder: Path, caplog: pytest.LogCaptureFixture):
    make = Maker()
    cached("set", KEY, make)
    (entry,) = (data_folder / ".cache" / "set").iterdir()
    (entry / "x.npy").write_bytes(b"\x93NUMPY cut off")
    with caplog.at_level(logging.WARNING, "fedbn"):
        again = cached("set", KEY, make)
    assert make.calls == 2
    assert again["x"].max() == 5
    assert "damaged cache entry" in caplog.text
    assert cached("set", KEY, make)["x"].max() == 5
    assert make.calls == 2


def test_what_fails_leaves_nothing(data_folder: Path):
    def fail() -> dict[str, np.ndarray]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cached("set", KEY, fail)
    assert not (data_folder / ".cache").exists()


@pytest.mark.shows("D38")
def test_a_read_only_data_root_falls_back_to_the_home_folder(data_folder: Path, tmp_path: Path):
    data_folder.chmod(0o555)
    make = Maker()
    cached("set", KEY, make)
    cached("set", KEY, make)
    data_folder.chmod(0o755)
    assert make.calls == 1
    assert not (data_folder / ".cache").exists()
    assert list((tmp_path / "home" / ".cache" / "fedbn" / ".cache" / "set").iterdir())


def test_without_any_place_to_write_it_works_and_warns_once(
    data_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (data_folder / ".cache").write_text("a file where the folder would be")
    (tmp_path / "home").write_text("no home")
    make = Maker()
    with caplog.at_level(logging.WARNING, "fedbn"):
        assert cached("set", KEY, make)["x"].max() == 5
        assert cached("set", KEY, make)["x"].max() == 5
    assert make.calls == 2
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_a_fingerprint_changes_with_the_file(tmp_path: Path):
    file, folder = tmp_path / "a.bin", tmp_path / "many"
    folder.mkdir()
    file.write_bytes(b"1")
    before = fingerprint([file]), fingerprint([folder])
    file.write_bytes(b"12")
    (folder / "new").write_bytes(b"1")
    after = fingerprint([file]), fingerprint([folder])
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert (fingerprint([file]), fingerprint([folder])) == after


def test_other_content_of_the_same_name_size_and_time_is_another_fingerprint(tmp_path: Path):
    prints = []
    for content in (b"one", b"two"):
        file = tmp_path / "a.bin"
        file.write_bytes(content)
        os.utime(file, ns=(10**18, 10**18))
        prints.append(fingerprint([file]))
    assert prints[0]["places"] == prints[1]["places"]
    assert prints[0]["sha256"] != prints[1]["sha256"]


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.bin"
    file.write_bytes(b"1")
    first = fingerprint([file])
    monkeypatch.setattr(storage, "_contents", None)  # would be called to read it
    assert fingerprint([file]) == first


def test_a_user_without_a_home_has_a_cache_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As for a container's random user: no HOME, and no entry in the list of users."""

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("FEDBN_DATA")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cached("set", KEY, Maker())
    (own,) = tmp_path.glob("fedbn-*")
    assert list(own.rglob("x.npy"))
    assert own.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(os, "getuid", lambda: own.stat().st_uid + 1)
    (tmp_path / f"fedbn-{os.getuid()}").mkdir()
    with pytest.raises(DataError, match="let HOME or FEDBN_DATA name a folder"):
        cached("set", KEY, Maker())
