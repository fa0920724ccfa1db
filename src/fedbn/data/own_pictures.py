"""A user's own pictures as a federation: in folders or named by a manifest, in memory or not.

A manifest is a table with a row a picture: `path` (relative to the table) and `label`; if you like
`site`, `patient`, whose pictures are never on both sides of a division, and `split` (train, valid,
test). Pictures that would take more than half of the free memory are read when they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedbn.core.federation import AnySplit, Augment, Client, Federation, Split
from fedbn.core.findings import check_name
from fedbn.data import image_folders
from fedbn.data.arrays import places
from fedbn.data.dataset_samples import Source
from fedbn.data.image_folders import PARTS, Division, PictureReader, PictureSet, owners
from fedbn.data.images import DEPTH, FlipAndTurn, choose_size
from fedbn.data.lazy_split import LazySplit, Loader
from fedbn.data.shared_groups import check_sides, divided_by_id, global_numbers, regrouped
from fedbn.data.table_files import Table, by_site, label_classes, read_table
from fedbn.errors import ConfigError, DataError, TooMuchData, unknown
from fedbn.text import shown

Listing = Mapping[str, Sequence[PictureSet]]
"""By site the pictures to train on, to test on, and perhaps those for validation."""
_IMAGENET = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]


def _means_and_deviations(value: Any) -> Any:
    if value == "imagenet":
        return _IMAGENET
    if value is None or (
        len(value) == 2 and len(value[0]) == len(value[1]) and all(s > 0 for s in value[1])
    ):
        return value
    raise ValueError("legal are 'imagenet' and [[means], [deviations > 0]], one a channel")


Normalize = Annotated[
    Literal["imagenet"] | list[list[float]] | None, AfterValidator(_means_and_deviations)
]


@dataclass(frozen=True)
class PictureOptions:
    """How one's own pictures become samples; see `own_files.folders`."""

    size: int | None = None
    depth: int | None = None
    channels: int = 3
    normalize: Any = None
    augment: bool = False
    cache: bool = False
    lazy: bool | None = None
    workers: int = 0
    # Bytes that pixels in memory may have; None for no limit but half of the free memory.
    most_bytes: float | None = None


def picture_federation(
    name: str, listing: Listing, classes: Sequence[str], options: PictureOptions
) -> Federation:
    """Read the pictures of all sites, or decide to read them when they are needed."""
    parts = [part for own in listing.values() for part in own]
    files = [file for part in parts for file in part.files]
    size, resized = choose_size(files) if options.size is None else (options.size, "")
    keep = "folders" if options.cache else None
    constants = _means_and_deviations(options.normalize)
    if constants and len(constants[0]) != options.channels:
        raise ConfigError(
            f"data.normalize has {len(constants[0])} means, data.channels is {options.channels}"
        )
    reader = PictureReader(size, options.depth or DEPTH, keep, options.channels, constants)
    lazy, said = _too_large(len(files), reader, options)
    augment, depth = FlipAndTurn() if options.augment else None, ""
    if lazy:
        make = partial(Pictures, reader=reader, deep=bool(options.depth))
        clients = _read_later(listing, classes, make, augment, options.workers)
    else:
        clients = [reader.client(site, own, augment) for site, own in listing.items()]
        read = image_folders.of_one_type(clients)
        depth = image_folders.about_depth(read, reader.depth)

        def changed(split: AnySplit) -> AnySplit:
            assert isinstance(split, Split)
            return replace(split, x=reader.finished(split.x))

        clients = [client.change(changed) for client in read]
    alone = any(part.groups for part in parts)
    remarks = [resized, depth, said, "" if alone else image_folders.stems_in_both(listing)]
    told: dict[str, Any] = {"depth": reader.depth} if depth or options.depth else {}
    if constants:
        told["normalize"] = constants
    texts = tuple(text for text in remarks if text)
    return Federation(name, tuple(clients), tuple(classes), texts, told, settled={"lazy": lazy})


