"""Telling what a path holds, and which model fits."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedbn.data.checks import recognize
from fedbn.errors import DataError


def picture(folder):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(folder / "a.png")


@pytest.mark.parametrize("below", ["site/class", "site/train/class"])
def test_picture_folders(tmp_path, below):
    picture(tmp_path / below)
    (tmp_path / "about.csv").write_text("a,b\n1,2\n")
    kind, text = recognize(tmp_path)
    assert kind == "folders"
    assert "picture folders: 1 site(s)" in text
    assert "ignored: tables: 1 file(s)" in text


def test_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    kind, text = recognize(tmp_path)
    assert kind == "arrays"
    assert "1 npz file(s), one a site" in text


def test_tables_in_a_folder_and_one_file(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    assert recognize(tmp_path)[0] == "tables"
    kind, text = recognize(tmp_path / "a.csv")
    assert kind == "tables"
    assert "one table of all sites" in text


@pytest.mark.parametrize("name", ["missing", "empty", "text.txt"])
def test_anything_else_lists_the_three_layouts(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("?")
    with pytest.raises(DataError, match=r"\(1\) pictures: .*\(2\) arrays: .*\(3\) tables: "):
        recognize(tmp_path / name)


def test_one_npz_asks_for_its_folder(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    with pytest.raises(DataError, match="give its folder"):
        recognize(tmp_path / "a.npz")
