"""One preparation: the same raw samples give the same tensors at every door."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedbn
from commanding import call
from fedbn.core.federation import Federation, Split
from fedbn.data import checks, new_samples
from fedbn.data.preparation import levelled, levels_of
from fedbn.errors import DataError
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import alone
from fedbn.trained import local_parts, trained_run
from fedbn.trained.trained_run import Trained

SITES = ("a", "b")
QUIET: dict[str, Any] = {"rounds": 1, "seed": 0, "workers": 1, "notes": lambda text: None}


@contextmanager
def given_to_models() -> Iterator[list[Tensor]]:
    """Record what models are given when they predict and are scored."""
    heard: list[Tensor] = []
    plain = trained_run.forward

    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        heard.append(batch.clone())
        return plain(model, batch)

    with mock.patch.object(trained_run, "forward", forward):
        yield heard


@contextmanager
def measured() -> Iterator[list[Tensor]]:
    """Record the samples that an adapted site's BatchNorm is measured on."""
    heard: list[Tensor] = []
    plain = local_parts.estimate_statistics

    def estimate(model: nn.Module, x: Tensor, chunk: int) -> None:
        heard.append(x.clone())
        plain(model, x, chunk)

    with mock.patch.object(local_parts, "estimate_statistics", estimate):
        yield heard


@contextmanager
def checked() -> Iterator[list[Federation]]:
    """Record the data that `data check` looks at."""
    heard: list[Federation] = []
    plain = checks.findings_in

    def findings_in(federation: Federation) -> Any:
        heard.append(federation)
        return plain(federation)

    with mock.patch.object(checks, "findings_in", findings_in):
        yield heard


def done(*words: object) -> None:
    answer = call(*words)
    assert answer.code == 0, answer.err


def ready(split: Any) -> Tensor:
    """Return all samples of a split as a model takes them."""
    x, _ = split.batch(slice(None))
    assert isinstance(x, Tensor)
    return x


def held_parts(federation: Federation) -> dict[str, Tensor]:
    return {client.name: ready(client.tests[client.name]) for client in federation.clients}


def train_parts(federation: Federation) -> dict[str, Tensor]:
    return {client.name: ready(client.train) for client in federation.clients}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert torch.equal(one[name], other[name]), name


def doors_of_a_run(
    data: Path,
    run: Path,
    further: dict[str, Path],
    options: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> Trained:
    """Send samples through `run`, `predict`, `evaluate` and `data check`, and compare.

    Args:
        data: The data of all sites.
        run: A folder for the run.
        further: By site, a path with its test samples, in the order of the run.
        options: Of `[data]`.
        more: Further words for `fedbn run`.

    Returns:
        The run, whose data is what every door gave.
    """
    given = [word for option in options for word in ("--set", f"data.{option}")]
    done("run", "--data", data, "--out", run, "--rounds", 1, "--seed", 0, "--workers", 1,
         "--method", "fedbn", *given, *more)  # fmt: skip
    with checked() as looked_at:
        done("data", "check", data, *given)
    opened = fedbn.open_run(run)
    expected = held_parts(opened.federation)
    same(held_parts(looked_at[-1]), expected)
    same(train_parts(looked_at[-1]), train_parts(opened.federation))
    for site, path in further.items():
        with given_to_models() as heard:
            done("predict", run, "--client", site, "--data", path)
        assert torch.equal(torch.cat(heard), expected[site])
    with given_to_models() as heard:
        done("evaluate", run)
    found = [[name for name, one in expected.items() if torch.equal(x, one)] for x in heard]
    assert {name for names in found for name in names} == {*expected}
    assert all(found)
    return opened


# --- Arrays -------------------------------------------------------------------------------------


def pictures(seed: int, n: int = 20) -> np.ndarray[Any, Any]:
    """Return pictures (n, height, width, channels) of bytes, as NumPy's readers give them."""
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 8, 3)).astype("uint8")