class Pictures:
    """Files as a Dataset, read one by one; as floats where some may have 16 bit (`deep`)."""

    way_out = f" (where some have 16 bit, set data.depth: {DEPTH}, 4095, ...)"

    def __init__(self, pictures: PictureSet, reader: PictureReader, deep: bool):
        self.files, self.targets = pictures.files, pictures.labels.tolist()
        self._reader, self._deep = reader, deep

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._reader.one(self.files[index], self._deep), self.targets[index]


def _read_later(
    listing: Listing,
    classes: Sequence[str],
    make: Callable[[PictureSet], Pictures],
    augment: Augment | None,
    workers: int,
) -> list[Client]:
    named = [
        (site, name, part)
        for site, parts in listing.items()
        for name, part in zip(PARTS, parts, strict=False)
    ]
    sources = [Source.of(make(part), f"site {site}, {name}", classes) for site, name, part in named]
    loader, splits = Loader(sources, workers), dict[str, dict[str, LazySplit]]()
    for which, (site, name, part) in enumerate(named):
        one = LazySplit.of(loader, which, part.labels, part.numbered)
        own = splits.setdefault(site, {})
        own[name] = replace(one, augment=augment) if name == "train" else one
    return [
        Client(site, site, own["train"], {site: own["test"]}, own.get("valid"))
        for site, own in splits.items()
    ]


def _too_large(count: int, reader: PictureReader, options: PictureOptions) -> tuple[bool, str]:
    """Decide whether pictures are read when they are needed, and say so.

    Raises:
        TooMuchData: They have more bytes than allowed, and the user wants all of them in memory.
    """
    width, height = reader.oblong
    taken = count * reader.channels * width * height * (4 if options.normalize else 1)
    free = free_memory()
    allowed = float("inf") if options.most_bytes is None else options.most_bytes
    lazy = taken > min(free / 2, allowed) if options.lazy is None else options.lazy
    if not lazy:
        check_bytes(taken, options.most_bytes)
        return False, ""
    why = f"{taken / 1e9:.3g} GB of pixels"
    if not options.lazy:
        memory = f", with {free / 1e9:.3g} GB of memory free"
        why += memory if free / 2 <= allowed else f", at most {allowed / 1e9:.3g} GB are allowed"
    return True, (
        f"pictures are read when they are needed ({why}): data.workers reads ahead, data.lazy = "
        "false reads all at once; whether they changed is told by their number and 64 of each part"
    )


def check_bytes(taken: float, most: float | None) -> None:
    """Refuse samples of more bytes than allowed, before they take memory.

    Raises:
        TooMuchData: They have more.
    """
    if most is not None and taken > most:
        raise TooMuchData(f"{taken / 1e6:,.0f} MB of samples")


