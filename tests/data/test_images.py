"""Pictures of every mode and every kind of damage."""

from __future__ import annotations

import logging
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedbn.data.images import (
    FlipAndTurn,
    choose_size,
    pictures_below,
    read_picture,
    read_pictures,
    watched,
)
from fedbn.data.storage import Trouble, scan, subfolders
from fedbn.errors import DataError
from fedbn.text import shown
from unprivileged import unprivileged


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with nothing in it."""
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def read(file: Path, size: int | None = None) -> np.ndarray:
    with watched():
        return read_picture(file, None if size is None else (size, size))


def save(file: Path, mode: str, colour: object, size: tuple[int, int] = (6, 4)) -> Path:
    Image.new(mode, size, colour).save(file)
    return file


@pytest.mark.shows("D12")
@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, (100, 100, 100)),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("1", 1, (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),  # see-through shows the white ground
        ("LA", (7, 255), (7, 7, 7)),
    ],
)
def test_every_mode_becomes_rgb(own, mode, colour, expected):
    picture = read(save(own / "a.png", mode, colour))
    assert picture.shape == (4, 6, 3)
    assert picture.dtype == np.uint8
    assert (picture == expected).all()


def test_palettes_with_and_without_a_transparent_colour(own):
    plain = Image.new("P", (2, 2), 1)
    plain.putpalette([0, 0, 0, 9, 8, 7])
    plain.save(own / "plain.png")
    plain.save(own / "clear.png", transparency=b"\xff\x00")
    assert (read(own / "plain.png") == (9, 8, 7)).all()
    assert (read(own / "clear.png") == 255).all()


def test_cmyk_jpeg_and_turned_photograph(own):
    save(own / "cmyk.jpg", "CMYK", (0, 0, 0, 0))
    assert (read(own / "cmyk.jpg") == 255).all()
    photo = Image.new("RGB", (6, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn by a quarter
    photo.save(own / "turned.jpg", exif=exif)
    assert read(own / "turned.jpg").shape == (6, 4, 3)


def test_a_float_picture_is_refused_because_its_range_is_unknown(own):
    save(own / "a.tif", "F", 0.5)
    with pytest.raises(DataError, match=r"a\.tif: pixels are floats"):
        read(own / "a.tif")


def twelve_bit(file: Path) -> Path:
    """All 4,096 values of a scanner of 12 bit, from 0 to 4095."""
    Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64)).save(file)
    return file


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bit_pictures_keep_every_value(own, name):
    grey = np.arange(4096).reshape(64, 64)
    whole = read_pictures([twelve_bit(own / name)], 64, depth=4095)
    assert whole.shape == (1, 3, 64, 64)
    assert np.allclose(whole[0], grey / 4095 * 2 - 1, atol=1e-6)
    assert len(whole.unique()) == 4096
    assert np.allclose(read_pictures([own / name], 64)[0, 1], grey / 65535 * 2 - 1, atol=1e-6)


def test_eight_bit_beside_sixteen_bit_is_scaled_as_a_batch_would_be(own):
    files = [save(own / "a.png", "L", 51), twelve_bit(own / "b.png")]
    mixed = read_pictures(files, 8, depth=4095)
    assert mixed.dtype == torch.float32
    assert torch.allclose(mixed[0], torch.tensor(51 / 127.5 - 1))
    assert read_pictures(files[:1], 8).dtype == torch.uint8


def test_a_value_beyond_the_depth_names_the_key(own):
    with pytest.raises(DataError, match=r"b\.png: pixels from 0 to 4095.*raise data\.depth"):
        read_pictures([twelve_bit(own / "b.png")], 8, depth=1023)


@pytest.mark.parametrize("name", ["colour.png", "colour.ppm"])
def test_colours_of_sixteen_bit_are_refused_because_pillow_would_cut_them(own, name):
    rows = b"".join(b"\0" + b"\1\2" * 12 for _ in range(4))
    contents = {
        "colour.png": png(4, 4, rows, depth=16),
        "colour.ppm": b"P6 2 2 4095\n" + b"\1\2" * 12,
    }
    (own / name).write_bytes(contents[name])
    with pytest.raises(DataError, match=f"{name}: colours of 16 bit, which would be cut to 8"):
        read(own / name)


@pytest.mark.shows("D13")
def test_resizing_and_stacking(own):
    files = [save(own / f"{n}.png", "L", n * 50, (n + 3, 9)) for n in range(5)]
    pixels = read_pictures(files, 8)
    assert pixels.shape == (5, 3, 8, 8)
    assert pixels.dtype == torch.uint8
    assert [int(p.float().mean()) for p in pixels] == [0, 50, 100, 150, 200]


def whole_jpeg(file: Path) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    return file.read_bytes()


def png(width: int, height: int, rows: bytes, depth: int = 8) -> bytes:
    """A PNG in colour, written by hand."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bomb() -> bytes:
    """A PNG of a few bytes that says it is 20,000 pixels wide and high."""
    return png(20_000, 20_000, b"")


