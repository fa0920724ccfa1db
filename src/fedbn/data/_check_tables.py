"""Checking tables, file by file and column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbn.data._files import shown
from fedbn.data._finding import Finding, Severity
from fedbn.data._table_files import Table, is_missing, read_table
from fedbn.data._table_sites import by_site, table_files
from fedbn.errors import ConfigError, DataError


def examine_tables(path: Path, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Report tables that cannot be read, missing values, constant and missing columns.

    Args:
        path: The folder, or the file.
        options: Those of the data set `tables`; columns that are no features are not looked at.
    """
    site, label = options.get("site"), options.get("label")
    read: dict[str, Table] = {}
    for file in table_files(path):
        try:
            read[shown(file.stem)] = read_table(file)
        except (ConfigError, DataError) as error:
            text = str(error).removeprefix(f"{shown(file)}: ")
            yield Finding("error", shown(file.stem), shown(file), text)
    if site is not None and len(read) == 1:
        try:
            read = by_site(next(iter(read.values())), site)
        except DataError as error:
            yield Finding("error", "", shown(path), str(error).removeprefix(f"{shown(path)}: "))
            return
    no_features = {site, options.get("id"), *options.get("drop", ())} - {label}
    read = {name: _without(table, no_features) for name, table in read.items()}
    filled = options.get("missing") == "mean"
    for name, table in read.items():
        yield from _missing_cells(name, table, label, filled)
        yield from _missing_columns(name, table, list(read.values()))
    yield from _constant_columns(read)


def _without(table: Table, names: set[str | None]) -> Table:
    kept = {name: cells for name, cells in table.columns.items() if name not in names}
    return replace(table, columns=kept)


def _missing_cells(site: str, table: Table, label: str | None, filled: bool) -> Iterator[Finding]:
    for column, cells in table.columns.items():
        rows = [row for row, cell in zip(table.rows, cells, strict=True) if is_missing(cell)]
        if rows:
            harmless = filled and column != label
            severity: Severity = "note" if harmless else "error"
            way_out = "" if column == label else "; fill them, or set data.missing = 'mean'"
            text = f"column {column!r}: {len(rows)} empty cell(s), the first in row {rows[0]}"
            yield Finding(severity, site, table.where, text + ("" if harmless else way_out))


def _missing_columns(site: str, table: Table, all_tables: Sequence[Table]) -> Iterator[Finding]:
    known = dict.fromkeys(name for other in all_tables for name in other.columns)
    missing = [name for name in known if name not in table.columns]
    if missing:
        text = f"no column {', '.join(map(repr, missing))}, which other sites have"
        yield Finding("error", site, table.where, text)


def _constant_columns(tables: dict[str, Table]) -> Iterator[Finding]:
    sites = list(tables)
    known = dict.fromkeys(name for table in tables.values() for name in table.columns)
    for column in known:
        constant = [s for s in sites if len(set(tables[s].columns.get(column, ()))) == 1]
        if len({tables[s].columns[column][0] for s in constant}) == 1 and constant == sites:
            yield Finding("warning", "", "", f"column {column!r} is constant at every site")
        else:
            for site in constant:
                text = f"column {column!r} is constant here"
                yield Finding("note", site, tables[site].where, text)
