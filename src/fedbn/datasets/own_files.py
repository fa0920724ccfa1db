"""Your own data: folders of pictures, with masks or without, of npz arrays, and tables.

Numbers are taken as they are, in float32: levelling what differs from site to site is left to
BatchNorm. Texts of tables become one-hot over the values of all sites. Parquet needs
`fedbn[tables]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from fedbn.core.federation import Client, Federation, Split
from fedbn.data import image_folders, own_pictures
from fedbn.data.arrays import array_samples, array_targets, common_classes, read_npz
from fedbn.data.benchmarks import TestShare
from fedbn.data.checks import npz_files
from fedbn.data.columns import Missing, Standardized
from fedbn.data.images import DEPTH, PictureDepth, PictureSide, choose_size
from fedbn.data.lazy_split import Workers
from fedbn.data.masks import (
    MASK_LAYOUT,
    MaskedPictures,
    MaskReader,
    check_values,
    find_masked,
    mask_values,
)
from fedbn.data.shared_groups import GroupScope, shared_ids_warning
from fedbn.data.storage import Info, check_distinct
from fedbn.data.table_files import TABLE_LAYOUT, read_sites
from fedbn.data.tables import TableOptions, table_federation
from fedbn.data.targets import RawTargets, StandardTask, meaning_of
from fedbn.errors import ConfigError, DataError

__all__ = ["arrays", "folders", "masks", "tables"]


def _given(path: str | None, name: str, layout: str) -> Path:
    """The path of one's own data, without which there is none."""
    if path is None:
        raise ConfigError(f"data.path is needed for data {name!r}: {layout}")
    return Path(path)


def folders(
    path: str | None = None,
    size: PictureSide | None = None,
    test_share: TestShare = 0.2,
    split_seed: int = 0,
    cache: bool = False,
    depth: PictureDepth | None = None,
    group: str | None = None,
    channels: Literal[1, 3] = 3,
    normalize: own_pictures.Normalize = None,
    augment: bool = False,
    lazy: bool | None = None,
    workers: Workers = 0,
    group_scope: GroupScope | None = None,
) -> Federation:
    """Read a folder of sites, each with one folder of pictures a class; or a manifest.

    Args:
        path: The folder of sites; or a table of pictures with the columns `path` and `label`, and
            `site`, `patient` and `split` if you like.
        size: Side in pixels that pictures are resized to. Unless given: the side of the pictures
            where all are squares of one size up to 256; otherwise the largest of 28, 32, 64, 128
            and 256 that is not above the median shorter side.
        test_share: The stratified part of each site held out for testing.
        split_seed: Decides which pictures these are.
        cache: Keep the resized pixels below the data root, so that the next run starts at once.
        depth: The largest value of 16-bit pictures, which becomes 1 as 0 becomes −1: 4095 for a
            scanner of 12 bit; 65535 unless given.
        group: A regular expression that finds the patient in a file's name ("^(p[0-9]+)_"), so
            that nobody is on both sides of a division; a manifest's `patient` goes first.
        channels: 3 for RGB, 1 for grey.
        normalize: `imagenet`, or [[means], [deviations]] a channel of pixels from 0 to 1; pixels
            become −1 to 1 unless given.
        augment: Mirror and turn training pictures at random, up to 30 degrees.
        lazy: Read pictures when they are needed; where they would take more than half of the free
            memory, unless given.
        workers: Processes that read ahead; never changes a result.
        group_scope: `global` if equal patients' ids are one patient at all sites: all pictures of
            it are on one side everywhere. `site` if they are another patient at every site.
    """
    place = _given(path, "folders", image_folders.FOLDER_LAYOUT)
    division, unread = image_folders.Division(test_share, split_seed), tuple[str, ...]()
    if place.is_file():
        listing, classes, undivided = own_pictures.manifest_listing(place, division, group)
    else:
        sites = image_folders.find_sites(place)
        classes = image_folders.folder_classes(sites)
        listing = {
            site.name: image_folders.divided_site(site, classes, division, group) for site in sites
        }
        own_pictures.check_apart(listing)
        undivided = {site.name for site in sites if "all" in site.parts}
        unread = image_folders.left_out(place, sites)
    if group_scope == "global":
        listing = own_pictures.divided_globally(listing, undivided, division)
    trained, tested = (own_pictures.patients(listing, part) for part in (0, 1))
    warnings = shared_ids_warning(trained, tested, group_scope)
    how = own_pictures.PictureOptions(
        size, depth, channels, normalize, augment, cache, lazy, workers
    )
    name = place.stem if place.is_file() else place.resolve().name
    made = own_pictures.picture_federation(name or "folders", listing, classes, how)
    if group_scope == "global":
        made = own_pictures.with_global_groups(made, listing)
    told = {**made.preparation, **_whose(group)}
    return replace(made, preparation=told, remarks=(*made.remarks, *unread, *warnings))