def free_memory() -> float:
    """Bytes that programs may still take; infinite where the system does not tell."""
    with suppress(OSError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return 1024.0 * int(re.findall(r"MemAvailable:\s+(\d+)", text)[0])
    return float("inf")


def check_apart(listing: Listing) -> None:
    """Refuse a patient on both sides of a division."""
    for site, parts in listing.items():
        first: dict[str, str] = {}
        for name, part in zip(PARTS, parts, strict=False):
            for group in part.groups:
                if first.setdefault(group, name) != name:
                    raise DataError(
                        f"site {site}: {group!r} is in both {first[group]} and {name}; all "
                        "pictures of a patient belong to one of them"
                    )


def patients(listing: Listing, part: int) -> dict[str, Sequence[str]]:
    """Return whose each picture of a part is, by site: 0 is training, 1 is test."""
    return {site: parts[part].groups for site, parts in listing.items()}


def divided_globally(listing: Listing, undivided: Collection[str], division: Division) -> Listing:
    """Divide the pictures of all sites anew, so that a patient is on one side everywhere.

    Args:
        listing: The pictures of each site.
        undivided: The sites that did not divide their pictures themselves.
        division: The share for testing, and the seed.
    """
    found = dict(listing)
    if any(not part.groups for parts in listing.values() for part in parts):
        raise ConfigError(
            "data.group_scope = 'global' needs data.group, the pattern of ids, or a manifest's "
            "column patient"
        )
    whole = {site: _joined(listing[site]) for site in listing if site in undivided}
    labels = {site: each.labels for site, each in whole.items()}
    ids = {site: each.groups for site, each in whole.items()}
    sides = divided_by_id(labels, ids, division.test_share, division.seed)
    for site, (rest, held) in sides.items():
        found[site] = whole[site].take(rest), whole[site].take(held)
    check_sides(
        {site: parts[0].groups for site, parts in found.items()},
        {site: [*chain(*(part.groups for part in parts[1:]))] for site, parts in found.items()},
    )
    return found


def _joined(parts: Sequence[PictureSet]) -> PictureSet:
    files = tuple(chain(*(part.files for part in parts)))
    groups = tuple(chain(*(part.groups for part in parts)))
    return PictureSet(files, torch.cat([part.labels for part in parts]), groups)


def with_global_groups(federation: Federation, listing: Listing) -> Federation:
    """Number groups so that a patient has one number at all sites."""
    ids = {(site, at): p.groups for site, own in listing.items() for at, p in enumerate(own)}
    numbers, clients = global_numbers(ids), []
    for client in federation.clients:
        own = [numbers[client.name, at] for at in range(len(listing[client.name]))]
        tests = {name: regrouped(test, own[1]) for name, test in client.tests.items()}
        valid = client.valid if client.valid is None else regrouped(client.valid, own[2])
        train = regrouped(client.train, own[0])
        clients.append(replace(client, train=train, tests=tests, valid=valid))
    told = {**federation.preparation, "group_scope": "global"}
    return replace(federation, clients=tuple(clients), preparation=told)


def manifest_listing(
    file: Path, division: Division, group: str | None = None
) -> tuple[Listing, tuple[str, ...], set[str]]:
    """Return the pictures of each site of a manifest, divided; the classes; undivided sites."""
    table = read_table(file)
    classes = label_classes({"": table}, "label")
    sites = by_site(table, "site") if "site" in table.columns else {"data": table}
    listing: dict[str, Sequence[PictureSet]] = {}
    undivided: set[str] = set()
    for site, rows in sites.items():
        check_name(site, shown(file))
        whole = _listed(rows, file.parent, classes, group)
        chosen = _chosen(rows)
        parts = [whole.take(torch.from_numpy(chosen[p])) for p in PARTS if p in chosen]
        listing[site] = parts or division.divide(whole, site)
        undivided |= set() if parts else {site}
    check_apart(listing)
    return listing, classes, undivided


def _listed(table: Table, home: Path, classes: Sequence[str], group: str | None) -> PictureSet:
    files = [home / cell.strip() for cell in table.column("path", "a manifest")]
    for row, picture in zip(table.rows, files, strict=True):
        if not picture.is_file():
            raise DataError(f"{table.where}, row {row}: {shown(picture)}: no such file")
    cells = [cell.strip() for cell in table.columns["label"]]
    labels = torch.from_numpy(places(cells, classes, table.where, table.rows))
    if "patient" in table.columns:
        return PictureSet(tuple(files), labels, tuple(table.whole("patient", "a manifest", "")))
    return PictureSet(tuple(files), labels, owners(files, group) if group else ())


def _chosen(table: Table) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The rows of each split; none where the manifest does not divide."""
    if "split" not in table.columns or len(table.gaps("split")) == len(table):
        return {}
    cells = np.array([cell.strip() for cell in table.columns["split"]])
    for row, cell in zip(table.rows, cells.tolist(), strict=True):
        if cell not in PARTS:
            raise DataError(f"{table.where}, row {row}: {unknown('split', cell, PARTS)}")
    found = {part: np.flatnonzero(cells == part) for part in PARTS if part in cells}
    for part in ("train", "test"):
        if part not in found:
            raise DataError(f"{table.where}: no row of split {part!r} at one of the sites")
    return found
