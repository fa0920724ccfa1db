"""Pictures with masks: SITE/images/* and SITE/masks/*, a mask of the same name for each picture.

A mask is a picture of one channel, or of palette indices, whose values are classes; it must have
the size of its picture, each turned as its EXIF entry says, and is resized by the nearest value.
Where a site has both train/ and test/ with images/ and masks/ in them, that division is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from fedbn.core.federation import Client, Split
from fedbn.core.findings import check_name
from fedbn.core.randomness import divided, generator
from fedbn.data.image_folders import PictureReader, PictureSet, owners
from fedbn.data.images import opened, pictures_below, watched
from fedbn.data.shared_groups import by_index, check_sides, divided_by_id, global_numbers
from fedbn.data.storage import check_distinct, subfolders
from fedbn.errors import ConfigError, DataError, unknown
from fedbn.text import shown

MASK_LAYOUT = (
    "PATH/SITE/images/* and PATH/SITE/masks/*, of the same names (train/ and test/ if you like)"
)
_MOST_VALUES = 64
_MANY = 12  # more values than this are classes only where they have no large gaps
_APART = 50  # classes of one task are not numbered so differently at two sites
_LOSSY = frozenset({".jpg", ".jpeg"})
_DECLARE = "name the legal values in data.values if every value is a class"


@dataclass(frozen=True)
class MaskedPictures:
    """Pictures and their masks, in one order."""

    pictures: tuple[Path, ...]
    masks: tuple[Path, ...]


def has_masks(folder: Path) -> bool:
    """Tell whether a folder, or a part of it, has images/ and masks/."""
    homes = (folder, folder / "train", folder / "test")
    return any((home / "images").is_dir() and (home / "masks").is_dir() for home in homes)


def find_masked(folder: Path) -> dict[str, list[MaskedPictures]]:
    """Find the pictures of each site: all of them, or those of train and test."""
    homes = [home for home in subfolders(folder) if has_masks(home)] if folder.is_dir() else []
    if not homes:
        raise DataError(
            f"{shown(folder)}: no sites with pictures and masks; expected {MASK_LAYOUT}"
        )
    check_distinct(homes)
    found = {}
    for home in homes:
        check_name(home.name, shown(home))
        parts = [home / part for part in ("train", "test") if has_masks(home / part)]
        if len(parts) == 1:
            raise DataError(f"{shown(home)}: only {parts[0].name}/ has images/ and masks/")
        found[home.name] = [pairs_in(part) for part in parts or [home]]
    return found


def pairs_in(home: Path) -> MaskedPictures:
    """Pair pictures and masks by name, whatever their suffix; one without the other is refused."""
    named: dict[str, dict[str, Path]] = {"images": {}, "masks": {}}
    for part, known in named.items():
        for file in pictures_below(home / part):
            name = file.relative_to(home / part).with_suffix("").as_posix()
            if (other := known.setdefault(name, file)) != file:
                raise DataError(f"{shown(file)}: {shown(other.name)} has that name too")
    pictures, masks = named.values()
    for name, file in pictures.items():
        if name not in masks:
            near = unknown("mask", name, masks)
            raise DataError(
                f"{shown(file)}: no mask of this name in {shown(home / 'masks')} ({near})"
            )
    for name, file in masks.items():
        if name not in pictures:
            raise DataError(f"{shown(file)}: a mask, but no picture {shown(name)} in images/")
    if not pictures:
        raise DataError(f"{shown(home)}: no pictures in images/")
    return MaskedPictures(tuple(pictures.values()), tuple(masks[name] for name in pictures))


def read_masks(found: MaskedPictures, side: tuple[int, int]) -> list[NDArray[np.int64]]:
    """Read the values of masks, resized to (width, height)."""
    read = []
    for file, picture in zip(found.masks, found.pictures, strict=True):
        with watched(), opened(picture) as whole, opened(file) as mask:
            on_its_side = whole.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
            size, plain = whole.size[:: -1 if on_its_side else 1], ImageOps.exif_transpose(mask)
            if plain.size != size:
                own, other = (f"{width}×{height}" for width, height in (plain.size, size))
                other += ", turned as its EXIF entry says" if on_its_side else ""
                raise DataError(f"{shown(file)}: {own} pixels, but its picture has {other}")
            plain = plain.convert("L") if plain.mode == "1" else plain
            values = np.asarray(plain.resize(side, Image.Resampling.NEAREST), dtype=np.int64)
        if values.ndim == 3:
            if not (values[..., :3] == values[..., :1]).all():
                raise DataError(
                    f"{shown(file)}: colours; legal are masks of one channel or of palette "
                    "indices, whose values are classes"
                )
            values = values[..., 0]
        read.append(values)
    return read


def mask_values(masks: Mapping[Path, NDArray[np.int64]]) -> list[int]:
    """Collect the values of masks, the classes of their places."""
    values: set[int] = set()
    for file, mask in masks.items():
        values |= set(np.unique(mask).tolist())
        if len(values) > _MOST_VALUES:
            raise DataError(
                f"{shown(file)}: with it masks have {len(values)} values, which are classes; legal "
                f"are at most {_MOST_VALUES}. Was it saved as JPEG, or smoothed?"
            )
    return sorted(values)


def check_values(values: Mapping[str, Mapping[Path, NDArray[np.int64]]]) -> None:
    """Refuse mask values that were changed when they were saved, or that differ between sites.

    Args:
        values: The masks of each site, by file.

    Raises:
        DataError: Values look like those of a lossy or smoothed picture; or one site, or one file,
            has 255 as the foreground where another has small numbers.
    """
    found = {
        site: {file: np.unique(mask) for file, mask in own.items()} for site, own in values.items()
    }
    everything = [file for own in found.values() for file in own.items()]
    known = sorted({int(value) for _, own in everything for value in own})
    jpegs = {file: own for file, own in everything if file.suffix.lower() in _LOSSY}
    lossy = sorted(jpegs, key=lambda file: -len(jpegs[file]))
    changed = len({int(value) for own in jpegs.values() for value in own}) > 2
    if changed or (len(known) > _MANY and known[-1] >= 2 * len(known)):
        first = lossy[0] if changed else max(everything, key=lambda each: len(each[1]))[0]
        raise DataError(
            f"{shown(first)}: with it masks have {len(known)} values from {known[0]} to "
            f"{known[-1]}, as JPEG or smoothing makes them. Save masks as PNG, for example 0 and "
            f"255 by a threshold at 128; {_DECLARE}"
        )
    sites = {
        site: sorted({int(value) for each in own.values() for value in each})
        for site, own in found.items()
    }
    _check_scale([(f"site {site}", own) for site, own in sites.items()])
    _check_scale(
        [(shown(file), own.tolist()) for file, own in everything if set(own) <= {0, 1, 255}]
    )


def _check_scale(values: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Refuse foregrounds without a common value, of which one is far larger than the other."""
    foregrounds = [(where, {v for v in own if v > 0}) for where, own in values]
    known = [(where, own) for where, own in foregrounds if own]
    if len(known) < 2:
        return
    small = min(known, key=lambda each: max(each[1]))
    large = max(known, key=lambda each: max(each[1]))
    if not small[1] & large[1] and max(large[1]) >= _APART * max(small[1]):
        low, high = (", ".join(map(str, [0, *sorted(own)])) for _, own in (small, large))
        raise DataError(
            f"masks have the values {low} at {small[0]} and {high} at {large[0]}. Save them alike, "
            f"for example 255 in place of 1; {_DECLARE}"
        )


