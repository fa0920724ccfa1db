import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import loaded

from fedbn.core.findings import check_federation
from fedbn.data.digit_rendering import Font, Look, font_files, font_hashes, load_fonts, render
from fedbn.datasets.synthetic import synth_digits
from fedbn.errors import ConfigError, DataError

PLAIN = Look(
    height=(20, 20), stretch=(1, 1), rotation=0, slant=0, shift=0, outline=0, contrast=0.8,
    blur=(0, 0), noise=(0, 0),
)  # fmt: skip


@pytest.fixture(scope="module")
def fonts() -> list[Font]:
    return load_fonts()


def test_the_fonts_of_matplotlib_that_show_digits(fonts: list[Font]):
    names = {font.file.stem for font in fonts}
    assert {"DejaVuSans", "DejaVuSerif-BoldItalic", "STIXGeneral", "cmr10", "cmti10"} <= names
    # Symbols, extensible brackets and boxes for missing characters are not digits.
    assert not names & {"cmsy10", "cmex10", "LastResortHE-Regular", "STIXSizOneSymReg"}
    assert len(names) >= 20


def test_the_hashes_of_the_fonts_are_those_of_their_files(fonts: list[Font]):
    font = fonts[0]
    expected = hashlib.sha256(font.file.read_bytes()).hexdigest()
    assert font_hashes(fonts)[font.file.name] == expected


def test_fonts_of_a_folder(tmp_path: Path, fonts: list[Font]):
    (tmp_path / "mine.ttf").write_bytes(fonts[3].file.read_bytes())
    (tmp_path / "damaged.ttf").write_bytes(b"not a font")
    assert [font.file.name for font in load_fonts(str(tmp_path))] == ["mine.ttf"]


def test_system_fonts_are_looked_for_where_systems_have_them():
    assert all(file.suffix in (".ttf", ".otf") for file in font_files("system"))


def test_folders_without_fonts_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such folder; legal are 'matplotlib', 'system'"):
        load_fonts(str(tmp_path / "absent"))
    with pytest.raises(DataError, match="no font there shows the ten digits"):
        load_fonts(str(tmp_path))


def test_a_seed_decides_every_image(fonts: list[Font]):
    first, again, other = (render(40, (seed,), fonts) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_more_images_begin_with_the_same(fonts: list[Font]):
    few, many = (render(count, (0,), fonts) for count in (10, 300))
    np.testing.assert_array_equal(few[0], many[0][:10])
    np.testing.assert_array_equal(few[1], many[1][:10])


def test_all_digits_are_equally_frequent(fonts: list[Font]):
    _, labels = render(2560, (0,), fonts)
    # 256 of each are expected, with a standard deviation of 15.
    assert np.abs(np.bincount(labels) - 256).max() < 75


def test_a_label_is_what_the_middle_of_the_image_shows(fonts: list[Font]):
    # Without distortion the distance to the background, cut to the middle, is the glyph's mask.
    sans = [font for font in fonts if font.file.stem == "DejaVuSans"]
    images, labels = render(512, (0,), sans, PLAIN)
    distance = np.linalg.norm(images - images[:, :, :1, 13:14].astype(float), axis=1)
    middle = distance[:, :, 9:19].reshape(len(images), -1)
    means = np.stack([middle[:256][labels[:256] == digit].mean(axis=0) for digit in range(10)])

    def standard(rows: np.ndarray) -> np.ndarray:
        rows = rows - rows.mean(axis=1, keepdims=True)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    found = (standard(middle[256:]) @ standard(means).T).argmax(axis=1)
    assert (found == labels[256:]).mean() > 0.95


def test_images_vary_in_colour_and_are_not_flat(fonts: list[Font]):
    images, _ = render(256, (0,), fonts)
    assert images.shape == (256, 3, 28, 28)
    assert images.dtype == np.uint8
    assert images.reshape(256, -1).std(axis=1).min() > 4
    assert np.abs(images.mean(axis=(2, 3)) - 127.5).max() > 100


def test_neighbours_reach_the_edges_of_some_images(fonts: list[Font]):
    images, _ = render(256, (0,), fonts, PLAIN)
    edges = images[:, :, :, [0, 27]].astype(int).std(axis=2).max(axis=1)
    touched = edges > 30
    left, right = touched[:, 0], touched[:, 1]
    assert (left & right).any()
    assert (left & ~right).any()
    assert (~left & ~right).any()


def test_the_data_set_is_labelled_as_rendered():
    federation = synth_digits(train=30, test=20)
    check_federation(federation)
    (client,) = federation.clients
    assert (client.name, len(client.train), len(client.tests["synthdigits"])) == (
        "synthdigits", 30, 20,
    )  # fmt: skip
    assert "rendered from" in federation.remarks[0]
    assert "not Ganin's files" in federation.remarks[0]
    assert not torch.equal(client.train.x[:20], client.tests["synthdigits"].x)
    assert synth_digits(train=30, test=20).fingerprint() == federation.fingerprint()


def test_at_least_one_image_is_needed():
    with pytest.raises(
        ConfigError, match=r"data\.test = 0: input should be greater than or equal to 1"
    ):
        loaded("synth_digits", train=3, test=0)
