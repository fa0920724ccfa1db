"""Pictures and their masks: turned alike, and paired by names that are one file's each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbn.datasets.own_files import masks
from fedbn.errors import DataError

ON_ITS_SIDE = 6  # the camera was: shown turned by a quarter to the right
TURNED = Image.Transpose.ROTATE_270


def site(home: Path, orientation: int, mask_turns: str) -> None:
    """Six bright boxes on a wide ground, and what is bright; how masks turn decides their file."""
    draws = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for part in ("images", "masks"):
        (home / part).mkdir(parents=True)
    for number in range(6):
        bright = np.zeros((24, 48), dtype=np.uint8)
        row, column = draws.integers(0, 12), draws.integers(0, 24)
        bright[row : row + 12, column : column + 24] = 255
        Image.fromarray(bright).save(home / "images" / f"{number}.png", exif=exif)
        mask = Image.fromarray(bright)
        if mask_turns == "by its pixels":
            mask = mask.transpose(TURNED) if orientation == ON_ITS_SIDE else mask
        own = {"exif": exif} if mask_turns == "by its entry" else {}
        mask.save(home / "masks" / f"{number}.png", **own)


@pytest.mark.parametrize("mask_turns", ["by its entry", "by its pixels"])
def test_masks_lie_on_what_they_mark_however_a_camera_was_held(tmp_path: Path, mask_turns: str):
    site(tmp_path / "phone", ON_ITS_SIDE, mask_turns)
    site(tmp_path / "scanner", 1, mask_turns)
    for client in masks(str(tmp_path), size=24).clients:
        lit, marked = client.train.x[:, 0] > 127, client.train.y > 0
        both = (lit & marked).sum() / (lit | marked).sum()
        assert both > 0.9  # edges differ: pictures are smoothed, masks take the nearest value


def test_a_mask_that_does_not_turn_with_its_picture_is_refused(tmp_path: Path):
    site(tmp_path / "phone", ON_ITS_SIDE, "not at all")
    says = r"0\.png: 48×24 pixels, but its picture has 24×48, turned as its EXIF entry says"
    with pytest.raises(DataError, match=says):
        masks(str(tmp_path), size=24)


@pytest.mark.parametrize("part", ["images", "masks"])
def test_two_files_of_one_name_are_refused(tmp_path: Path, part: str):
    site(tmp_path / "a", 1, "not at all")
    (tmp_path / "a" / part / "0.bmp").write_bytes((tmp_path / "a" / part / "0.png").read_bytes())
    with pytest.raises(DataError, match=rf"a/{part}/0\.png: 0\.bmp has that name too"):
        masks(str(tmp_path), size=24)
