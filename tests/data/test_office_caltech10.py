"""Office-Caltech10 from small files under every name its folders go by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from loading import loaded
from PIL import Image

from fedbn.core.findings import check_federation
from fedbn.data.images import FlipAndTurn
from fedbn.datasets.pictures import INFO, OFFICE_CALTECH10, office_caltech10
from fedbn.errors import ConfigError, DataError

OFFICE_31 = {"backpack": "back_pack", "laptop": "laptop_computer"}
CALTECH_256 = {
    "backpack": "003.backpack",
    "bike": "224.touring-bike",
    "calculator": "027.calculator",
    "headphones": "101.head-phones",
    "keyboard": "045.computer-keyboard",
    "laptop": "127.laptop-101",
    "monitor": "046.computer-monitor",
    "mouse": "047.computer-mouse",
    "mug": "041.coffee-mug",
    "projector": "238.video-projector",
}


def domain(root: Path, names: dict[str, str], count: int = 10) -> None:
    for label, name in enumerate(OFFICE_CALTECH10.classes):
        folder = root / names.get(name, name)
        folder.mkdir(parents=True)
        for number in range(count):
            mode, colour = ("L", 20 * label) if number == 0 else ("RGB", (20 * label, number, 9))
            Image.new(mode, (12, 9), colour).save(folder / f"frame_{number:04}.jpg")


@pytest.fixture
def office(data_folder: Path) -> Path:
    root = data_folder / "office_caltech10"
    domain(root / "amazon" / "images", OFFICE_31)
    domain(root / "caltech10", CALTECH_256)
    domain(root / "dslr", {})
    domain(root / "webcam", OFFICE_31)
    (root / "webcam" / "scissors").mkdir()  # one of Office-31's other classes
    return root


def test_all_names_are_understood_and_62_are_kept(office):
    federation = office_caltech10(size=16)
    assert INFO["office_caltech10"].is_there()
    assert [client.name for client in federation.clients] == ["amazon", "caltech", "dslr", "webcam"]
    assert federation.classes == tuple(sorted(federation.classes))
    for client in federation.clients:
        assert client.train.x.shape == (62, 3, 16, 16)
        assert client.train.x.dtype == torch.uint8
        assert set(client.train.y.bincount().tolist()) == {6, 7}  # 62 of ten classes
        assert client.tests[client.name].y.bincount().tolist() == [2] * 10
        # A picture's red is 20 times its label, whatever its folder is called.
        red = client.train.x[:, 0].float().mean(dim=(1, 2))
        assert torch.allclose(red, 20.0 * client.train.y, atol=4)
    assert check_federation(federation) == []


def test_all_pictures_keep_the_same_test_set(office):
    some, everything = office_caltech10(size=16), office_caltech10(size=16, per_client="all")
    for one, other in zip(some.clients, everything.clients, strict=True):
        assert len(other.train) == 80
        assert torch.equal(one.tests[one.name].x, other.tests[other.name].x)


def test_augmentation_is_for_training_only_and_can_be_switched_off(office):
    client = office_caltech10(size=16).clients[0]
    assert client.train.augment == FlipAndTurn(30)
    assert client.tests["amazon"].augment is None
    assert office_caltech10(size=16, augment=False).clients[0].train.augment is None


def test_the_seed_decides_the_split_and_the_cache_changes_nothing(office, data_folder):
    first = office_caltech10(size=16).fingerprint()
    assert list((data_folder / ".cache" / "office_caltech10").iterdir())
    assert office_caltech10(size=16).fingerprint() == first
    assert office_caltech10(size=16, split_seed=1).fingerprint() != first


def test_a_picture_that_changed_is_read_again(office):
    before = office_caltech10(size=16, per_client="all").fingerprint()
    for file in (office / "dslr" / "mug").iterdir():
        Image.new("RGB", (30, 30), (255, 255, 255)).save(file)
    after = office_caltech10(size=16, per_client="all").fingerprint()
    assert [name for name in before if before[name] != after[name]] == ["dslr"]


@pytest.mark.parametrize("wrong", [1, 0, -5, "every"])
def test_wrong_per_client(office, wrong):
    with pytest.raises(ConfigError, match="legal are 2 and more, 'all'"):
        loaded("office_caltech10", per_client=wrong)


def test_too_few_pictures_and_missing_folders_are_named(office):
    with pytest.raises(DataError, match=r"site amazon: 80 training pictures, but .* asks for 81"):
        office_caltech10(per_client=81)
    (office / "dslr" / "mug").rename(office / "dslr" / "cup")
    with pytest.raises(DataError, match="dslr: no folder mug; it has backpack, bike"):
        office_caltech10()
    (office / "dslr").rename(office / "slr")
    with pytest.raises(DataError, match="no folder dslr; it has amazon, caltech10, slr, webcam"):
        office_caltech10()


def test_without_data_it_says_where_it_looked(data_folder):
    assert not INFO["office_caltech10"].is_there()
    with pytest.raises(DataError, match=f"{data_folder}/office_caltech10: no such folder"):
        office_caltech10()


def test_a_damaged_picture_is_named(office):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = office / "webcam" / "bike" / "frame_0001.jpg"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:900])
    with pytest.raises(DataError, match=r"webcam/bike/frame_0001\.jpg: damaged or cut off"):
        office_caltech10(size=16, per_client="all")


@pytest.mark.slow
def test_the_real_pictures(real_data):
    federation = office_caltech10(per_client="all", size=32)
    sizes = [(len(c.train), len(c.tests[c.name])) for c in federation.clients]
    assert sizes == [(766, 192), (898, 225), (126, 31), (236, 59)]
