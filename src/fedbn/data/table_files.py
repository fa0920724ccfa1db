"""Tables as text: CSV and Parquet read, whose rows are whose, and columns of classes and ids.

Rows are counted as a spreadsheet shows them: the header is row 1.
"""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbn.data.storage import check_distinct, files_in
from fedbn.errors import ConfigError, DataError
from fedbn.text import one_line, shown

TABLE_SUFFIXES = frozenset({".csv", ".tsv", ".parquet"})
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_DECIMAL_COMMA = re.compile(r"\A(\s*[+-]?\d+),(\d+\s*)\Z")
_WHOLE = re.compile(r"\A(\s*[+-]?\d+)\.0+(\s*)\Z")  # so pandas writes 1 beside an empty cell
_LONGEST_CELL = 1_000_000
_MOST_CLASSES = 1000


@dataclass(frozen=True)
class Table:
    """A table's columns, each a list of texts; where it is, for messages; the row of each cell."""

    where: str
    columns: Mapping[str, list[str]]
    rows: list[int]

    def __post_init__(self) -> None:
        for cells in self.columns.values():
            cells[:] = [_WHOLE.sub(r"\1\2", cell) if ".0" in cell else cell for cell in cells]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str, option: str) -> list[str]:
        """Return a column that an option names."""
        if name in self.columns:
            return self.columns[name]
        raise DataError(
            f"{self.where}: no column {name!r} ({option}); it has {', '.join(self.columns)}"
        )

    def whole(
        self, name: str, option: str, why: str | None = None, categories: Collection[str] = ()
    ) -> list[str]:
        """Return a column that an option names, stripped; a missing value is refused."""
        cells = self.column(name, option)
        for row in self.gaps(name, categories):
            said = f" ({option})" if why is None else why
            raise DataError(f"{self.where}, row {row}: no value in {name!r}{said}")
        return [cell.strip() for cell in cells]

    def gaps(self, name: str, categories: Collection[str] = ()) -> list[int]:
        """Return the rows that have no value in a column, whose declared categories are values."""
        cells = zip(self.rows, self.columns[name], strict=True)
        return [row for row, cell in cells if is_missing(cell, categories)]

    def take(self, index: list[int]) -> Table:
        """Keep some rows."""
        kept = {name: [cells[i] for i in index] for name, cells in self.columns.items()}
        return Table(self.where, kept, [self.rows[i] for i in index])


def is_missing(cell: str, categories: Collection[str] = ()) -> bool:
    """Return True if a cell stands for no value; a declared category is always a value.

    Examples:
        >>> is_missing(" NaN "), is_missing("0"), is_missing("none", ["none", "typical"])
        (True, False, False)
    """
    return cell.strip().lower() in MISSING and cell.strip() not in categories


def named_none(cells: Iterable[str]) -> set[str]:
    """Return the ways in which cells write "none", a category where a column is declared as such.

    Examples:
        >>> named_none(["None", "typical", ""])
        {'None'}
    """
    return {cell.strip() for cell in cells if cell.strip().lower() == "none"}


def read_table(file: Path) -> Table:
    """Read a table whole; its faults are named with their row."""
    try:
        table = _read_parquet(file) if file.suffix.lower() == ".parquet" else _read_csv(file)
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(file)}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise DataError(f"{shown(file)}: cannot be read ({error.strerror or error})") from error
    except csv.Error as error:
        raise DataError(f"{shown(file)}: not a table ({error})") from error
    if not len(table):
        raise DataError(f"{shown(file)}: no rows below the header")
    return table


