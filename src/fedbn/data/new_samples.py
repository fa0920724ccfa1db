"""Further samples for a trained model, with labels or without: pictures, a table or arrays.

Files are found here. The run's preparation (`fedbn.data.preparation`) makes samples of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedbn.core.federation import Targets
from fedbn.data import arrays
from fedbn.data.benchmarks import plain_name
from fedbn.data.image_folders import PARTS, owners
from fedbn.data.images import DEPTH, is_picture, pictures_below
from fedbn.data.masks import has_masks, pairs_in
from fedbn.data.preparation import Preparation, SiteFit
from fedbn.data.storage import files_in, subfolders
from fedbn.data.table_files import TABLE_SUFFIXES, Table, is_missing, read_table
from fedbn.data.tables import frame_table, is_frame, row_groups
from fedbn.errors import DataError, unknown
from fedbn.text import shown

Part = Literal["train", "test"]
LEGAL = "a folder of pictures (class folders in it if labelled), a picture, a table, or an npz file"


@dataclass(frozen=True)
class Found:
    """Files and what to call them; their labels, where there are some; remarks; which part."""

    files: Mapping[Path, str]
    labels: Tensor | None = None
    notes: tuple[str, ...] = ()
    part: str = ""


def find_pictures(folder: Path, known: Preparation, part: str) -> Found:
    """Find the pictures below a folder; folders named like the run's classes label them."""
    below = subfolders(folder)
    divided = {f.name: f for f in below if f.name in PARTS and _class_folders(f, known)}
    if divided:
        chosen = divided.get(part, next(iter(divided.values())))
        found = find_pictures(chosen, known, part)
        notes = (f"{shown(folder)}: read its {chosen.name} part", *found.notes)
        return replace(found, notes=notes, part=chosen.name)
    if named := _class_folders(folder, known):
        return _labelled(folder, named, known)
    if sites := [site for site in below if _class_folders(site, known)]:
        names = ", ".join(shown(site.name) for site in sites[:10])
        raise DataError(f"{shown(folder)}: a folder of sites ({names}); give one of them")
    if not (files := pictures_below(folder)):
        raise DataError(f"{shown(folder)}: no pictures in it")
    inside = any(file.parent != folder for file in files)
    notes = ("its folders are no classes of the run: read as unlabelled",) if inside else ()
    return Found(_called(files, folder), None, notes)


def _labelled(folder: Path, named: Sequence[Path], known: Preparation) -> Found:
    if any(map(is_picture, files_in(folder))):
        raise DataError(f"{shown(folder)}: pictures both beside and inside folders of classes")
    classes = list(known.classes)
    files: dict[Path, str] = {}
    labels: list[int] = []
    for home in subfolders(folder):
        if not (found := pictures_below(home)):
            continue
        if home not in named:
            raise DataError(f"{shown(home)}: {unknown('class', shown(home.name), classes)}")
        files |= _called(found, folder)
        labels += [classes.index(_meant(home, known))] * len(found)
    return Found(files, torch.tensor(labels))


def _class_folders(folder: Path, known: Preparation) -> list[Path]:
    """The folders in one that are named like a class and hold pictures."""
    homes = [f for f in subfolders(folder) if _meant(f, known) in known.classes]
    return [home for home in homes if pictures_below(home)]


def _meant(folder: Path, known: Preparation) -> str:
    name = shown(folder.name)
    if name in known.classes or known.aliases is None:
        return name
    plain = plain_name(name)
    return known.aliases.get(plain, plain)


