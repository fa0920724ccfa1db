"""Pictures and their masks: turned alike, and paired by names that are one file's each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commanding import call
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


def marked(home: Path, values: list[int], suffix: str = ".png", count: int = 4) -> None:
    """Pictures, with masks of squares that have these values."""
    for part in ("images", "masks"):
        (home / part).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        mask = np.zeros((24, 24), dtype=np.uint8)
        for at, value in enumerate(values):
            mask[5 * at : 5 * at + 5, number : number + 9] = value
        Image.fromarray(mask).save(home / "images" / f"{number}.png")
        Image.fromarray(mask).save(home / "masks" / f"{number}{suffix}")


def test_masks_0_and_1_next_to_0_and_255_are_refused_by_run_and_check(tmp_path: Path):
    marked(tmp_path / "north", [0, 1])
    marked(tmp_path / "south", [0, 255])
    match = r"values 0, 1 at site north and 0, 255 at site south\. Save .*data\.values"
    with pytest.raises(DataError, match=match):
        masks(str(tmp_path))
    for command in (("run", "--data", tmp_path, "--dry-run"), ("data", "check", tmp_path)):
        assert call(*command).code == 4
    assert masks(str(tmp_path), values=[0, 1, 255]).classes == ("0", "1", "255")


def test_masks_of_one_site_that_were_saved_in_two_ways_are_refused_by_file(tmp_path: Path):
    marked(tmp_path / "north", [0, 1])
    Image.fromarray(np.full((24, 24), 255, np.uint8)).save(tmp_path / "north" / "masks" / "2.png")
    with pytest.raises(DataError, match=r"0, 1 at .*masks/0\.png and 0, 255 at .*masks/2\.png"):
        masks(str(tmp_path))


def test_masks_that_jpeg_or_smoothing_changed_are_refused(tmp_path: Path):
    marked(tmp_path / "north", [0, 255], ".jpg")
    with pytest.raises(
        DataError, match=r"masks/.*\.jpg: .* as JPEG or smoothing .*Save masks as P"
    ):
        masks(str(tmp_path))
    for file in sorted((tmp_path / "north" / "masks").iterdir()):
        Image.open(file).save(file.with_suffix(".png"))
        file.unlink()
    with pytest.raises(DataError, match=r"masks/.*\.png: .* as JPEG or smoothing .*data\.values"):
        masks(str(tmp_path))


def test_a_class_that_one_site_lacks_is_no_other_scale(tmp_path: Path):
    marked(tmp_path / "north", [0, 1])
    marked(tmp_path / "south", [0, 2])
    marked(tmp_path / "west", [0])
    assert masks(str(tmp_path)).classes == ("0", "1", "2")


def test_many_classes_without_gaps_are_legal(tmp_path: Path):
    home = tmp_path / "north"
    marked(home, [0])
    many = (np.arange(24 * 24).reshape(24, 24) % 20).astype(np.uint8)
    for file in sorted((home / "masks").iterdir()):
        Image.fromarray(many).save(file)
    assert len(masks(str(tmp_path)).classes) == 20
