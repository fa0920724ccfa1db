"""What a site may say of its data before there is a contract, and the contract it leads to.

Counts and names only: of columns, of classes, and of categories that enough rows have. Nothing is
said of a number, and nothing of a single sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedbn.core.federation import Federation, Targets, all_targets
from fedbn.core.task import FITTING
from fedbn.data.columns import is_number
from fedbn.data.image_folders import listed
from fedbn.data.images import choose_size
from fedbn.data.table_files import Table, by_value, is_missing, named_none
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.data_contract import own_pictures, own_tables
from fedbn.experiments.schema import DataSection, StandardTask
from fedbn.experiments.sources import alone, data_name, own_section

LEAST = 10
"""Rows that must have a category for it to be named."""
_MOST_CATEGORIES = 50


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ColumnReport(_Part):
    """A column of a site's table: its name, categories (None: numbers), and what is not said."""

    name: str = Field(max_length=200)
    values: tuple[str, ...] | None = Field(None, max_length=_MOST_CATEGORIES)
    rare: int = Field(0, ge=0)
    missing: int = Field(0, ge=0)


class SiteReport(_Part):
    """What a site says of its data."""

    site: str = Field(max_length=100)
    kind: str = Field(max_length=100)
    task: StandardTask = "classification"
    samples: int = Field(ge=0)
    classes: dict[str, int] = Field(max_length=1000)
    label: str | None = None
    columns: tuple[ColumnReport, ...] = Field((), max_length=10_000)
    size: int | None = None
    channels: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: Literal["uint8", "float32"] | None = None


def report_of(section: DataSection, site: str) -> SiteReport:
    """Say what a site's data is, in counts and names."""
    section = own_section(section)
    name, _ = data_name(section)
    if name == "tables":
        return _of_table(section, site)
    if name == "folders":
        return _of_pictures(section, site)
    return _of_others(name, alone(section, site), site)


def _of_table(section: DataSection, site: str) -> SiteReport:
    label = section.options.get("label")
    table = own_tables(section.options, site)[site]
    if label is None:
        raise ConfigError(
            f"data.label is needed: the column of classes, of {', '.join(table.columns)}"
        )
    counts = Counter(cell.strip() for cell in table.column(label, "data.label"))
    no_features = {label, *section.options.get("drop", ())}
    no_features |= {section.options.get(key) for key in ("site", "id", "group")}
    columns = [
        _column(table, name, name in section.options.get("categorical", ()))
        for name in table.columns
        if name not in no_features
    ]
    return SiteReport(
        site=site,
        kind="tables",
        samples=len(table),
        classes={name: count for name, count in counts.items() if count >= LEAST},
        label=label,
        columns=tuple(columns),
    )


def _column(table: Table, name: str, categorical: bool) -> ColumnReport:
    found = table.columns[name]
    declared = named_none(found) if categorical else set[str]()
    cells = [cell.strip() for cell in found if not is_missing(cell, declared)]
    missing = len(table) - len(cells)
    if not categorical and all(map(is_number, cells)):
        return ColumnReport(name=name, missing=missing)
    counts = Counter(cells)
    common = sorted(value for value, count in counts.items() if count >= LEAST)
    if len(common) > _MOST_CATEGORIES:
        raise DataError(
            f"{table.where}: column {name!r} has {len(common)} categories; name it in data.drop"
        )
    return ColumnReport(
        name=name, values=tuple(common), rare=len(counts) - len(common), missing=missing
    )


def _of_pictures(section: DataSection, site: str) -> SiteReport:
    folders = next(own for own in own_pictures(Path(section.options["path"]), site))
    parts = chain.from_iterable(folders.parts.values())
    files = {folder.name: listed({folder.name: [folder]}, [folder.name]).files for folder in parts}
    size = section.options.get("size")
    return SiteReport(
        site=site,
        kind="folders",
        samples=sum(map(len, files.values())),
        classes={name: len(found) for name, found in files.items()},
        size=size or choose_size([file for found in files.values() for file in found])[0],
        channels=section.options.get("channels", 3),
    )


def _of_others(name: str, federation: Federation, site: str) -> SiteReport:
    (client,) = federation.clients
    counts = Counter(all_targets(client.train).tolist())
    return SiteReport(
        site=site,
        kind=name,
        task=FITTING[federation.targets or Targets.CLASS],
        samples=len(client.train),
        classes={label: counts[place] for place, label in enumerate(federation.classes)},
        shape=federation.input_shape,
        dtype="uint8" if client.train.dtype == torch.uint8 else "float32",
    )


def proposed(reports: Sequence[SiteReport]) -> tuple[dict[str, Any], list[str]]:
    """Make a contract of what sites report: TOML values, and what a person should read."""
    kinds = {report.site: report.kind for report in reports}
    if len({*kinds.values()}) > 1:
        said = ", ".join(f"{site} {kind}" for site, kind in kinds.items())
        raise DataError(f"the sites' data is of different kinds: {said}")
    first = reports[0]
    classes = by_value({name for report in reports for name in report.classes})
    contract: dict[str, Any] = {"task": first.task, "classes": classes}
    notes = [
        f"{report.site} has no class {name}, or fewer than {LEAST} of it"
        for report in reports
        for name in classes
        if not report.classes.get(name)
    ]
    if first.kind == "tables":
        columns, more = _columns(reports)
        gaps = any(column.missing for report in reports for column in report.columns)
        contract |= {"label": first.label, "missing": "mean" if gaps else "error"}
        return {**contract, "columns": columns}, [*notes, *more]
    if first.kind == "folders":
        size, channels = (
            min(getattr(report, key) or 0 for report in reports) for key in ("size", "channels")
        )
        return {**contract, "size": size, "channels": channels}, notes
    types = {report.site: report.dtype for report in reports if report.dtype}
    if len({*types.values()}) > 1:
        said = ", ".join(f"{site} {dtype}" for site, dtype in types.items())
        raise DataError(
            f"the sites' samples are of different types: {said}. uint8 is scaled to −1 to 1, "
            "floats are not: all sites must give one of the two"
        )
    kind = {"dtype": next(iter(types.values()))} if types else {}
    return {**contract, "shape": list(first.shape or ()), **kind}, notes


def _columns(reports: Sequence[SiteReport]) -> tuple[list[dict[str, Any]], list[str]]:
    """The columns that all sites have; categories are those of all of them."""
    found, notes = [], []
    by_site = {report.site: {c.name: c for c in report.columns} for report in reports}
    for name in dict.fromkeys(c.name for report in reports for c in report.columns):
        if lacking := [site for site, columns in by_site.items() if name not in columns]:
            notes.append(f"column {name!r} is left out: {', '.join(lacking)} has none")
            continue
        each = {site: columns[name] for site, columns in by_site.items()}
        texts = [column.values for column in each.values() if column.values is not None]
        if texts and len(texts) < len(each):
            numbers = [site for site, column in each.items() if column.values is None]
            notes.append(f"column {name!r}: numbers at {', '.join(numbers)}, texts elsewhere")
        if rare := sum(column.rare for column in each.values()):
            notes.append(f"column {name!r}: {rare} rare categories are not named; add them by hand")
        values = by_value({*chain.from_iterable(texts)})
        found.append({"name": name, **({"values": values} if texts else {})})
    return found, notes
