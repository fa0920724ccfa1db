"""Pictures in folders: PATH/SITE/CLASS/*.png, *.jpg, ..., found, divided, and only then read.

One client a folder SITE. The classes are all names of CLASS folders at any site, sorted; a site
may lack some. Where a site has both train/ and test/ (and, if you like, valid/) with the class
folders in them, that division is used; otherwise a stratified part is held out for testing. What
looks like one patient on both sides of a division, by how files are called, is remarked on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbn.core.federation import Augment, Client, Split, in_floats, scaled
from fedbn.core.findings import Warned, check_name
from fedbn.core.randomness import generator, stratified, stratified_groups
from fedbn.data.arrays import numbered_groups
from fedbn.data.images import (
    DEPTH,
    Constants,
    is_picture,
    normalised,
    picture_tensor,
    pictures_below,
    read_pictures,
    watched,
)
from fedbn.data.storage import (
    cached,
    check_distinct,
    data_root,
    files_in,
    fingerprint,
    scan,
    subfolders,
)
from fedbn.errors import ConfigError, DataError, unknown
from fedbn.text import counted, listed as named, shown

_VERSION = 2
"""Part of the cache's key: to be raised when the same files give other pixels."""


@dataclass(frozen=True)
class PictureSet:
    """Files, the label of each, and whose each is, where that is known."""

    files: tuple[Path, ...]
    labels: Tensor
    groups: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor) -> PictureSet:
        """Keep some."""
        groups = tuple(self.groups[i] for i in index.tolist()) if self.groups else ()
        return PictureSet(tuple(self.files[i] for i in index.tolist()), self.labels[index], groups)

    @property
    def numbered(self) -> Tensor | None:
        """A number a group; None where each picture is on its own."""
        if not self.groups:
            return None
        return numbered_groups(np.array(self.groups), len(self), "groups")


def owners(files: Sequence[Path], pattern: str) -> tuple[str, ...]:
    """Tell whose each picture is by its name: the pattern's first group, or all it matches."""
    try:
        form = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"data.group = {pattern!r}: no regular expression ({error})") from error
    names = []
    for file in files:
        if (found := form.search(file.stem)) is None:
            raise DataError(f"{shown(file)}: its name does not match data.group = {pattern!r}")
        names.append(found[1] if form.groups else found[0])
    return tuple(names)