@pytest.mark.shows("D14", "D15")
@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("cut.jpg", lambda raw: raw[: len(raw) // 2], "damaged or cut off"),
        ("empty.png", lambda raw: b"", "empty, 0 bytes"),
        ("text.png", lambda raw: b"not a picture", "not a picture"),
        ("bomb.png", lambda raw: bomb(), "enormous, more than 89,478,485 pixels"),
    ],
)
def test_damage_names_the_file(own, name, make, reason):
    raw = whole_jpeg(own / "whole.jpg")
    (own / name).write_bytes(make(raw))
    with pytest.raises(DataError, match=reason) as caught:
        read_pictures([own / "whole.jpg", own / name], 8)
    assert str(caught.value).startswith(str(own / name))
    assert "\n" not in str(caught.value)


@pytest.mark.shows("D33")
def test_a_picture_a_little_too_large_is_refused_too(own, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # 24 pixels only warn in Pillow
    with pytest.raises(DataError, match="enormous"):
        read(save(own / "a.png", "L", 0))


def test_what_pillow_warns_of_is_one_line_of_ours(own, caplog, capsys):
    exif = (
        b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0\x01\0\0\0"  # four entries missing
    )
    for name in "ab":
        Image.new("RGB", (8, 8)).save(own / f"{name}.jpg", exif=exif)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "fedbn"):
        warnings.simplefilter("error")  # a warning that is not ours would end the reading
        assert read_pictures([own / "a.jpg", own / "b.jpg"], 8).shape == (2, 3, 8, 8)
    (record,) = caplog.records
    assert record.message.startswith("2 picture(s) are odd, but can be read; the first: ")
    assert "Corrupt EXIF data" in record.message
    assert capsys.readouterr().err == ""


@pytest.mark.shows("D17")
def test_no_permission_names_the_file(own):
    file = save(own / "a.png", "L", 0)
    file.chmod(0)
    with unprivileged(), pytest.raises(DataError, match="no permission"):
        read(file)


@pytest.mark.shows("D18", "D19")
def test_odd_names_links_and_circles(own):
    names = ["a b.png", "line\nbreak.png", "写真.PNG", ".hidden.png", "note.txt"]
    for name in names:
        save(own / "real.png", "L", 0).rename(own / name)
    deep = own / "deep"
    deep.mkdir()
    (deep / "up").symlink_to(own)
    (deep / "linked.png").symlink_to(own / "a b.png")
    found = pictures_below(own)
    assert [f.name for f in found] == ["a b.png", "linked.png", "line\nbreak.png", "写真.PNG"]
    assert len(read_pictures(found, 4)) == 4
    circles = [item for item in scan(own) if isinstance(item, Trouble)]
    assert [circle.harmless for circle in circles] == [True]
    assert "\n" not in shown(found[2])
    assert [folder.name for folder in subfolders(own)] == ["deep"]


def test_a_broken_link_to_a_picture_is_an_error(own):
    (own / "gone.png").symlink_to(own / "nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png: a link that leads nowhere"):
        pictures_below(own)


def test_a_name_that_is_no_unicode_can_be_shown():
    assert shown(os.fsdecode(b"\xff.png")) == r"\udcff.png"


@pytest.mark.shows("D13")
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(28, 28), (28, 28)], 28),  # alike and square: as they are
        ([(48, 48)], 48),
        ([(300, 300)], 256),
        ([(100, 70), (100, 70), (20, 20)], 64),  # the median shorter side is 70
        ([(10, 20)], 28),
    ],
)
def test_the_size_is_chosen_from_the_pictures(own, sizes, expected):
    files = [save(own / f"{n}.png", "L", 0, size) for n, size in enumerate(sizes)]
    size, remark = choose_size(files)
    assert size == expected
    assert (f"{size}×{size}" in remark) == (len(set(sizes)) > 1 or sizes[0] != (size, size))


def test_augmentation_keeps_the_values_and_repeats_with_its_seed():
    x = torch.rand(8, 3, 16, 16) * 2 - 1
    one, two = (FlipAndTurn()(x, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
    assert float(one.min()) >= -1
    assert float(one.max()) <= 1
    assert not torch.equal(one, x)


def test_without_an_angle_a_picture_stays_or_is_mirrored():
    x = torch.rand(16, 1, 6, 6) * 2 - 1
    changed = FlipAndTurn(degrees=0)(x, torch.Generator().manual_seed(0))
    same = torch.isclose(changed, x, atol=1e-5).flatten(1).all(1)
    mirrored = torch.isclose(changed, x.flip(3), atol=1e-5).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert bool(same.any())
    assert bool(mirrored.any())


def test_a_turn_by_a_right_angle_is_exact_and_corners_become_black(monkeypatch):
    x = torch.rand(1, 1, 5, 5) * 2 - 1
    monkeypatch.setattr(torch, "rand", lambda n, generator: torch.ones(n))  # +90°, not mirrored
    assert torch.allclose(FlipAndTurn(90)(x, torch.Generator()), x.rot90(1, (2, 3)), atol=1e-5)
    assert FlipAndTurn(45)(torch.ones(1, 1, 9, 9), torch.Generator())[0, 0, 0, 0] == -1


def test_augmentations_compare_by_value():
    assert FlipAndTurn(30) == FlipAndTurn()
    assert FlipAndTurn(10) != FlipAndTurn()