ARRAYS = {
    "vectors of doubles": lambda seed: np.random.default_rng(seed).normal(3, 40, (20, 5)),
    "vectors of bytes": lambda seed: pictures(seed)[:, 0, :, 0],
    "pictures with channels last": pictures,
    "pictures with channels first": lambda seed: np.moveaxis(pictures(seed), -1, 1).copy(),
    "pictures of floats": lambda seed: pictures(seed)[:, None, :, :, 0] / 127.5 - 1,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_are_the_same_at_every_door(tmp_path: Path, kind: str) -> None:
    raw = {site: ARRAYS[kind](seed) for seed, site in enumerate(SITES)}
    y = np.arange(20) % 2
    (tmp_path / "sites").mkdir()
    for site, x in raw.items():
        parts = {"train_x": x[:12], "train_y": y[:12], "test_x": x[12:], "test_y": y[12:]}
        np.savez(tmp_path / "sites" / f"{site}.npz", **parts)
        np.savez(tmp_path / f"{site}.npz", x=x[12:], y=y[12:])
    further = {site: tmp_path / f"{site}.npz" for site in SITES}
    run = doors_of_a_run(tmp_path / "sites", tmp_path / "run", further)
    expected = held_parts(run.federation)
    given = {s: ((x[:12], y[:12]), (x[12:], y[12:])) for s, x in raw.items()}
    fitted = fedbn.fit(given, **QUIET)
    same(held_parts(fitted.federation), expected)
    same(train_parts(fitted.federation), train_parts(run.federation))
    for one in (run, fitted):
        with given_to_models() as heard:
            one.predict(raw["b"][12:], "b")
        assert torch.equal(torch.cat(heard), expected["b"])
    with measured() as heard:
        run.adapt(raw["b"][12:], site="new")
        done("adapt", tmp_path / "run", "--data", further["b"], "--as", "new")
    assert all(torch.equal(ready(Split(x, torch.zeros(len(x)))), expected["b"]) for x in heard)
    with given_to_models() as heard:
        done("evaluate", tmp_path / "run", "--data", further["b"])
    assert torch.equal(heard[0], expected["b"])
    contract = {"classes": ["0", "1"]}
    section = {"path": str(tmp_path / "sites"), "name": "arrays", "contract": contract}
    site = alone(DataSection.model_validate(section), "b")
    same(held_parts(site), {"b": expected["b"]})


# --- Tables -------------------------------------------------------------------------------------

COLUMNS = ["age", "dose", "ward", "device", "ill"]
FEATURES = ["age", "dose", "ward=east", "ward=west", "device"]


def rows(site: str, n: int = 40) -> list[list[Any]]:
    """Return the rows of a site: with empty cells in `dose`, and with one `device`."""
    draws = np.random.default_rng(ord(site))
    scale = 10.0 ** (ord(site) - ord("a"))
    return [
        [
            int(draws.integers(20, 90)),
            None if number % 7 == 3 else float(scale * draws.normal()),
            ("east", "west")[int(draws.integers(2))],
            ord(site) / 10,
            ("no", "yes")[number % 2],
        ]
        for number in range(n)
    ]


def write(file: Path, lines: list[list[Any]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([COLUMNS, *lines])
    return file


def held_rows(federation: Federation, site: str) -> list[list[Any]]:
    """Return the rows that are the test part of a site."""
    client = next(one for one in federation.clients if one.name == site)
    test = client.tests[site]
    assert isinstance(test, Split)
    assert test.origin is not None
    first = 2 if test.origin.where.endswith(".csv") else 0  # the header of a file is row 1
    return [rows(site)[row - first] for row in test.origin.rows.tolist()]


def frame(lines: list[list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(lines, columns=COLUMNS)


CONTRACT = {
    "classes": ["no", "yes"],
    "label": "ill",
    "missing": "mean",
    "columns": [
        {"name": "age"},
        {"name": "dose"},
        {"name": "ward", "values": ["east", "west"]},
        {"name": "device"},
    ],
}


@pytest.mark.parametrize("normalize", ["none", "numeric", "site"])
def test_rows_are_the_same_at_every_door(tmp_path: Path, normalize: str) -> None:
    for site in SITES:
        write(tmp_path / "sites" / f"{site}.csv", rows(site))
    whole = fedbn.fit(
        {site: frame(rows(site)) for site in SITES},
        data__label="ill",
        data__missing="mean",
        data__normalize=normalize,
        **QUIET,
    )
    further = {
        site: write(tmp_path / f"{site}.csv", held_rows(whole.federation, site)) for site in SITES
    }
    options = ("label=ill", "missing=mean", f"normalize={normalize}")
    run = doors_of_a_run(tmp_path / "sites", tmp_path / "run", further, options)
    expected = held_parts(run.federation)
    same(held_parts(whole.federation), expected)
    same(train_parts(whole.federation), train_parts(run.federation))
    for one in (run, whole):
        with given_to_models() as heard:
            one.predict(frame(held_rows(run.federation, "b")), "b")
        assert torch.equal(torch.cat(heard), expected["b"])
    contract = {**CONTRACT, "normalize": normalize}
    for site in SITES:
        section = {"path": str(tmp_path / "sites" / f"{site}.csv"), "contract": contract}
        found = alone(DataSection.model_validate(section), site)
        same(held_parts(found), {site: expected[site]})


@pytest.mark.parametrize("normalize", ["none", "numeric", "site"])
def test_a_new_site_is_completed_by_its_own_rows_from_then_on(
    tmp_path: Path, normalize: str
) -> None:
    for site in SITES:
        write(tmp_path / "sites" / f"{site}.csv", rows(site))
    options = {"label": "ill", "missing": "mean", "normalize": normalize}
    run = fedbn.fit(
        str(tmp_path / "sites"),
        out=tmp_path / "run",
        **{f"data__{key}": value for key, value in options.items()},
        **QUIET,
    )
    new = write(tmp_path / "c.csv", rows("c"))
    with measured() as heard:
        adapted = run.adapt(frame(rows("c")), site="c")
        done("adapt", tmp_path / "run", "--data", new, "--as", "c")
    first = heard[0]
    assert all(torch.equal(x, first) for x in heard)
    dose = np.array([np.nan if row[1] is None else row[1] for row in rows("c")])
    filled = np.where(np.isnan(dose), np.nanmean(dose), dose)
    plain = [
        [r[0], f, r[2] == "east", r[2] == "west", r[3]]
        for r, f in zip(rows("c"), filled, strict=True)
    ]
    values = np.array(plain, dtype=float)
    chosen = [
        name in ("age", "dose") or (normalize == "site" and "ward" in name) for name in FEATURES
    ]
    if normalize != "none":
        values[:, -1] = 0  # the device never changes
        levels = (values - values.mean(axis=0)) / np.maximum(values.std(axis=0, ddof=1), 1e-9)
        values = np.where(chosen, levels, values)
    np.testing.assert_allclose(first.numpy(), values, rtol=1e-5, atol=1e-5)
    with given_to_models() as heard:
        adapted.predict(frame(rows("c")), "c")
        fedbn.open_run(tmp_path / "run").predict(frame(rows("c")[:1]), "c")
        done("predict", tmp_path / "run", "--client", "c", "--data", new)
    assert torch.equal(heard[0], first)
    assert torch.equal(heard[1], first[:1])
    assert torch.equal(heard[2], first)


# --- Pictures and masks -------------------------------------------------------------------------


def draw(folder: Path, kind: str) -> Path:
    """Draw pictures of two classes, or with masks, in train/ and test/ of two sites."""
    for seed, site in enumerate(SITES):
        for part, count in (("train", 6), ("test", 4)):
            pixels = pictures(10 * seed + count, 2 * count)
            if kind == "deep":
                pixels = pixels[..., 0].astype("uint16") * 16
            for number, picture in enumerate(pixels):
                homes = ("images",) if kind == "masks" else (("cat", "dog")[number % 2],)
                values = [picture]
                if kind == "masks":
                    homes, values = ("images", "masks"), [picture, 255 * (picture[..., 0] > 99)]
                for home, one in zip(homes, values, strict=True):
                    file = folder / site / part / home / f"{number:02d}.png"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(np.asarray(one, picture.dtype)).save(file)
    return folder


class Opened(Dataset[Any]):
    """The pictures of a part as a Dataset of the user's own gives them."""

    classes = ("cat", "dog")

    def __init__(self, home: Path):
        self.files = sorted(home.glob("*/*.png"))
        self.targets = [self.classes.index(file.parent.name) for file in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self.files[index]) as picture:
            return picture.convert("RGB"), self.targets[index]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("plain", ()),
        ("plain", ("normalize='imagenet'",)),
        ("plain", ("size=6", "lazy=true")),
        ("plain", ("channels=1", "normalize=[[0.5],[0.2]]")),
        ("deep", ("depth=4095",)),
    ],
)
def test_pictures_are_the_same_at_every_door(
    tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    folder = draw(tmp_path / "sites", kind)
    further = {site: folder / site for site in SITES}
    run = doors_of_a_run(folder, tmp_path / "run", further, options)
    expected, training = held_parts(run.federation), train_parts(run.federation)
    asked = dict(one.split("=", 1) for one in options)
    given = {f"data__{key}": json.loads(one.replace("'", '"')) for key, one in asked.items()}
    fitted = fedbn.fit(folder, **given, **QUIET)
    same(held_parts(fitted.federation), expected)
    if not options:
        datasets = {s: (Opened(folder / s / "train"), Opened(folder / s / "test")) for s in SITES}
        same(held_parts(fedbn.fit(datasets, **QUIET).federation), expected)
        raw = np.stack([np.asarray(x) for x, _ in datasets["b"][1]])
        with given_to_models() as heard:
            run.predict(raw, "b")
        assert torch.equal(torch.cat(heard), expected["b"])
    with measured() as heard:
        done("adapt", tmp_path / "run", "--data", folder / "b", "--as", "new")
    assert torch.equal(ready(Split(heard[0], torch.zeros(len(heard[0])))), training["b"])
    with given_to_models() as heard:
        done("evaluate", tmp_path / "run", "--data", folder / "b")
    assert torch.equal(heard[0], expected["b"])
    agreed = {"classes": ["cat", "dog"], "size": run.preparation.shape[1]}
    agreed |= {key: value for key, value in given.items() if key in ("depth", "channels")}
    agreed |= {k.removeprefix("data__"): v for k, v in given.items() if k != "data__lazy"}
    if agreed.get("normalize") == "imagenet":
        agreed["normalize"] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]
    section = {"path": str(folder / "b"), "contract": agreed, "name": "folders"}
    same(held_parts(alone(DataSection.model_validate(section), "b")), {"b": expected["b"]})


def test_pictures_with_masks_are_the_same_at_every_door(tmp_path: Path) -> None:
    folder = draw(tmp_path / "sites", "masks")
    further = {site: folder / site for site in SITES}
    small = ("--set", "model.name=unet", "--set", "model.args={width=2,depth=1}")
    run = doors_of_a_run(folder, tmp_path / "run", further, ("values=[0,255]",), small)
    expected = held_parts(run.federation)
    model = {"model__args": {"width": 2, "depth": 1}}
    same(held_parts(fedbn.fit(folder, "unet", **model, **QUIET).federation), expected)
    with measured() as heard:
        done("adapt", tmp_path / "run", "--data", folder / "b", "--as", "new")
    training = train_parts(run.federation)["b"]
    assert torch.equal(ready(Split(heard[0], torch.zeros(len(heard[0])))), training)
    test = run.federation.clients[1].tests["b"]
    read = new_samples.read_samples(folder / "b", run.preparation)
    assert read.y is not None
    assert test.y is not None
    assert torch.equal(read.y, test.y)
    assert read.y.unique().tolist() == [0, 1]
    with given_to_models() as heard:
        done("evaluate", tmp_path / "run", "--data", folder / "b")
    assert torch.equal(heard[0], expected["b"])


# --- What a run remembers -----------------------------------------------------------------------


def trained_on_tables(folder: Path, normalize: str = "numeric") -> Path:
    """Train on one table with a column of sites; return the run."""
    lines = [[*row, site] for site in SITES for row in rows(site)]
    with (folder / "all.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([[*COLUMNS, "site"], *lines])
    options = ("label=ill", "missing=mean", "site=site", f"normalize={normalize}")
    given = [word for option in options for word in ("--set", f"data.{option}")]
    done("run", "--data", folder / "all.csv", "--out", folder / "run", "--rounds", 1, "--seed", 0,
         "--workers", 1, "--method", "fedbn", "--method", "centralized", *given)  # fmt: skip
    return folder / "run"


def test_a_table_that_names_a_known_site_is_completed_as_its(tmp_path: Path) -> None:
    run = trained_on_tables(tmp_path)
    opened = fedbn.open_run(run)
    expected = held_parts(opened.federation)
    test = opened.federation.clients[1].tests["b"]
    assert isinstance(test, Split)
    assert test.origin is not None
    whole = (tmp_path / "all.csv").read_text().splitlines()
    held = [whole[row - 1] for row in test.origin.rows.tolist()]
    (tmp_path / "b.csv").write_text("\n".join([whole[0], *held]) + "\n")
    with given_to_models() as heard:
        done("evaluate", run, "--data", tmp_path / "b.csv")
    assert torch.equal(heard[0], expected["b"])
    a = [line.removesuffix("b") + "a" for line in held[:2]]
    (tmp_path / "two.csv").write_text("\n".join([whole[0], *held, *a]) + "\n")
    with given_to_models() as heard:
        done("predict", run, "--client", "all", "--data", tmp_path / "two.csv", "--method",
             "centralized")  # fmt: skip
    assert torch.equal(heard[0][: len(held)], expected["b"])
    assert not torch.equal(heard[0][len(held) :], expected["b"][:2])


def test_training_rows_are_recognised_one_by_one(tmp_path: Path) -> None:
    run = trained_on_tables(tmp_path)
    train = fedbn.open_run(run).federation.clients[1].train
    assert isinstance(train, Split)
    assert train.origin is not None
    whole = (tmp_path / "all.csv").read_text().splitlines()
    old = whole[int(train.origin.rows[3]) - 1]
    header = whole[0].removesuffix(",site")
    new = "33,0.25,east,9.8,no"
    (tmp_path / "some.csv").write_text("\n".join([header, new, old.removesuffix(",b")]) + "\n")
    for words in (("predict", run, "--client", "b"), ("evaluate", run)):
        answer = call(*words, "--data", tmp_path / "some.csv")
        assert answer.code == 0, answer.err
        assert "1 of 2 samples" in answer.err
        assert "row 3" in answer.err


def test_changed_data_is_prepared_as_it_was_for_training(tmp_path: Path) -> None:
    run = trained_on_tables(tmp_path)
    before = held_parts(fedbn.open_run(run).federation)
    text = (tmp_path / "all.csv").read_text()
    (tmp_path / "all.csv").write_text(text.replace("\n", "\n70,900.0,east,9.7,no,a\n", 1))
    after = held_parts(fedbn.open_run(run).federation)
    assert torch.equal(after["b"], before["b"])
    sites = fedbn.open_run(run).preparation.sites
    assert sites["a"].means is not None
    assert abs(sites["a"].means[1]) < 1  # without the new row
    (tmp_path / "all.csv").write_text(text.replace("east", "north"))
    changed = r"the columns changed since the run was trained: age, dose, ward \(east, west\).*then"
    with pytest.raises(DataError, match=changed):
        _ = fedbn.open_run(run).federation


@pytest.mark.parametrize("count", [1, 7, 1001])
def test_columns_that_never_change_stay_finite(count: int) -> None:
    x = torch.full((count, 2), 0.1)
    for chosen in (None, torch.tensor([True, True])):
        means, deviations = levels_of(x, chosen)
        assert deviations == [1.0, 1.0]
        assert levelled(x, [means, deviations]).tolist() == [[0.0, 0.0]] * count
        assert levelled(torch.full((1, 2), 0.2), [means, deviations]).abs().max() < 1


def test_a_site_is_levelled_by_its_training_rows_alone() -> None:
    lines = rows("a")
    given = {"a": frame(lines), "b": frame(rows("b"))}
    options = {"label": "ill", "missing": "mean", "normalize": "numeric"}
    made = fedbn.fit(given, **{f"data__{k}": v for k, v in options.items()}, **QUIET).federation
    train, test = (
        ready(part)[:, :2] for part in (made.clients[0].train, made.clients[0].tests["a"])
    )
    torch.testing.assert_close(train.mean(dim=0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(dim=0), torch.ones(2))
    assert test.mean(dim=0).abs().max() > 1e-3
    wards = ready(made.clients[0].train)[:, 2:4]
    assert wards.unique().tolist() == [0, 1]  # categories stay 0 and 1
