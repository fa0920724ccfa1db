"""Which tables a path means, and which rows are whose."""

from __future__ import annotations

from pathlib import Path

from fedbn.data._files import check_distinct, is_hidden, shown
from fedbn.data._table_files import SUFFIXES, Table, is_missing, read_table
from fedbn.errors import ConfigError, DataError

LAYOUT = "a folder with one CSV or Parquet file a site, or one such file with data.site = COLUMN"


def table_files(path: Path) -> list[Path]:
    """List the tables that a path means: itself, or those right inside it, by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{shown(path)}: no such file or folder; expected {LAYOUT}")
    inside = [file for file in path.iterdir() if not is_hidden(file) and file.is_file()]
    return sorted(file for file in inside if file.suffix.lower() in SUFFIXES)


def read_sites(path: Path, site: str | None) -> dict[str, Table]:
    """Read the table of each site."""
    files = table_files(path)
    if not files:
        raise DataError(f"{shown(path)}: no tables; expected {LAYOUT}")
    if site is None:
        if len(files) == 1:
            raise ConfigError(f"{shown(path)}: one table: name its column of sites in data.site")
        check_distinct(files)
        stems = [file.stem for file in files]
        for file in files:
            if stems.count(file.stem) > 1:
                raise DataError(f"{shown(file)}: two files of one site {shown(file.stem)!r}")
        return {file.stem: read_table(file) for file in files}
    if len(files) > 1:
        raise ConfigError(
            f"data.site = {site!r}: {shown(path)} has {len(files)} tables; with data.site it must "
            "be one"
        )
    return by_site(read_table(files[0]), site)


def by_site(table: Table, site: str) -> dict[str, Table]:
    """Give each site its rows of one table."""
    rows: dict[str, list[int]] = {}
    for number, cell in enumerate(table.column(site, "data.site")):
        if is_missing(cell):
            raise DataError(f"{table.where}, row {table.rows[number]}: no value in {site!r}")
        rows.setdefault(cell.strip(), []).append(number)
    return {name: table.take(rows[name], table.where) for name in sorted(rows)}