def _called(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    return {file: shown(file.relative_to(folder).as_posix()) for file in files}


@dataclass(frozen=True)
class Samples:
    """Samples that were read for a trained model.

    Attributes:
        encoded: The samples (n, ...), encoded as at every site and not completed.
        names: What each is called.
        y: Their targets, where there are some.
        notes: Messages for the user.
        part: `train` or `test` where this is one part of divided data.
        groups: Whose each is, as a number, where the run knows that (`data.group`) and all
            samples say it.
        sites: The site of each, where a table says it.
        where: What messages call them.
        gaps: How many cells of a table were empty.
    """

    encoded: Tensor
    names: tuple[str, ...]
    y: Tensor | None = None
    notes: tuple[str, ...] = ()
    part: str = ""
    groups: Tensor | None = None
    sites: tuple[str, ...] = ()
    where: str = "the data"
    gaps: int = 0

    def __len__(self) -> int:
        return len(self.encoded)

    def completed(self, known: Preparation, site: str = "") -> tuple[Tensor, tuple[str, ...]]:
        """Return the samples as models take them, by the fit of a site; and messages."""
        if not known.fits_sites:
            return self.encoded, ()
        return known.complete(self.encoded, site, self.sites, self.where, self.gaps)

    def completed_as_new(self, known: Preparation) -> tuple[Tensor, SiteFit, tuple[str, ...]]:
        """Return the samples by a fit of their own; that fit; and messages."""
        new = replace(known, sites={})
        x, notes = self.completed(new)
        return x, new.fit_site(self.encoded, self.where), notes


def read_samples(
    path: Path, known: Preparation, part: Part = "test", pooled: bool = False
) -> Samples:
    """Read a site's samples and encode them as those that a run was trained on.

    Args:
        path: A folder, a picture, a table or an npz file.
        known: The run's preparation.
        part: Which part of divided data is read.
        pooled: True for a model of all sites' data, whose table may have rows of several sites.

    Raises:
        DataError: The samples do not fit the run.
    """
    place = _file_in(path) if path.is_dir() else path
    if place.is_dir() and known.masks is not None and has_masks(place):
        return _masked(place, known, part)
    if place.is_dir():
        return _pictures(find_pictures(place, known, part), known)
    if not place.is_file():
        raise DataError(f"{shown(place)}: no such file or folder; expected {LEGAL}")
    if place.suffix.lower() == ".npz":
        return _arrays(place, known, part)
    if place.suffix.lower() in TABLE_SUFFIXES:
        return _rows(read_table(place), known, pooled)
    if is_picture(place):
        return _pictures(Found({place: place.name}), known)
    raise DataError(f"{shown(place)}: {place.suffix or 'no suffix'}; expected {LEGAL}")


def _file_in(folder: Path) -> Path:
    """A folder's only table or npz file, or the folder itself where it has none."""
    files = files_in(folder)
    known = [f for f in files if f.suffix.lower() in {".npz", *TABLE_SUFFIXES}]
    if len(known) > 1:
        names = ", ".join(shown(file.name) for file in known[:10])
        raise DataError(f"{shown(folder)}: several files ({names}); give one of them")
    return known[0] if known and not any(is_picture(f) for f in files) else folder


def _pictures(found: Found, known: Preparation) -> Samples:
    """Read pictures as samples of the run's shape, with the depth it was trained with."""
    files = list(found.files)
    _check_takes_pictures(files[0], known)
    pixels = known.picture_reader.pixels(files)
    notes = found.notes
    if known.depth is None and pixels.is_floating_point():
        notes += (f"16-bit pictures, which the run does not know: 0 to {DEPTH} becomes −1 to 1",)
    names, groups = tuple(found.files.values()), None
    if known.group is not None:
        with suppress(DataError):  # a name that does not match matters where samples are divided
            groups = row_groups(owners(files, known.group))
    x = known.encode_pixels(pixels)
    return Samples(x, names, found.labels, notes, found.part, groups)


def _check_takes_pictures(file: Path, known: Preparation) -> None:
    """Refuse pictures for a run that was trained on something else."""
    if len(known.shape) != 3 or known.shape[0] not in (1, 3):
        raise DataError(
            f"{shown(file)}: a picture, but the run was trained on samples of shape {known.shape}"
        )
    if known.depth is None and known.constants is None and not known.takes_bytes:
        low, high = known.range or (0.0, 0.0)
        raise DataError(
            f"the run was trained on floats from {low:.4g} to {high:.4g}, while pictures "
            "become −1 to 1; save them in an npz file, scaled like the training data"
        )


def given_samples(x: Any, known: Preparation, where: str = "x", pooled: bool = False) -> Samples:
    """Encode samples that were given in Python as those that a run was trained on.

    Args:
        x: An array, a tensor, numbers in lists, or a DataFrame.
        known: The run's preparation.
        where: What messages call the samples.
        pooled: True for a model of all sites' data, whose table may have rows of several sites.

    Raises:
        DataError: The samples do not fit the run.
    """
    if is_frame(x) and known.table is not None:  # by the names of its columns
        return _rows(frame_table(x, where), known, pooled, labelled=False)
    encoded = known.encode(x, where)
    return Samples(encoded, tuple(map(str, range(len(encoded)))), where=where)


def _rows(table: Table, known: Preparation, pooled: bool, labelled: bool = True) -> Samples:
    encoding = known.table_encoding(table)
    sites = _cells_of(table, encoding.site)
    named = sorted({site for site in sites if not is_missing(site)})
    if len(named) > 1 and not pooled:
        names = f"column {encoding.site!r}: {', '.join(named[:10])}"
        raise DataError(f"{table.where}: a table of sites ({names}); give the rows of one of them")
    return Samples(
        known.encode_rows(table),
        tuple(f"row {row}" for row in table.rows),
        known.row_targets(table) if labelled else None,
        groups=row_groups(_cells_of(table, encoding.group)),
        sites=tuple(sites),
        where=table.where,
        gaps=encoding.gaps(table),
    )


def _cells_of(table: Table, name: str | None) -> list[str]:
    """Return the cells of a column, stripped; none where there is no such column."""
    return [] if name is None else [cell.strip() for cell in table.columns.get(name, ())]


def _masked(home: Path, known: Preparation, part: Part) -> Samples:
    """Read pictures with their masks, whose values must be those of the run."""
    divided = has_masks(home / part)
    found = pairs_in(home / part if divided else home)
    samples = _pictures(Found({file: file.name for file in found.pictures}), known)
    y = known.encode_masks(found)
    return replace(samples, y=y, part=part if divided else "")


def _arrays(file: Path, known: Preparation, part: Part) -> Samples:
    content = arrays.read_npz(file)
    prefixes = (f"{part}_", "", "test_" if part == "train" else "train_")
    names = [f"{prefix}{suffix}" for prefix in prefixes for suffix in arrays.ENDINGS["x"]]
    if (chosen := next((name for name in names if name in content), None)) is None:
        raise DataError(
            f"{shown(file)}: no samples; expected one of {', '.join(names)}; it has "
            f"{', '.join(content) or 'nothing'}"
        )
    prefix = chosen.rpartition("_")[0] + "_" if "_" in chosen else ""
    x = known.encode(content[chosen], shown(file))
    keys = [f"{prefix}{ending}" for ending in arrays.ENDINGS["y"]]
    given = next((content[key] for key in keys if key in content), None)
    y, classes = None, arrays.npz_classes(content, file)
    if given is not None:
        plain = arrays.plain_labels(given) if known.kind is Targets.CLASS else given
        y = known.targets(plain, len(x), f"{shown(file)}, labels", classes)
    notes = (f"{shown(file)}: read {chosen}",) if prefix else ()
    called = tuple(map(str, range(len(x))))
    return Samples(x, called, y, notes, prefix.rstrip("_"), where=shown(file))