def table_header(file: Path) -> list[str]:
    """The names of a CSV file's columns; none where it cannot be read, or is no CSV file."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            line = stream.readline(_LONGEST_CELL)
    except (OSError, UnicodeDecodeError):
        return []
    return [name.strip().strip('"') for name in line.split(max(",;\t", key=line.count))]


def _read_csv(file: Path) -> Table:
    csv.field_size_limit(_LONGEST_CELL)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        delimiter = max(",;\t", key=stream.readline().count)
        stream.seek(0)
        lines = csv.reader(stream, delimiter=delimiter, strict=True)
        header = unique_header(next(lines, []), shown(file))
        found = {row: line for row, line in enumerate(lines, start=2) if any(line)}
    for row, line in found.items():
        if len(line) != len(header):
            raise DataError(
                f"{shown(file)}, row {row}: {len(line)} cells, but the header has {len(header)}"
            )
        if delimiter == ";":  # a comma in a number is its decimal point
            line[:] = [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in line]
    columns = {name: [line[at] for line in found.values()] for at, name in enumerate(header)}
    return Table(shown(file), columns, list(found))


def unique_header(names: Sequence[str], where: str) -> list[str]:
    """The names of columns, each of which must be one column's."""
    header = [name.strip() for name in names]
    if not any(header):
        raise DataError(f"{where}: empty; expected a header and rows")
    for number, name in enumerate(header):
        if name in header[:number]:
            raise DataError(f"{where}: two columns are called {name!r}")
    return header


def _read_parquet(file: Path) -> Table:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{shown(file)}: reading Parquet needs pyarrow: pip install 'fedbn[tables]', "
            "or save the table as CSV"
        ) from error
    try:
        content = parquet.read_table(file).to_pydict()
    except arrow.ArrowException as error:
        raise DataError(
            f"{shown(file)}: damaged or not a Parquet file ({one_line(error)})"
        ) from error
    header = unique_header(list(content), shown(file))
    texts = [["" if v is None else str(v) for v in cells] for cells in content.values()]
    columns = dict(zip(header, texts, strict=True))
    return Table(shown(file), columns, list(range(2, 2 + len(texts[0]))))


TABLE_LAYOUT = (
    "a folder with one CSV or Parquet file a site, or one such file with data.site = COLUMN"
)


def table_files(path: Path) -> list[Path]:
    """List the tables that a path means: itself, or those right inside it, by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{shown(path)}: no such file or folder; expected {TABLE_LAYOUT}")
    return [file for file in files_in(path) if file.suffix.lower() in TABLE_SUFFIXES]


def read_sites(path: Path, site: str | None) -> dict[str, Table]:
    """Read the table of each site."""
    if not (files := table_files(path)):
        raise DataError(f"{shown(path)}: no tables; expected {TABLE_LAYOUT}")
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
    for number, cell in enumerate(table.whole(site, "data.site", "")):
        rows.setdefault(cell, []).append(number)
    return {name: table.take(rows[name]) for name in sorted(rows)}


def by_value(names: Collection[str]) -> list[str]:
    """Sort names: by value where all are numbers."""
    try:
        return sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(names)


def label_classes(tables: Mapping[str, Table], label: str) -> tuple[str, ...]:
    """Collect the classes of all sites, sorted: by value where all are numbers."""
    found = {cell for table in tables.values() for cell in table.whole(label, "data.label")}
    classes = tuple(by_value(found))
    rows = sum(len(table) for table in tables.values())
    if len(classes) > min(_MOST_CLASSES, max(20, rows // 2)):
        raise DataError(
            f"{next(iter(tables.values())).where}: column {label!r} (data.label) has "
            f"{len(classes)} different values in {rows} rows: not classes "
            "(data.numbers = true learns numbers)"
        )
    return classes


def repeated_ids(tables: Mapping[str, Table], id: str) -> tuple[str, ...]:
    """Remark on ids that occur more than once, at one site or at two."""
    first: dict[str, str] = {}
    repeated: list[str] = []
    for table in tables.values():
        for row, cell in zip(table.rows, table.column(id, "data.id"), strict=True):
            place = f"{table.where}, row {row}"
            if first.setdefault(cell, place) != place:
                repeated.append(f"{cell.strip()!r} in {first[cell]} and {place}")
    if not repeated:
        return ()
    return (f"column {id!r}: {len(repeated)} id(s) occur again; the first is {repeated[0]}",)