def masks(
    path: str | None = None,
    size: PictureSide | None = None,
    classes: Sequence[str] = (),
    values: Sequence[int] = (),
    group: str | None = None,
    test_share: TestShare = 0.2,
    split_seed: int = 0,
    depth: PictureDepth | None = None,
    group_scope: GroupScope | None = None,
) -> Federation:
    """Read a folder of sites, each with pictures and a mask of the same name for every picture.

    Args:
        path: The folder of sites.
        size: Side in pixels; chosen as for `folders` unless given.
        classes: Names for the values of masks, the smallest first; the values themselves unless
            given. The first is the background.
        values: The legal values of masks; those that occur unless given.
        group: A pattern whose first bracket finds, in a file's name, whom the picture belongs to
            (`(.*)[LR]$` for both eyes of one child): pictures of one are never divided.
        test_share: The part of each site held out for testing.
        split_seed: Decides which pictures these are.
        depth: The largest value of 16-bit pictures; see `folders`.
        group_scope: Whether equal ids at two sites are one patient; see `folders`.
    """
    place = _given(path, "masks", MASK_LAYOUT)
    found = find_masked(place)
    parts = [part for own in found.values() for part in own]
    files = [file for part in parts for file in part.pictures]
    side, remark = choose_size(files) if size is None else (size, "")
    reader = MaskReader(image_folders.PictureReader(side, depth or DEPTH), group)
    known = sorted(values) or _values_found(found, reader)
    if classes and len(classes) != len(known):
        raise DataError(f"data.classes: {len(classes)} names, but masks have the values {known}")
    read = {name: [reader.split(part, known) for part in own] for name, own in found.items()}
    ids = reader.ids(found)
    if group_scope == "global":
        read = reader.divided_globally(read, ids, test_share, split_seed)
    clients = image_folders.of_one_type(
        [reader.client(name, own, test_share, split_seed) for name, own in read.items()]
    )
    deep = {"depth": reader.pictures.depth} if clients[0].train.dtype.is_floating_point else {}
    names = tuple(classes) or tuple(map(str, known))
    scope = {"group_scope": "global"} if group_scope == "global" else {}
    told = {"masks": known, **deep, **_whose(group), **scope}
    whose = reader.sides(read, ids, test_share, split_seed)
    said = (*filter(None, [remark]), *shared_ids_warning(*whose, group_scope))
    return Federation(place.resolve().name or "masks", clients, names, said, told)


def _values_found(found: Mapping[str, Sequence[MaskedPictures]], reader: MaskReader) -> list[int]:
    """Return the values of all masks, once they are known to mean the same at all sites."""
    masks = {
        site: {mask: values for part in parts for mask, values in reader.masks(part).items()}
        for site, parts in found.items()
    }
    check_values(masks)
    return mask_values({file: mask for own in masks.values() for file, mask in own.items()})


def _whose(group: str | None) -> dict[str, str]:
    return {"group": group} if group else {}


