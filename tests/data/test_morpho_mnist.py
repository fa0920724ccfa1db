import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import raw_digits as raw
from loading import loaded
from scipy import ndimage

from fedbn.core.findings import check_federation
from fedbn.datasets.morpho_mnist import (
    INFO,
    SCALE,
    Mask,
    change_images,
    changed_digit,
    fracture,
    measure,
    morpho_mnist,
    swell,
    thicken,
    thin,
)
from fedbn.errors import ConfigError, DataError

pytest.importorskip("skimage")


DEFAULTS: dict[Callable[..., Mask], dict[str, float]] = {
    thin: {"thinning": 0.7},
    thicken: {"thickening": 1.0},
    swell: {"swelling": 3.0},
    fracture: {"fractures": 3},
}


def bar(width: int) -> np.ndarray:
    """An upright stroke, 20 pixels long."""
    image = np.zeros((28, 28), np.uint8)
    image[4:24, 14 - width // 2 : 14 - width // 2 + width] = 255
    return image


def ring() -> np.ndarray:
    away = np.hypot(*(np.indices((28, 28)) - 13.5))
    return np.where(np.abs(away - 8) < 2, 255, 0).astype(np.uint8)


def made(
    image: np.ndarray, change: Callable[..., Mask], seed: int = 0, **strength: float
) -> np.ndarray:
    changed = partial(change, **(DEFAULTS[change] | strength))
    return changed_digit(image, changed, np.random.default_rng(seed))


def width(image: np.ndarray) -> float:
    """Mean width of an upright stroke, over its middle."""
    return float(image[10:18].sum() / 255 / 8)


@pytest.mark.parametrize("pixels", [3, 4, 6])
def test_thickness_is_measured_in_enlarged_pixels(pixels: int):
    assert measure(bar(pixels)).thickness == pytest.approx(SCALE * pixels, rel=0.25)


def test_thinning_takes_off_the_given_part_of_the_width():
    # A bar 6 wide that loses half of either half width is 3 wide.
    assert width(made(bar(6), thin, thinning=0.5)) == pytest.approx(3, abs=0.6)
    assert width(made(bar(6), thin, thinning=0.0)) == pytest.approx(6, abs=0.6)


def test_thickening_adds_the_given_part_of_the_width():
    # A bar 4 wide that gains all of either half width is 8 wide.
    assert width(made(bar(4), thicken, thickening=1.0)) == pytest.approx(8, abs=1)
    assert width(made(bar(4), thicken, thickening=0.0)) == pytest.approx(4, abs=0.6)


@pytest.mark.parametrize("thinning", [0.7, 1.0])
def test_a_thinned_stroke_stays_in_one_piece(thinning: float):
    shape = measure(ring())
    mask = thin(shape, np.random.default_rng(0), thinning)
    assert ndimage.label(mask, np.ones((3, 3)))[1] == 1
    assert 0 < mask.sum() < shape.inside.sum()


def test_a_swelling_is_wider_somewhere_and_the_same_elsewhere():
    plain, swollen = bar(4), made(bar(4), swell)
    rows = swollen.sum(axis=1) / 255
    assert rows.max() > 6
    # Beyond the reach of 8 pixels from one point of 20, some rows are as they were.
    same = np.abs(swollen.astype(int) - plain).sum(axis=1) < 0.2 * 255
    assert same[4:24].any()


def test_a_swelling_of_one_changes_nothing():
    shape = measure(ring())
    mask = swell(shape, np.random.default_rng(0), 1.0)
    np.testing.assert_array_equal(mask, shape.inside)


@pytest.mark.parametrize("seed", range(5))
def test_a_fracture_goes_through_the_stroke(seed: int):
    one = made(bar(4), fracture, seed, fractures=1)
    assert ndimage.label(one > 127)[1] == 2
    # A ring with one cut is still one piece; the cut takes away about 1.5 by 4 pixels.
    shape = measure(ring())
    cut = fracture(shape, np.random.default_rng(seed), 1)
    assert ndimage.label(cut)[1] == 1
    lost = (shape.inside.sum() - cut.sum()) / SCALE**2
    assert lost == pytest.approx(1.5 * 4, rel=0.4)


def test_more_fractures_take_away_more():
    sums = [int(made(ring(), fracture, fractures=count).sum()) for count in (0, 1, 3, 6)]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("change", [thin, thicken, swell, fracture])
def test_odd_images_are_survived(change: Callable[..., Mask]):
    blank, full, dot = (np.zeros((28, 28), np.uint8) for _ in range(3))
    full[:] = 255
    dot[14, 14] = 255
    np.testing.assert_array_equal(made(blank, change), blank)
    for image in (full, dot):
        assert made(image, change).shape == (28, 28)


def test_changes_are_equally_frequent_and_seeded():
    images = np.stack([bar(4)] * 10)
    ways = [partial(change, **DEFAULTS[change]) for change in (thin, thicken)]
    first, again = (change_images(images, ways, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first.sum(axis=(1, 2)) > images[0].sum()).sum() == 5


@pytest.fixture
def mnist(data_folder: Path) -> Path:
    x = np.stack([bar(4), ring()] * 10)
    file = data_folder / "digits" / "mnist.npz"
    raw.write_npz(file, (x, raw.labels(20)), (x[:10], raw.labels(10)))
    return file


def test_two_clients_are_made_from_mnist(mnist: Path):
    federation = morpho_mnist(train=12)
    check_federation(federation)
    assert INFO["morpho_mnist"].is_there()
    assert [client.name for client in federation.clients] == ["morpho-global", "morpho-local"]
    for client in federation.clients:
        assert client.train.x.shape == (12, 3, 28, 28)
        assert client.train.y.tolist() == raw.labels(12).tolist()
        assert len(client.tests[client.domain]) == 10
    assert "made by fedbn from MNIST" in federation.remarks[0]
    assert morpho_mnist(train=12).fingerprint() == federation.fingerprint()
    assert morpho_mnist(train=12, seed=1).fingerprint() != federation.fingerprint()


def test_without_mnist_the_files_are_named():
    assert not INFO["morpho_mnist"].is_there()
    with pytest.raises(DataError, match=r"no mnist: expected mnist\.npz, or train-images"):
        morpho_mnist()


def test_without_scikit_image_it_says_what_to_install(mnist: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ConfigError, match=r"pip install fedbn\[morpho\]"):
        morpho_mnist(train=2, test=2)


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("train", 0, "greater than or equal to 1"),
        ("test", 0, "greater than or equal to 1"),
        ("thinning", 1.5, "less than or equal to 1"),
        ("thickening", -1.0, "greater than or equal to 0"),
        ("thickening", float("inf"), "a finite number"),
        ("swelling", 0.5, "greater than or equal to 1"),
        ("swelling", float("nan"), "a finite number"),
        ("fractures", -1, "greater than or equal to 0"),
    ],
)
def test_wrong_options_are_refused(mnist: Path, name: str, value: float, legal: str):
    with pytest.raises(ConfigError, match=rf"data\.{name} = {value}: input should be {legal}"):
        loaded("morpho_mnist", **{name: value})


def test_on_the_real_files(real_data: Path):
    federation = morpho_mnist(train=20, test=20)
    assert [len(client.train) for client in federation.clients] == [20, 20]