def numbered(
    masks: Sequence[NDArray[np.int64]], values: Sequence[int], files: Sequence[Path]
) -> Tensor:
    """Bring values to places in the list of them; one that nobody knows is refused."""
    known = np.array(values)
    places = []
    for mask, file in zip(masks, files, strict=True):
        place = np.searchsorted(known, mask).clip(max=len(known) - 1)
        wrong = np.unique(mask[known[place] != mask])
        if len(wrong):
            legal = ", ".join(map(str, values))
            raise DataError(f"{shown(file)}: mask value {wrong[0]}; legal are {legal}")
        places.append(place.astype(np.uint8))
    return torch.from_numpy(np.stack(places))


@dataclass(frozen=True)
class MaskReader:
    """How pictures and masks become samples, in training and afterwards.

    `group` is a pattern that finds, in a file's name, whom it belongs to.
    """

    pictures: PictureReader
    group: str | None = None

    def masks(self, found: MaskedPictures) -> dict[Path, NDArray[np.int64]]:
        """Read the values of a part's masks, in the size of samples."""
        read = read_masks(found, self.pictures.oblong)
        return dict(zip(found.masks, read, strict=True))

    def places(self, found: MaskedPictures, values: Sequence[int]) -> Tensor:
        """Return the masks of a part as places among the values (n, height, width)."""
        return numbered([*self.masks(found).values()], values, found.masks)

    def split(self, found: MaskedPictures, values: Sequence[int]) -> Split:
        """Read a part of a site."""
        x = self.pictures.finished(self.pictures.pixels(found.pictures))
        y = self.places(found, values)
        whose = () if self.group is None else owners(found.pictures, self.group)
        names = tuple(file.name for file in found.pictures)
        groups = PictureSet(found.pictures, y, whose).numbered
        return Split(x, y, groups=groups, files=names)

    def ids(self, found: Mapping[str, Sequence[MaskedPictures]]) -> dict[str, list[list[str]]]:
        """Return whose each picture is, by site and part; nothing without a pattern."""
        if self.group is None:
            return {}
        return {
            site: [list(owners(part.pictures, self.group)) for part in parts]
            for site, parts in found.items()
        }

    def sides(
        self,
        read: Mapping[str, Sequence[Split]],
        ids: Mapping[str, Sequence[Sequence[str]]],
        share: float,
        seed: int,
    ) -> tuple[dict[str, Sequence[str]], dict[str, Sequence[str]]]:
        """Return whose the pictures for training and for testing are, by site."""
        train, test = dict[str, Sequence[str]](), dict[str, Sequence[str]]()
        for site, own in ids.items():
            if len(own) == 2:
                train[site], test[site] = own
            elif len(read[site]) == 1:
                rest, held = divided(
                    read[site][0], share, generator(seed, "test split", client=site)
                )
                train[site], test[site] = by_index(own[0], rest), by_index(own[0], held)
        return train, test

    def divided_globally(
        self,
        read: Mapping[str, Sequence[Split]],
        ids: Mapping[str, Sequence[Sequence[str]]],
        share: float,
        seed: int,
    ) -> dict[str, list[Split]]:
        """Return training and test parts of all sites, an id on one side everywhere."""
        if not ids:
            raise ConfigError("data.group_scope = 'global' needs data.group, the pattern of ids")
        numbers = global_numbers({(s, at): o for s, own in ids.items() for at, o in enumerate(own)})
        parts = {
            site: [replace(split, groups=numbers[site, at]) for at, split in enumerate(own)]
            for site, own in read.items()
        }
        whole = {site: ids[site][0] for site, own in parts.items() if len(own) == 1}
        labels = {site: parts[site][0].y for site in whole}
        train = {site: own[0] for site, own in ids.items() if len(own) == 2}
        test = {site: own[1] for site, own in ids.items() if len(own) == 2}
        for site, (rest, held) in divided_by_id(labels, whole, share, seed).items():
            (one,) = parts[site]
            parts[site] = [one.take(rest), one.take(held)]
            train[site] = [whole[site][at] for at in rest.tolist()]
            test[site] = [whole[site][at] for at in held.tolist()]
        check_sides(train, test)
        return parts

    def client(self, site: str, parts: Sequence[Split], share: float, seed: int) -> Client:
        """Make a client of a site's parts, of which one is held out where there is one only."""
        if len(parts) == 2:
            return Client(site, site, parts[0], {site: parts[1]})
        rest, held = divided(parts[0], share, generator(seed, "test split", client=site))
        if len(rest) < 2 or not len(held):
            raise DataError(f"site {site}: {len(parts[0])} pictures; at least 3 are needed")
        return Client(site, site, parts[0].take(rest), {site: parts[0].take(held)})
