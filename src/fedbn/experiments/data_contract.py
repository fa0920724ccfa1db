"""What the data of all sites of a federation has in common, and reading a site's data by it.

No site knows the classes, categories and sizes of the others, so the experiment says them. A site
that lacks a class fits and says so; another category, column or unit does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedbn.core.federation import AnySplit, Federation, Split
from fedbn.core.findings import class_counts
from fedbn.core.task import FITTING
from fedbn.data import image_folders
from fedbn.data.columns import Column
from fedbn.data.images import is_picture
from fedbn.data.own_pictures import PictureOptions, check_bytes, picture_federation
from fedbn.data.storage import subfolders
from fedbn.data.table_files import Table, is_missing, read_sites, read_table, table_files
from fedbn.data.tables import TableOptions, table_federation
from fedbn.errors import ConfigError, DataError, Misfit, unknown
from fedbn.experiments.schema import ColumnSection, ContractSection
from fedbn.text import shown

_FLOAT = 4  # bytes of a number
_COPIES = 4  # of a table's numbers while it is encoded, and while its levels are computed
_MOST_OUTSIDE = 0.05  # a larger share outside a legal range is another unit, or another column
Options = Mapping[str, Any]
# Takes options, the contract, the site whose data it is, and how many bytes samples may have.
Reader = Callable[[Options, ContractSection, str | None, float | None], Federation]


def reader_of(name: str) -> Reader | None:
    """Return what reads files of one's own by a contract; None for a data set that reads itself."""
    return {"tables": _tables, "folders": _folders}.get(name)


def check_options(given: Options, contract: ContractSection) -> None:
    """Refuse what a site says of its own that all agreed on otherwise."""
    for key in given.keys() & {"size", "depth", "channels", "normalize", "missing"}:
        agreed = getattr(contract, key)
        if given[key] != agreed:
            said = "says nothing of it" if agreed is None else f"says {agreed!r}"
            raise ConfigError(f"data.{key} = {given[key]!r} here; data.contract {said}")


def fitting(federation: Federation, contract: ContractSection) -> Federation:
    """Refuse data that does not fit a contract; say which classes are not there.

    The result says which levels the samples are brought to, as the contract has it. Pictures that
    have constants are read by them.
    """
    where, says = f"data {federation.name}", "the contract says"
    targets, shape, classes = federation.targets, federation.input_shape, tuple(contract.classes)
    if contract.task and targets and FITTING[targets] != contract.task:
        public = f"its targets are {targets.value}, which is no {contract.task}"
        raise Misfit(f"{where}: {public} (the contract)", public)
    if federation.classes != classes[: len(federation.classes)]:
        found = ", ".join(federation.classes)
        raise DataError(f"{where}: classes {found}; {says} {', '.join(classes)}")
    if contract.shape and shape != tuple(contract.shape):
        raise DataError(f"{where}: samples of shape {shape}, {says} {tuple(contract.shape)}")
    _check_values(federation, contract)
    if contract.channels and shape[0] != contract.channels:
        text = f"{where}: samples of {shape[0]} channels, {says} {contract.channels}"
        raise Misfit(text, "its pictures have other channels")
    remarks = list(federation.remarks)
    for client in federation.clients:  # to lack a class is fine
        if lacks := [name for name, count in class_counts(client, classes).items() if not count]:
            remarks.append(f"{client.name} has no training sample of class {', '.join(lacks)}")
    told = {**federation.preparation}
    if contract.normalize == "numeric" and "table" not in told:
        raise ConfigError("data.contract.normalize = 'numeric' is for columns of tables")
    if contract.normalize != "none" and "normalize" not in told:
        told["levels_by"] = contract.normalize
    return replace(federation, classes=classes, remarks=tuple(remarks), preparation=told)


def _check_values(federation: Federation, contract: ContractSection) -> None:
    """Refuse samples of another type or range than the contract's, before they are normalised."""
    where = f"data {federation.name}"
    for client in federation.clients:
        for name, split in client.named_splits():
            kind = "uint8" if split.dtype == torch.uint8 else "float32"
            if contract.dtype and kind != contract.dtype:
                public = f"samples of {kind}, the contract says {contract.dtype}"
                raise Misfit(f"{where}, client {client.name}, {name}: {public}", public)
            if contract.range is None:
                continue
            (low, high), (least, most) = contract.range, _extent(split)
            if least < low or most > high:
                text = (
                    f"{where}, client {client.name}, {name}: values from {least:.4g} to {most:.4g}"
                )
                public = "its samples have values outside the range of the contract"
                raise Misfit(f"{text}; the contract says {low:g} to {high:g}", public)


def _extent(split: AnySplit) -> tuple[float, float]:
    """Return the least and the largest value; a cell that is filled later has none."""
    if not isinstance(split, Split) or not split.x.is_floating_point():
        return split.extent()
    known = split.x[~split.x.isnan()]
    return (float(known.min()), float(known.max())) if known.numel() else (0.0, 0.0)


