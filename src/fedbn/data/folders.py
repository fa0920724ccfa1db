"""Your own pictures: PATH/SITE/CLASS/*.png, *.jpg, ..., with or without train/ and test/ in SITE.

One client a folder SITE. The classes are all names of CLASS folders at any site, sorted; a site
may lack some. Where a site has both train/ and test/ (and, if you like, valid/) with the class
folders in them, that division is used; otherwise a stratified part is held out for testing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbn.core.checks import check_name
from fedbn.core.federation import Client, Federation
from fedbn.data._files import check_distinct, shown, subfolders
from fedbn.data._image_sizes import choose_size
from fedbn.data._images import DEPTH
from fedbn.data._info import Info
from fedbn.data._name_stems import stems_in_both
from fedbn.data._picture_sets import (
    Division,
    PictureSet,
    Reading,
    check_folder,
    listed,
    of_one_type,
)
from fedbn.errors import ConfigError, DataError

LAYOUT = "PATH/SITE/CLASS/*.png|jpg|... (train/ and test/ below SITE if you like)"

INFO = {
    "folders": Info(
        title="Your own pictures: SITE/CLASS/*.png, *.jpg, ...",
        clients="one a folder",
        classes=0,
        shape="3×size×size",
        source="data.path",
        licence="yours",
    )
}

_PARTS = ("train", "test", "valid")


@dataclass(frozen=True)
class Site:
    """The class folders of a site, by part: `all`, or `train`, `test` and perhaps `valid`."""

    name: str
    parts: Mapping[str, Sequence[Path]]

    def pictures(self, part: str, classes: Sequence[str]) -> PictureSet:
        """List the pictures of a part."""
        return listed({shown(f.name): [f] for f in self.parts[part]}, classes)


def folders(
    path: str | None = None,
    size: int | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    cache: bool = False,
    depth: int | None = None,
) -> Federation:
    """Read a folder of sites, each with one folder of pictures a class.

    Args:
        path: The folder of sites.
        size: Side in pixels that pictures are resized to. Unless given: the side of the pictures
            where all are squares of one size up to 256; otherwise the largest of 28, 32, 64, 128
            and 256 that is not above the median shorter side.
        test_share: The stratified part of each site held out for testing.
        split_seed: Decides which pictures these are.
        cache: Keep the resized pixels below the data root, so that the next run starts at once.
        depth: The largest value of 16-bit pictures, which becomes 1 as 0 becomes −1: 4095 for a
            scanner of 12 bit; 65535 unless given.
    """
    if path is None:
        raise ConfigError(f"data.path is needed for data 'folders': {LAYOUT}")
    division = Division(test_share, split_seed)
    sites = find_sites(Path(path))
    classes = class_names(sites)
    listing = {site.name: _divided(site, classes, division) for site in sites}
    files = [file for parts in listing.values() for part in parts for file in part.files]
    side, remark = choose_size(files) if size is None else (size, "")
    reading = Reading(side, DEPTH if depth is None else depth, "folders" if cache else None)
    clients = of_one_type([reading.client(name, parts) for name, parts in listing.items()])
    said = [remark, _about_depth(clients, reading.depth), stems_in_both(listing)]
    return Federation(
        Path(path).resolve().name or "folders",
        clients,
        classes,
        tuple(text for text in said if text),
        {"depth": reading.depth} if clients[0].train.x.is_floating_point() else {},
    )


def _about_depth(clients: Sequence[Client], depth: int) -> str:
    """Say what became of 16-bit pictures, and which depth would use the whole range."""
    if not clients[0].train.x.is_floating_point():
        return ""
    top = max(float(split.x.max()) for client in clients for split in client.splits)
    needed = 2 ** max(round((top + 1) / 2 * depth).bit_length(), 9) - 1
    hint = f"; none is above {needed}: data.depth = {needed} uses the whole range"
    return (
        f"16-bit pictures keep their depth: 0 to {depth} (data.depth) becomes −1 to 1"
        f"{hint if needed < depth else ''}"
    )


def find_sites(folder: Path) -> list[Site]:
    """Find the sites below a folder, with their class folders."""
    check_folder(folder, LAYOUT)
    homes = subfolders(folder)
    check_distinct(homes)
    sites = [find_site(home) for home in homes]
    if not sites:
        raise DataError(f"{shown(folder)}: no sites; expected {LAYOUT}")
    return sites


def class_names(sites: Sequence[Site]) -> tuple[str, ...]:
    """Collect the classes of all sites, sorted."""
    named = {shown(f.name) for site in sites for found in site.parts.values() for f in found}
    return tuple(sorted(named))


def find_site(home: Path) -> Site:
    """Find the class folders of one site."""
    check_name(home.name, shown(home))
    below = {folder.name: folder for folder in subfolders(home)}
    # A class may be called "train": only class folders in it mean a division.
    divided = [part for part in _PARTS if part in below and subfolders(below[part])]
    if divided and not {"train", "test"} <= set(divided):
        missing = "test" if "train" in divided else "train"
        raise DataError(f"{shown(home)}: has {'/, '.join(divided)}/ but no {missing}/ with classes")
    parts = {part: subfolders(below[part]) for part in divided} or {"all": list(below.values())}
    if not any(parts.values()):
        raise DataError(f"{shown(home)}: no class folders; expected {LAYOUT}")
    return Site(home.name, parts)


def _divided(site: Site, classes: Sequence[str], division: Division) -> tuple[PictureSet, ...]:
    if "all" in site.parts:
        parts: tuple[PictureSet, ...] = (site.pictures("all", classes),)
    else:
        parts = tuple(site.pictures(part, classes) for part in _PARTS if part in site.parts)
    for name, part in zip(site.parts, parts, strict=True):
        if not len(part):
            where = "" if name == "all" else f" in {name}"
            raise DataError(f"site {site.name}: no pictures{where}; expected {LAYOUT}")
    return division.divide(parts[0], site.name) if len(parts) == 1 else parts
