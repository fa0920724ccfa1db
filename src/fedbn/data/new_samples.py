"""Further samples for a trained model, with labels or without: pictures, a table or arrays.

They are brought to what the run was trained on, from what the run remembers of it (its `inputs`,
see `fedbn.experiments.environment`): the shape of a sample, the classes and the columns of a table.
A picture becomes RGB or grey, is resized like the training pictures and scaled to [−1, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedbn.core.federation import A_CLASS, scaled
from fedbn.data import arrays, tables
from fedbn.data.benchmarks import plain_name
from fedbn.data.image_folders import PARTS, owners
from fedbn.data.images import DEPTH, is_picture, pictures_below, read_pictures
from fedbn.data.masks import has_masks, numbered, pairs_in, read_masks
from fedbn.data.own_pictures import normalised
from fedbn.data.storage import files_in, subfolders
from fedbn.data.table_files import TABLE_SUFFIXES, Table, read_table
from fedbn.errors import DataError, unknown
from fedbn.text import shown

Part = Literal["train", "test"]
LEGAL = "a folder of pictures (class folders in it if labelled), a picture, a table, or an npz file"
SCALED = 1.01
_BELOW_ZERO = -0.3
_WHITE = 255
_BYTE_LIKE = 100  # whole floats above this value are pixels that were converted, not scaled


@dataclass(frozen=True)
class Found:
    """Files and what to call them; their labels, where there are some; remarks; which part."""

    files: Mapping[Path, str]
    labels: Tensor | None = None
    notes: tuple[str, ...] = ()
    part: str = ""


def find_pictures(folder: Path, inputs: Mapping[str, Any], part: str) -> Found:
    """Find the pictures below a folder; folders named like the run's classes label them."""
    below = subfolders(folder)
    divided = {f.name: f for f in below if f.name in PARTS and _class_folders(f, inputs)}
    if divided:
        chosen = divided.get(part, next(iter(divided.values())))
        found = find_pictures(chosen, inputs, part)
        notes = (f"{shown(folder)}: read its {chosen.name} part", *found.notes)
        return replace(found, notes=notes, part=chosen.name)
    if named := _class_folders(folder, inputs):
        return _labelled(folder, named, inputs)
    if sites := [site for site in below if _class_folders(site, inputs)]:
        names = ", ".join(shown(site.name) for site in sites[:10])
        raise DataError(f"{shown(folder)}: a folder of sites ({names}); give one of them")
    if not (files := pictures_below(folder)):
        raise DataError(f"{shown(folder)}: no pictures in it")
    inside = any(file.parent != folder for file in files)
    notes = ("its folders are no classes of the run: read as unlabelled",) if inside else ()
    return Found(_called(files, folder), None, notes)


def _labelled(folder: Path, named: Sequence[Path], inputs: Mapping[str, Any]) -> Found:
    if any(map(is_picture, files_in(folder))):
        raise DataError(f"{shown(folder)}: pictures both beside and inside folders of classes")
    classes = list(inputs["classes"])
    files: dict[Path, str] = {}
    labels: list[int] = []
    for home in subfolders(folder):
        if not (found := pictures_below(home)):
            continue
        if home not in named:
            raise DataError(f"{shown(home)}: {unknown('class', shown(home.name), classes)}")
        files |= _called(found, folder)
        labels += [classes.index(_meant(home, inputs))] * len(found)
    return Found(files, torch.tensor(labels))


def _class_folders(folder: Path, inputs: Mapping[str, Any]) -> list[Path]:
    """The folders in one that are named like a class and hold pictures."""
    known = [f for f in subfolders(folder) if _meant(f, inputs) in inputs["classes"]]
    return [home for home in known if pictures_below(home)]


def _meant(folder: Path, inputs: Mapping[str, Any]) -> str:
    name = shown(folder.name)
    aliases = inputs.get("preparation", {}).get("aliases")
    if name in inputs["classes"] or aliases is None:
        return name
    plain = plain_name(name)
    return str(aliases.get(plain, plain))


def _called(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    return {file: shown(file.relative_to(folder).as_posix()) for file in files}


@dataclass(frozen=True)
class Samples:
    """Samples (n, ...) ready for a model, what each is called, and labels where there are some.

    `notes` are for the user; `part` is `train` or `test` where this is one part of divided data;
    `groups` number whose each is, where the run knows that (`data.group`) and all samples say it.
    """

    x: Tensor
    names: tuple[str, ...]
    y: Tensor | None = None
    notes: tuple[str, ...] = ()
    part: str = ""
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)


def levels_of(x: Tensor) -> list[list[float]]:
    """Means and deviations of samples: a channel of pictures, a feature of all else."""
    rows = scaled(x).double().movedim(1, 0).flatten(1)
    deviations = rows.std(dim=1).nan_to_num()
    return [rows.mean(dim=1).tolist(), torch.where(deviations > 0, deviations, 1.0).tolist()]