def arrays(
    path: str | None = None,
    task: StandardTask | None = None,
    classes: list[str] | None = None,
    partial: bool = False,
) -> Federation:
    """Read a folder of npz files, one a client, in the order of their names.

    Args:
        path: The folder.
        task: Decides where targets could mean two things; the run's `task.name` unless given.
        classes: The names of the classes, in order, where the files have none.
        partial: True if other clients have files elsewhere, so that classes may be missing here.
    """
    folder = _given(path, "arrays", "a folder with one NAME.npz a client")
    if not (files := npz_files(folder) if folder.is_dir() else []):
        raise DataError(f"{folder}: no folder of clients; expected one NAME.npz a client")
    check_distinct(files)
    contents = {file: read_npz(file) for file in files}
    names = common_classes(contents) or classes
    x, raw = dict[tuple[Path, str], Tensor](), dict[tuple[Path, str], RawTargets]()
    for file, content in contents.items():
        for part in ("train", "test"):
            x[file, part] = array_samples(content, part, file)
            y = array_targets(content, part, file)
            raw[file, part] = RawTargets(f"{file}, {part}", y, tuple(x[file, part].shape[1:]))
    meaning = meaning_of([*raw.values()], names, task, partial)
    splits = {key: Split(x[key], meaning.tensor(raw[key].y, raw[key].where)) for key in x}
    clients = [
        Client(file.stem, file.stem, splits[file, "train"], {file.stem: splits[file, "test"]})
        for file in files
    ]
    name = folder.resolve().name
    return Federation(name, tuple(clients), meaning.names, tuple(meaning.notes))


_yours = partial(Info, classes=0, source="data.path", licence="yours")
INFO = {
    "folders": _yours(
        "Your own pictures: SITE/CLASS/*.png, *.jpg, ...", "one a folder", shape="3×size×size"
    ),
    "masks": _yours(
        "Your own pictures with masks: SITE/images/*, SITE/masks/*",
        "one a folder",
        shape="3×size×size",
    ),
    "arrays": _yours(
        "Your own arrays: a folder with one NAME.npz a client", "one a file", shape="any"
    ),
    "tables": _yours(
        "Your own tables: one CSV or Parquet file a site, or one file with a site column",
        "one a file, or one a value of data.site",
        shape="features",
    ),
}


def tables(
    path: str | None = None,
    label: str | list[str] | None = None,
    site: str | None = None,
    id: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "error",
    test_share: TestShare = 0.2,
    split_seed: int = 0,
    numbers: bool = False,
    task: StandardTask | None = None,
    group_scope: GroupScope | None = None,
    normalize: Standardized = "none",
) -> Federation:
    """Read tables, one client a site.

    Args:
        path: The folder, or the file.
        label: The column of classes; or a list of columns, each 0 or 1, of several labels a row.
        site: The column of sites, for one file.
        id: The column that names a row, no feature; values that repeat are remarked on.
        group: The column of groups, no feature: rows of one patient are never on both sides.
        drop: Columns that are no features.
        categorical: Columns of numbers that are names, to be one-hot.
        missing: Whether an empty cell is an error, or becomes the mean of the site's training
            rows (for a text: zeros).
        test_share: The stratified part of each site held out for testing.
        split_seed: Decides which rows these are.
        numbers: Learn the numbers in the label's column, or columns: regression.
        group_scope: `global` if equal ids in `group` are one patient at all sites: all rows of it
            are on one side everywhere. `site` if they are another patient at every site.
        task: Decides where targets could mean two things; the run's `task.name` unless given.
        normalize: `numeric` brings columns of numbers to mean 0 and standard deviation 1 at each
            site, by its own training rows; `site` does so with every feature, also with those of
            categories; `none` leaves all as they are.
    """
    place = _given(path, "tables", TABLE_LAYOUT)
    columns = TableOptions(
        label,
        site,
        id,
        group,
        drop,
        categorical,
        missing,
        test_share,
        split_seed,
        numbers=numbers,
        task=task,
        group_scope=group_scope,
        normalize=normalize,
    )
    return table_federation(place.resolve().stem, read_sites(place, site), columns)
