"""The columns of a table that are no features: classes and ids."""

from __future__ import annotations

from collections.abc import Mapping

from fedbn.data._table_files import Table, is_missing
from fedbn.errors import DataError

_MOST_CLASSES = 1000


def class_names(tables: Mapping[str, Table], label: str) -> tuple[str, ...]:
    """Collect the classes of all sites, sorted: by value where all are numbers.

    Raises:
        DataError: Where a label is missing, or the column measures rather than names.
    """
    found: set[str] = set()
    for table in tables.values():
        cells = table.column(label, "data.label")
        for row, cell in zip(table.rows, cells, strict=True):
            if is_missing(cell):
                raise DataError(f"{table.where}, row {row}: no value in {label!r} (data.label)")
            found.add(cell.strip())
    classes = _sorted(found)
    rows = sum(len(table) for table in tables.values())
    if len(classes) > min(_MOST_CLASSES, max(20, rows // 2)):
        raise DataError(
            f"{next(iter(tables.values())).where}: column {label!r} (data.label) has "
            f"{len(classes)} different values in {rows} rows: not classes"
        )
    return classes


def repeated_ids(tables: Mapping[str, Table], id: str) -> tuple[str, ...]:
    """Remark on ids that occur more than once, at one site or at two."""
    first: dict[str, str] = {}
    repeated: list[str] = []
    for table in tables.values():
        for row, cell in zip(table.rows, table.column(id, "data.id"), strict=True):
            place = f"{table.where}, row {row}"
            if cell in first:
                repeated.append(f"{cell.strip()!r} in {first[cell]} and {place}")
            first.setdefault(cell, place)
    if not repeated:
        return ()
    return (f"column {id!r}: {len(repeated)} id(s) occur again; the first is {repeated[0]}",)


def _sorted(names: set[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))