def levelled(x: Tensor, levels: Sequence[Sequence[float]]) -> Tensor:
    """Bring samples to means of 0 and deviations of 1.

    Examples:
        >>> levelled(torch.tensor([[1.0, 9.0], [3.0, 9.0]]), [[2.0, 9.0], [1.0, 1.0]])
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    mean, deviation = (torch.tensor(each).reshape(-1, *[1] * (x.dim() - 2)) for each in levels)
    return (scaled(x) - mean) / deviation


def read_samples(
    path: Path, inputs: Mapping[str, Any], part: Part = "test", client: str | None = None
) -> Samples:
    """Read a site's samples, which must fit what the run remembers of its data (`inputs`).

    Where the run normalised a client's samples, or filled gaps in them, by levels and means of its
    own, `client` says whose these are.
    """
    samples = _as_read(path, inputs, part, client or "")
    if not (known := inputs.get("preparation", {}).get("levels")):
        return samples
    own = tables.own_of(known, client or "")
    said = () if own else ("normalised by their own mean and deviation, as those of a new site",)
    x = levelled(samples.x, own or levels_of(samples.x))
    return replace(samples, x=x, notes=(*samples.notes, *said))


def _as_read(path: Path, inputs: Mapping[str, Any], part: Part, client: str) -> Samples:
    place = _file_in(path) if path.is_dir() else path
    if place.is_dir() and "masks" in inputs.get("preparation", {}) and has_masks(place):
        return _masked(place, inputs, part)
    if place.is_dir():
        return _pictures(find_pictures(place, inputs, part), inputs)
    if not place.is_file():
        raise DataError(f"{shown(place)}: no such file or folder; expected {LEGAL}")
    if place.suffix.lower() == ".npz":
        return _arrays(place, inputs, part)
    if place.suffix.lower() in TABLE_SUFFIXES:
        return _rows(read_table(place), inputs, client)
    if is_picture(place):
        return _pictures(Found({place: place.name}), inputs)
    raise DataError(f"{shown(place)}: {place.suffix or 'no suffix'}; expected {LEGAL}")


def _file_in(folder: Path) -> Path:
    """A folder's only table or npz file, or the folder itself where it has none."""
    files = files_in(folder)
    known = [f for f in files if f.suffix.lower() in {".npz", *TABLE_SUFFIXES}]
    if len(known) > 1:
        names = ", ".join(shown(file.name) for file in known[:10])
        raise DataError(f"{shown(folder)}: several files ({names}); give one of them")
    return known[0] if known and not any(is_picture(f) for f in files) else folder


def _pictures(found: Found, inputs: Mapping[str, Any]) -> Samples:
    """Read pictures as samples of the run's shape, with the depth it was trained with."""
    files, shape = list(found.files), tuple(inputs["input_shape"])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"{shown(files[0])}: a picture, but the run was trained on samples of shape {shape}"
        )
    told = inputs.get("preparation", {})
    depth, normalize = told.get("depth"), told.get("normalize")
    if depth is None and normalize is None and "levels" not in told and not takes_bytes(inputs):
        low, high = inputs["range"]
        raise DataError(
            f"the run was trained on floats from {low:.4g} to {high:.4g}, while pictures "
            "become −1 to 1; save them in an npz file, scaled like the training data"
        )
    channels, height, width = shape
    x = read_pictures(files, (width, height), depth or DEPTH, channels)
    notes = found.notes
    if x.is_floating_point() and depth is None:
        notes += (f"16-bit pictures, which the run does not know: 0 to {DEPTH} becomes −1 to 1",)
    names, groups = tuple(found.files.values()), None
    if pattern := told.get("group"):
        with suppress(DataError):  # a name that does not match matters where samples are divided
            groups = tables.row_groups(owners(files, pattern))
    return Samples(normalised(x, normalize), names, found.labels, notes, found.part, groups)


def _rows(table: Table, inputs: Mapping[str, Any], client: str) -> Samples:
    x, notes = tables.features(table, inputs, client)
    y, rows = tables.table_labels(table, inputs), tuple(f"row {row}" for row in table.rows)
    groups = tables.row_groups(tables.cells_of(table, inputs, "group"))
    return Samples(torch.from_numpy(x), rows, y, notes, groups=groups)


def _masked(home: Path, inputs: Mapping[str, Any], part: Part) -> Samples:
    """Read pictures with their masks, whose values must be those of the run."""
    divided = has_masks(home / part)
    found = pairs_in(home / part if divided else home)
    samples = _pictures(Found({file: file.name for file in found.pictures}), inputs)
    height, width = inputs["input_shape"][1:]
    y = numbered(read_masks(found, (width, height)), inputs["preparation"]["masks"], found.masks)
    return replace(samples, y=y, part=part if divided else "")


