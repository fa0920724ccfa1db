"""Further pictures for a trained model: found, told whether they are labelled, and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedbn.data._domains import plain_name
from fedbn.data._files import is_hidden, shown, subfolders
from fedbn.data._images import DEPTH, is_picture, pictures_below, read_pictures
from fedbn.errors import DataError, unknown

_PARTS = ("train", "test", "valid")
_SCALED = 1.01
_BELOW_ZERO = -0.3


@dataclass(frozen=True)
class Found:
    """Files and what to call them; their labels, where there are some; remarks; which part."""

    files: Mapping[Path, str]
    labels: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    part: str = ""


def find_pictures(folder: Path, inputs: Mapping[str, Any], part: str) -> Found:
    """Find the pictures below a folder; folders named like the run's classes label them."""
    below = subfolders(folder)
    divided = {f.name: f for f in below if f.name in _PARTS and _class_folders(f, inputs)}
    if divided:
        chosen = divided.get(part, next(iter(divided.values())))
        found = find_pictures(chosen, inputs, part)
        notes = (f"{shown(folder)}: read its {chosen.name} part", *found.notes)
        return replace(found, notes=notes, part=chosen.name)
    named = _class_folders(folder, inputs)
    if named:
        return _labelled(folder, named, inputs)
    sites = [site for site in below if _class_folders(site, inputs)]
    if sites:
        names = ", ".join(shown(site.name) for site in sites[:10])
        raise DataError(f"{shown(folder)}: a folder of sites ({names}); give one of them")
    files = pictures_below(folder)
    if not files:
        raise DataError(f"{shown(folder)}: no pictures in it")
    inside = any(file.parent != folder for file in files)
    notes = ("its folders are no classes of the run: read as unlabelled",) if inside else ()
    return Found(_called(files, folder), None, notes)


def read_like(files: Sequence[Path], inputs: Mapping[str, Any]) -> Tensor:
    """Read pictures as samples of the run's shape, with the depth it was trained with."""
    shape = tuple(inputs["input_shape"])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"{shown(files[0])}: a picture, but the run was trained on samples of shape {shape}"
        )
    depth = inputs.get("preparation", {}).get("depth")
    if depth is None:
        _check_range(inputs)
    channels, height, width = shape
    return read_pictures(files, (width, height), depth or DEPTH, channels)


def _check_range(inputs: Mapping[str, Any]) -> None:
    """Refuse pictures for a run on floats that are no pictures scaled to [−1, 1]."""
    low, high = inputs["range"]
    if inputs["dtype"] == "uint8" or (-_SCALED <= low < _BELOW_ZERO and high <= _SCALED):
        return
    raise DataError(
        f"the run was trained on floats from {low:.4g} to {high:.4g}, while pictures become −1 to "
        "1; save them in an npz file, scaled like the training data"
    )


def _labelled(folder: Path, named: Sequence[Path], inputs: Mapping[str, Any]) -> Found:
    if any(is_picture(file) and not is_hidden(file) for file in folder.iterdir()):
        raise DataError(f"{shown(folder)}: pictures both beside and inside folders of classes")
    classes = list(inputs["classes"])
    files: dict[Path, str] = {}
    labels: list[int] = []
    for home in subfolders(folder):
        found = pictures_below(home)
        if not found:
            continue
        if home not in named:
            raise DataError(f"{shown(home)}: {unknown('class', shown(home.name), classes)}")
        files |= _called(found, folder)
        labels += [classes.index(_meant(home, inputs))] * len(found)
    return Found(files, np.array(labels, dtype=np.int64))


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