@dataclass(frozen=True)
class Division:
    """How a site's samples are divided, always in the same way for the same seed.

    `per_client` keeps so many training pictures, stratified as the test share is.
    """

    test_share: float
    seed: int
    per_client: int | Literal["all"] = "all"

    def places(
        self, labels: Tensor, site: str, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Decide which of a site's samples are for training, and which for testing."""
        draws = generator(self.seed, "test split", client=site)
        if groups is None:
            return stratified(labels, self.test_share, draws)
        return stratified_groups(labels, groups, self.test_share, draws)

    def divide(self, pictures: PictureSet, site: str) -> tuple[PictureSet, PictureSet]:
        """Divide a site's pictures in train and test."""
        rest, held = self.places(pictures.labels, site, pictures.numbered)
        train, test = pictures.take(rest), pictures.take(held)
        if self.per_client == "all":
            return train, test
        if self.per_client > len(train):
            raise DataError(
                f"site {site}: {len(train)} training pictures, but data.per_client asks for "
                f"{self.per_client}; legal are 2 to {len(train)}, 'all'"
            )
        draws = generator(self.seed, "training pictures", client=site)
        _, chosen = stratified(train.labels, self.per_client / len(train), draws)
        return train.take(chosen), test


def listed(folders: Mapping[str, Sequence[Path]], classes: Sequence[str]) -> PictureSet:
    """List the pictures below the folders of each class, in the order of the classes."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = [file for folder in folders.get(name, ()) for file in pictures_below(folder)]
        files += found
        labels += [label] * len(found)
    return PictureSet(tuple(files), torch.tensor(labels, dtype=torch.int64))


@dataclass(frozen=True)
class PictureReader:
    """How picture files become samples, in training and afterwards.

    Attributes:
        size: Their side in pixels, or their width and height.
        depth: The 16-bit value that becomes 1.
        keep: The data set whose cache keeps the pixels; None keeps none.
        channels: 3 for RGB, 1 for grey.
        constants: Means and deviations of pixels from 0 to 1 that are taken off; None for none.
    """

    size: int | tuple[int, int]
    depth: int = DEPTH
    keep: str | None = None
    channels: int = 3
    constants: Constants | None = None

    @property
    def oblong(self) -> tuple[int, int]:
        """The width and the height of a sample."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def one(self, file: Path, deep: bool) -> Tensor:
        """Read one picture, as a float where others may have 16 bit (`deep`)."""
        with watched():
            x = picture_tensor(file, self.oblong, self.depth, self.channels)
        return self.finished(scaled(x) if deep else x)

    def finished(self, x: Tensor) -> Tensor:
        """Return pixels as samples: `uint8`, or floats that constants were taken off."""
        return normalised(x, self.constants)

    def client(
        self, site: str, parts: Sequence[PictureSet], augment: Augment | None = None
    ) -> Client:
        """Read a site's training and test pictures, and those for validation if there are some."""
        train, test, *valid = (
            Split(
                self.pixels(part.files),
                part.labels,
                groups=part.numbered,
                files=tuple(f"{file.parent.name}/{file.name}" for file in part.files),
            )
            for part in parts
        )
        train = replace(train, augment=augment)
        return Client(site, site, train, {site: test}, valid[0] if valid else None)

    def pixels(self, files: Sequence[Path]) -> Tensor:
        """Read pictures: `uint8`, or floats where one has 16 bit."""
        how: dict[str, Any] = {"size": self.size, "depth": self.depth, "channels": self.channels}
        if self.keep is None:
            return read_pictures(files, **how)
        key = {"pixels": _VERSION, **how, "files": fingerprint(files)}
        made = cached(self.keep, key, lambda: {"x": read_pictures(files, **how).numpy()})
        return torch.from_numpy(made["x"])


def of_one_type(clients: Sequence[Client]) -> tuple[Client, ...]:
    """Give all clients floats where one has them, because of its 16-bit pictures."""
    if not any(part.dtype.is_floating_point for client in clients for part in client.splits):
        return tuple(clients)
    return tuple(client.change(in_floats) for client in clients)


def check_folder(folder: Path, wanted: str) -> None:
    """Refuse a path that is not a folder, saying what should be there."""
    if not folder.is_dir():
        get = f"; `fedbn data prepare {folder.name}` says how to get it"
        hint = f"{get}, FEDBN_DATA names the folder above" if folder.parent == data_root() else ""
        raise DataError(f"{shown(folder)}: no such folder; expected {wanted}{hint}")


_STEM = re.compile(r"(\D*\d[^ _.-]*)[ _.-]")
_FEWEST = 3
_SHOWN = 5


def stems_in_both(listing: Mapping[str, Sequence[PictureSet]]) -> str:
    """Point out stems (`p00` of `p00_1.png`) in both training and test; empty where none are."""
    texts = {site: _of_site(train, test) for site, (train, test, *_) in listing.items()}
    if not (told := [f"{site} {text}" for site, text in texts.items() if text]):
        return ""
    more = " ..." if len(told) > _SHOWN else ""
    return (
        "files that begin alike are in both train and test (beginnings in test: "
        f"{'; '.join(told[:_SHOWN])}{more}); if each is one patient, divide them by patient, into "
        "train/ and test/ below SITE"
    )


def _of_site(train: PictureSet, test: PictureSet) -> str:
    stems: dict[int, set[str]] = {}
    for part in (train, test):
        for file, label in zip(part.files, part.labels.tolist(), strict=True):
            stems.setdefault(label, set()).add(_stem(file))
    # Where a whole class begins alike, as in 046_0001.jpg, that numbers the class.
    numbers = {stem for found in stems.values() if len(found) == 1 for stem in found}
    counts = Counter(_stem(file) for part in (train, test) for file in part.files)
    several = {stem for stem, count in counts.items() if count > 1} - numbers
    if len(several) < _FEWEST or 2 * sum(counts[stem] for stem in several) < counts.total():
        return ""
    trained, tested = ({_stem(f): f for f in part.files} for part in (train, test))
    if not (both := [stem for stem in tested if stem in several and stem in trained]):
        return ""
    first, second = trained[both[0]].name, tested[both[0]].name
    return f"{len(both)} of {len(tested)}, as {shown(first)} and {shown(second)}"


def _stem(file: Path) -> str:
    """What a name begins with, up to the sign behind its first number; a file without is alone."""
    found = _STEM.match(file.stem)
    return found[1] if found else str(file)


FOLDER_LAYOUT = "PATH/SITE/CLASS/*.png|jpg|... (train/ and test/ below SITE if you like)"
PARTS = ("train", "test", "valid")


@dataclass(frozen=True)
class SiteFolders:
    """The class folders of a site, by part: `all`, or `train`, `test` and perhaps `valid`."""

    name: str
    parts: Mapping[str, Sequence[Path]]


def about_depth(clients: Sequence[Client], depth: int) -> str:
    """Say what became of 16-bit pictures, and which depth would use the whole range."""
    if not clients[0].train.dtype.is_floating_point:
        return ""
    top = max(split.extent()[1] for client in clients for split in client.splits)
    needed = 2 ** max(round((top + 1) / 2 * depth).bit_length(), 9) - 1
    hint = f"; none is above {needed}: data.depth = {needed} uses the whole range"
    return (
        f"16-bit pictures keep their depth: 0 to {depth} (data.depth) becomes −1 to 1"
        f"{hint if needed < depth else ''}"
    )


def find_sites(folder: Path) -> list[SiteFolders]:
    """Find the sites below a folder, with their class folders."""
    check_folder(folder, FOLDER_LAYOUT)
    homes = subfolders(folder)
    check_distinct(homes)
    if not (sites := [find_site(home) for home in homes]):
        raise DataError(f"{shown(folder)}: no sites; expected {FOLDER_LAYOUT}")
    return sites


_COMPANIONS = frozenset({
    ".cfg", ".csv", ".db", ".doc", ".docx", ".htm", ".html", ".ini", ".json", ".log", ".md",
    ".pdf", ".rst", ".rtf", ".toml", ".tsv", ".txt", ".xls", ".xlsx", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""Suffixes of files that describe pictures or folders; leaving these out needs no word."""


def _may_be_sample(file: Path) -> bool:
    return file.suffix.lower() not in _COMPANIONS


class Unread(Warned):
    """A warning about files that are left out, which `fedbn data check` names one by one."""


def left_out(root: Path, sites: Sequence[SiteFolders]) -> tuple[Unread, ...]:
    """Return a warning about files that may hold samples and are not read, if there are any.

    These are files in class folders that are not pictures by their suffix, such as DICOM, and
    pictures next to the class folders.
    """
    others: dict[str, list[Path]] = {}
    outside: dict[str, list[Path]] = {}
    for site in sites:
        for folder in (folder for part in site.parts.values() for folder in part):
            for item in scan(folder):
                if isinstance(item, Path) and not is_picture(item) and _may_be_sample(item):
                    others.setdefault(site.name, []).append(item)
    homes = (folder.parent for site in sites for part in site.parts.values() for folder in part)
    for home in dict.fromkeys((root, *homes)):
        if files := [file for file in files_in(home) if is_picture(file)]:
            outside[home.name] = files
    said = []
    for what, found in (
        ("in class folders without the suffix of a picture", others),
        ("with the suffix of a picture outside the class folders", outside),
    ):
        if found:
            count = sum(map(len, found.values()))
            first = next(iter(found.values()))[0]
            names = named([f"{shown(name)} {len(files)}" for name, files in found.items()])
            said.append(
                f"{counted(count, 'file')} {what}: left out ({names}; the first is {shown(first)})"
            )
    return (Unread("; ".join(said)),) if said else ()


def folder_classes(sites: Sequence[SiteFolders]) -> tuple[str, ...]:
    """Collect the classes of all sites, sorted."""
    named = {shown(f.name) for site in sites for found in site.parts.values() for f in found}
    return tuple(sorted(named))


def find_site(home: Path) -> SiteFolders:
    """Find the class folders of one site."""
    check_name(home.name, shown(home))
    below = {folder.name: folder for folder in subfolders(home)}
    # A class may be called "train": only class folders in it mean a division.
    divided = [part for part in PARTS if part in below and subfolders(below[part])]
    if divided and not {"train", "test"} <= set(divided):
        missing = "test" if "train" in divided else "train"
        raise DataError(f"{shown(home)}: has {'/, '.join(divided)}/ but no {missing}/ with classes")
    for name, folder in below.items():
        if divided and name not in divided and pictures_below(folder):
            raise DataError(f"{shown(folder)}: pictures in an {unknown('part', name, PARTS)}")
    parts = {part: subfolders(below[part]) for part in divided} or {"all": list(below.values())}
    if not any(parts.values()):
        raise DataError(f"{shown(home)}: no class folders; expected {FOLDER_LAYOUT}")
    return SiteFolders(home.name, parts)


def divided_site(
    site: SiteFolders, classes: Sequence[str], division: Division, group: str | None = None
) -> tuple[PictureSet, ...]:
    """Divide a site's pictures into training and test, and perhaps validation."""
    parts = []
    for name, folders in site.parts.items():
        part = listed({shown(folder.name): [folder] for folder in folders}, classes)
        if not len(part):
            where = "" if name == "all" else f" in {name}"
            raise DataError(f"site {site.name}: no pictures{where}; expected {FOLDER_LAYOUT}")
        parts.append(part if group is None else replace(part, groups=owners(part.files, group)))
    return division.divide(parts[0], site.name) if len(parts) == 1 else tuple(parts)