def _arrays(file: Path, inputs: Mapping[str, Any], part: Part) -> Samples:
    content = arrays.read_npz(file)
    prefixes = (f"{part}_", "", "test_" if part == "train" else "train_")
    names = [f"{prefix}{suffix}" for prefix in prefixes for suffix in arrays.ENDINGS["x"]]
    if (chosen := next((name for name in names if name in content), None)) is None:
        raise DataError(
            f"{shown(file)}: no samples; expected one of {', '.join(names)}; it has "
            f"{', '.join(content) or 'nothing'}"
        )
    prefix = chosen.rpartition("_")[0] + "_" if "_" in chosen else ""
    shape = tuple(inputs["input_shape"])
    x = arrays.channels_first(content[chosen], f"{shown(file)}, {chosen}", shape)
    check_shape(x, inputs, shown(file))
    y = _array_labels(content, prefix, len(x), inputs, file)
    notes = (f"{shown(file)}: read {chosen}",) if prefix else ()
    return Samples(x, tuple(map(str, range(len(x)))), y, notes, prefix.rstrip("_"))


def _array_labels(
    content: arrays.Content, prefix: str, n: int, inputs: Mapping[str, Any], file: Path
) -> Tensor | None:
    """Bring targets to the run's: numbers, labels, or classes by name or place in the file's."""
    keys = [f"{prefix}{ending}" for ending in arrays.ENDINGS["y"]]
    if (given := next((content[key] for key in keys if key in content), None)) is None:
        return None
    names, numbers, where = inputs["classes"], tables.numbers_in(inputs), f"{shown(file)}, labels"
    plain, (_, size) = arrays.plain_labels(given), inputs.get("target") or A_CLASS
    y = plain if numbers is None else given.reshape(n, -1) if given.shape == (n,) else given
    if y.shape != (n, *size):
        raise DataError(f"{where} of shape {y.shape} for {n} samples; expected {(n, *size)}")
    if numbers is None:
        named = bool(tables.told_of(inputs)) and "classes" not in content
        own = arrays.npz_classes(content, file) or names
        found = [own[label] for label in arrays.labels_of(y, n, own, where, named)]
        return torch.from_numpy(arrays.places(found, names, where))
    columns = {name: list(map(str, c)) for name, c in zip(names, y.T.tolist(), strict=False)}
    return tables.table_targets(Table(where, columns, list(range(n))), names, numbers, ())


def takes_bytes(inputs: Mapping[str, Any]) -> bool:
    """Tell whether a run was trained on pixels, or on floats that look like scaled ones."""
    low, high = inputs.get("range") or (-1.0, 1.0)
    return inputs["dtype"] == "uint8" or (-SCALED <= low < _BELOW_ZERO and high <= SCALED)


def check_shape(x: Tensor, inputs: Mapping[str, Any], where: str) -> None:
    """Refuse samples of another shape than the run's, and none at all."""
    shape = tuple(inputs["input_shape"])
    if x.dim() < 1 or tuple(x.shape[1:]) != shape:
        raise DataError(
            f"{where}: shape {tuple(x.shape)}, so samples of shape {tuple(x.shape[1:])}; "
            f"the run was trained on {shape}"
        )
    if not len(x):
        raise DataError(f"{where}: no samples")


def check_range(x: Tensor, inputs: Mapping[str, Any], where: str) -> None:
    """Refuse float pictures whose values are stored in another range than the run's.

    Args:
        x: Finite float samples (n, ...); only pictures (n, channels, height, width) are checked.
        inputs: What the run remembers of its data.
        where: The start of the message.

    Raises:
        DataError: The run was trained on `uint8` or on values up to 1, and these are in another of
            the usual ranges: 0 to 1, −1 to 1, or whole numbers from 0 to 255.
    """
    if x.dim() != 4:
        return
    low, high = map(float, x.aminmax())
    least, most = (
        (-1.0, 1.0) if inputs.get("dtype") == "uint8" else inputs.get("range", (low, high))
    )
    found = f"{where}: floats from {low:.4g} to {high:.4g}, but the run was trained on "
    if inputs.get("dtype") == "uint8" and low >= 0 and 0 < high <= SCALED:
        raise DataError(
            f"{found}pixels 0 to 255 that became −1 to 1; give uint8, or floats from −1 to 1 "
            "(2 * x - 1 where 0 is black and 1 is white)"
        )
    whole = bool((x % 1 == 0).all())
    if most <= SCALED and low >= 0 and _BYTE_LIKE < high <= _WHITE and whole:
        raise DataError(f"{found}floats from {least:.4g} to {most:.4g}; bring these to that range")
    if least >= 0 and _BYTE_LIKE < most <= _WHITE and low >= 0 and high <= SCALED and not whole:
        raise DataError(f"{found}floats from {least:.4g} to {most:.4g}; bring these to that range")
