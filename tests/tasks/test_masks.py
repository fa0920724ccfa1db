"""Pictures with masks, tables of numbers and of several labels, and published weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from loading import read_samples
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import fedbn
from fedbn.core.federation import Targets
from fedbn.data.checks import recognize
from fedbn.datasets.own_files import masks, tables
from fedbn.errors import ConfigError, DataError, FedbnError, ModelError
from fedbn.models.networks import resnet18, unet
from tiny import same

QUIET = {"notes": lambda text: None}


def picture(file: Path, seed: int, size: tuple[int, int] = (12, 12)) -> None:
    """Bright squares on a dark ground; the mask is what is bright."""
    draws = np.random.default_rng(seed)
    bright = np.zeros(size[::-1], dtype=bool)
    row, column = draws.integers(0, 6, size=2)
    bright[row : row + 5, column : column + 5] = True
    pixels = draws.integers(0, 60, size=(*size[::-1], 3)) + 150 * bright[..., None]
    for part, values in (("images", pixels), ("masks", 255 * bright)):
        place = file.parent / part / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.astype(np.uint8)).save(place)


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for number, site in enumerate(("north", "south")):
        for eye in range(12):
            picture(
                tmp_path / "sites" / site / f"child{eye // 2}{'LR'[eye % 2]}.png", 20 * number + eye
            )
    return tmp_path / "sites"


def test_masks_are_found_read_and_children_stay_whole(sites: Path):
    assert recognize(sites)[0] == "masks"
    made = masks(str(sites), group="(.*)[LR]$", classes=["ground", "square"], test_share=0.3)
    assert (made.targets, made.classes) == (Targets.MASK, ("ground", "square"))
    for client in made.clients:
        test = client.tests[client.name]
        assert (len(client.train), len(test)) == (8, 4)
        assert not set(client.train.groups.tolist()) & set(test.groups.tolist())
    first = made.clients[0].train
    assert first.y.dtype == torch.uint8
    assert torch.equal(first.y == 1, first.x[:, 0] >= 150)
    assert made.preparation == {"masks": [0, 255], "group": "(.*)[LR]$"}


def test_a_u_net_learns_them_from_the_command_line_on_and_is_used(sites: Path, tmp_path: Path):
    asked = {
        "training__lr": 0.05,
        "training__batch_size": 5,
        "model__args": {"width": 4, "depth": 1},
    }
    run = fedbn.fit(sites, rounds=6, out=tmp_path / "run", **asked, **QUIET)
    assert (run.plan.task.name, run.metric.name) == ("segmentation", "dice")
    assert min(run.scores("train").values()) > 0.6
    opened = fedbn.open_run(tmp_path / "run")
    again = read_samples(sites / "north", opened.inputs)
    assert again.y is not None
    assert opened.score(again.x, again.y, "north") > 0.6
    (sites / "north" / "masks" / "child0L.png").unlink()
    picture(sites / "north" / "child0L.png", 1)
    odd = np.full((12, 12), 7, dtype=np.uint8)
    Image.fromarray(odd).save(sites / "north" / "masks" / "child0L.png")
    with pytest.raises(DataError, match=r"child0L.png: mask value 7; legal are 0, 255"):
        read_samples(sites / "north", opened.inputs)


def test_train_and_test_folders_are_kept(tmp_path: Path):
    for part, count in (("train", 5), ("test", 3)):
        for number in range(count):
            picture(tmp_path / "all" / "one" / part / f"{number}.png", number)
    (client,) = masks(str(tmp_path / "all")).clients
    assert (len(client.train), len(client.tests["one"])) == (5, 3)


@pytest.mark.shows("T05", "T06", "T07")
def test_bad_masks_are_named(sites: Path):
    def refused(match: str, **options: object) -> None:
        with pytest.raises(FedbnError, match=match) as found:
            masks(str(sites), **options)
        assert "\n" not in str(found.value)

    home = sites / "south"
    refused("2 names|3 names", classes=["a", "b", "c"])
    refused("mask value 255; legal are 0, 1", values=[0, 1])
    refused("no regular expression", group="(")
    refused("does not match", group="nobody")
    kept = (home / "masks" / "child1L.png").read_bytes()
    Image.new("L", (9, 12)).save(home / "masks" / "child1L.png")
    refused("child1L.png: 9×12 pixels, but its picture has 12×12")
    draws = np.random.default_rng(0)
    colours = draws.integers(0, 255, size=(12, 12, 3)).astype(np.uint8)
    Image.fromarray(colours).save(home / "masks" / "child1L.png")
    refused("child1L.png: colours; legal are masks of one channel")
    grey = draws.integers(0, 255, size=(12, 12)).astype(np.uint8)
    Image.fromarray(grey).save(home / "masks" / "child1L.png")
    refused("117 values from 0 to 255, as JPEG or smoothing makes them")
    (home / "masks" / "child1L.png").unlink()
    refused("child1L.png: no mask of this name")
    (home / "masks" / "child1L.png").write_bytes(kept)
    (home / "images" / "child1L.png").unlink()
    refused("a mask, but no picture child1L")


def test_a_palette_and_one_bit_are_masks_too(tmp_path: Path):
    home = tmp_path / "sites" / "one"
    for number in range(4):
        picture(home / f"{number}.png", number)
        mask = Image.open(home / "masks" / f"{number}.png")
        if number % 2:
            mask = mask.convert("1")
        mask.save(home / "masks" / f"{number}.png")
    assert masks(str(tmp_path / "sites")).preparation == {"masks": [0, 255]}


# Tables


def write_tables(folder: Path, rows: int = 30) -> Path:
    draws = np.random.default_rng(0)
    folder.mkdir()
    for site, scale in (("a", 1), ("b", 10)):
        lines = ["p,q,dose,sick,old,one,word"]
        for p, q in draws.normal(size=(rows, 2)):
            sick, old = "yes" if p > 0 else "no", int(q > 0)
            lines.append(f"{scale * p:.4f},{scale * q:.4f},{2 * p - q:.4f},{sick},{old},1,x")
        (folder / f"{site}.csv").write_text("\n".join([*lines, ""]))
    return folder


def test_a_numeric_label_is_regression_and_several_columns_are_labels(tmp_path: Path):
    path, drop = str(write_tables(tmp_path / "t")), ["one", "word"]
    dose = tables(path, label="dose", numbers=True, drop=[*drop, "sick", "old"])
    assert (dose.targets, dose.classes, dose.input_shape) == (Targets.NUMBERS, ("dose",), (2,))
    both = tables(path, label=["sick", "old"], drop=[*drop, "dose"])
    assert (both.targets, both.classes) == (Targets.LABELS, ("sick", "old"))
    assert both.clients[0].train.y.dtype == torch.bool
    more = {"data__drop": [*drop, "sick", "old"], "training__lr": 0.05}
    asked = {"data__label": "dose", "data__numbers": True, **more, **QUIET}
    run = fedbn.fit(path, rounds=8, out=tmp_path / "run", **asked)
    assert run.plan.task.name == "regression"
    opened = fedbn.open_run(tmp_path / "run")
    read = read_samples(tmp_path / "t" / "a.csv", opened.inputs)
    assert read.y is not None
    assert read.y.shape == (30, 1)


@pytest.mark.shows("T10")
def test_bad_label_columns_are_named(tmp_path: Path):
    path = str(write_tables(tmp_path / "t"))

    def refused(match: str, **options: object) -> None:
        with pytest.raises(FedbnError, match=match):
            fedbn.fit(path, rounds=1, **{f"data__{k}": v for k, v in options.items()}, **QUIET)

    refused(r"a.csv, row 2, column 'word': 'x' is not a number", label="word", numbers=True)
    refused("target 'one': it is 1 in every training sample", label="one", numbers=True)
    refused("'x' is no label among several", label=["sick", "word"])
    refused("target 'one': every training sample has it", label=["sick", "one"], drop=["word"])
    refused("not classes .data.numbers = true learns numbers", label="dose")


# Models


def test_a_u_net_takes_any_size_and_a_resnet_has_the_names_of_published_ones():
    assert unet(3, (1, 21, 34), width=4)(torch.zeros(2, 1, 21, 34)).shape == (2, 3, 21, 34)
    with torch.device("meta"):
        model = resnet18(1000, (3, 224, 224))
    state = model.state_dict()
    assert sum(p.numel() for p in model.parameters()) == 11_689_512  # torchvision's count
    assert len(state) == 122
    for name in ("layer1.1.bn2.running_var", "layer4.0.downsample.1.weight", "fc.bias"):
        assert name in state


class Small(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.fc = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


def test_published_weights_but_for_the_head(tmp_path: Path):
    published = Small(7)
    save_file(published.state_dict(), tmp_path / "w.safetensors")
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    data = {"a": (x, (x[:, 0] > 0).astype("int64"))}
    asked = {"model__weights": str(tmp_path / "w.safetensors"), **QUIET}
    with pytest.raises(ModelError, match="fc"):
        fedbn.fit(data, lambda classes: Small(classes), rounds=1, **asked)
    run = fedbn.fit(data, lambda classes: Small(classes), rounds=1, model__fresh=["fc.*"], **asked)
    assert same(run.plan.initial_model.body.state_dict(), published.body.state_dict())
    assert run.plan.initial_model.fc.weight.shape == (2, 4)
    with pytest.raises(ConfigError, match=r"model.fresh: unknown entry 'head\.\*'"):
        fedbn.fit(data, lambda classes: Small(classes), rounds=1, model__fresh=["head.*"], **asked)


@pytest.mark.shows("R10")
@pytest.mark.parametrize(
    ("affine", "words"), [(True, r"\+local\(instance\)"), (False, "norm='batch'")]
)
def test_instance_norm_is_refused_with_the_word_that_helps(affine: bool, words: str):
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 2, 1), nn.InstanceNorm2d(2, affine=affine), nn.Flatten(), nn.Linear(32, 2)
        )

    data = {"a": (np.zeros((6, 1, 4, 4), "float32"), [0, 1, 0, 1, 0, 1])}
    with pytest.raises(ModelError, match=words) as found:
        fedbn.fit(data, model, rounds=1, **QUIET)
    assert ("local(instance)" in str(found.value)) == affine