def _folders(
    given: Options, contract: ContractSection, site: str | None, most_bytes: float | None
) -> Federation:
    """Read pictures: PATH/SITE/CLASS/*, or PATH/CLASS/* where they are one site's."""
    if contract.size is None:
        raise ConfigError("data.contract.size is needed for pictures: the side in pixels")
    path = Path(given["path"])
    sites = own_pictures(path, site)
    for name in image_folders.folder_classes(sites):
        if name not in contract.classes:
            text = f"{shown(path)}: folder {unknown('class', name, contract.classes)}"
            raise Misfit(text, f"a folder that is no class: {name}")
    division = image_folders.Division(given.get("test_share", 0.2), given.get("split_seed", 0))
    asked = contract.classes, division, given.get("group")
    listing = {one.name: image_folders.divided_site(one, *asked) for one in sites}
    constants = None if isinstance(contract.normalize, str) else contract.normalize
    own = {key: given[key] for key in given.keys() & {"augment", "cache", "lazy", "workers"}}
    channels = contract.channels or 3
    if contract.normalize == "site":  # in memory, where pixels become floats
        count = sum(len(part.files) for parts in listing.values() for part in parts)
        check_bytes(_FLOAT * count * channels * contract.size**2, most_bytes)
    own["most_bytes"] = most_bytes
    how = PictureOptions(contract.size, contract.depth, channels, constants, **own)
    found = picture_federation(path.resolve().name, listing, contract.classes, how)
    unread = image_folders.left_out(path, sites)
    found = replace(found, remarks=(*found.remarks, *unread))
    if "depth" in found.preparation and contract.depth is None:
        raise DataError(f"{shown(path)}: 16-bit pictures; the contract has no depth for them")
    return found


def own_pictures(path: Path, site: str | None) -> list[image_folders.SiteFolders]:
    """Find the pictures of sites; below PATH lie sites, or, at a site, its own class folders."""
    if site and own_classes(path):
        return [replace(image_folders.find_site(path), name=site)]
    found = image_folders.find_sites(path)
    return [one for one in found if site in (None, one.name)] or found


def own_classes(path: Path) -> bool:
    """Tell whether the folders right below a path are classes, or train/ and test/ of them."""
    below = subfolders(path) if path.is_dir() else []
    divided = bool(below) and {folder.name for folder in below} <= {"train", "test", "valid"}
    return divided or any(is_picture(file) for folder in below for file in folder.iterdir())


def _tables(
    given: Options, contract: ContractSection, site: str | None, most_bytes: float | None
) -> Federation:
    """Read tables: one file a site, one plain file of one site, or one with a column of sites."""
    path = Path(given["path"])
    found = own_tables(given, site)
    label = given.get("label") or contract.label
    if label is None:
        raise ConfigError("data.contract.label or data.label is needed: the column of classes")
    if not contract.columns:
        raise ConfigError("data.contract.columns is needed: a [[data.contract.columns]] a feature")
    columns = [_column(section) for section in contract.columns]
    rows = sum(len(table) for table in found.values())
    width = sum(column.width for column in columns)
    check_bytes(_COPIES * _FLOAT * rows * width, most_bytes)
    remarks = [text for table in found.values() for text in _checked(table, contract, label)]
    own = {key: value for key, value in given.items() if key != "path"}
    agreed = {"missing": contract.missing, "classes": tuple(contract.classes), "columns": columns}
    options = TableOptions(**{**own, "label": label, **agreed})
    federation = table_federation(path.resolve().stem, found, options)
    return replace(federation, remarks=(*federation.remarks, *remarks))


def own_tables(given: Options, site: str | None) -> dict[str, Table]:
    """Read the tables of sites; a plain file without a column of sites is one site's."""
    path, column = Path(given["path"]), given.get("site")
    files = table_files(path)
    if column is None and len(files) == 1:
        return {site or files[0].stem: read_table(files[0])}
    found = read_sites(path, column)
    if site is None or site in found:
        return found
    raise DataError(f"{shown(path)}: {unknown('site', site, found)}")


def _checked(table: Table, contract: ContractSection, label: str) -> list[str]:
    """Refuse a table that does not fit the contract; say what is there beside it."""
    table.column(label, "data.label")
    remarks = list[str]()
    for column in contract.columns:
        _column(column).check(table, agreed=True)
        remarks += _outside(table, column)
    known = {label, *(column.name for column in contract.columns)}
    if beside := [name for name in table.columns if name not in known]:
        remarks.append(f"{table.where}: not in the contract and not read: {', '.join(beside)}")
    return remarks


def _column(section: ColumnSection) -> Column:
    return Column(section.name, tuple(section.values) if section.values else None)


def _outside(table: Table, column: ColumnSection) -> list[str]:
    """Say what share of the values lies outside the legal range; refuse a large one."""
    cells = table.columns[column.name] if column.range else ()
    known = frozenset(column.values or ())
    values = [float(cell) for cell in cells if not is_missing(cell, known)]
    if column.range is None or not values:
        return []
    low, high = column.range
    share = sum(not low <= value <= high for value in values) / len(values)
    unit = f" {column.unit}" if column.unit else ""
    said = f"{table.where}: column {column.name!r}: {share:.1%} of its values lie outside the "
    said += f"contract's {low:g} to {high:g}{unit}"
    if share > _MOST_OUTSIDE:
        public = f"column {column.name!r} has values outside the range"
        raise Misfit(f"{said}: another unit, or another column?", public)
    return [said] if share else []
