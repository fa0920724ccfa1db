"""Further rows for a trained model, encoded like the training tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbn.data._labels import places
from fedbn.data._table_columns import Column, check_complete, filled
from fedbn.data._table_files import Table, is_missing
from fedbn.errors import DataError

_LABELS = ("label", "y", "class")


def features(
    table: Table, inputs: Mapping[str, Any]
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Encode a table's rows, (n, features); and say what was filled in.

    An empty cell is refused, or becomes the column's mean over these rows where the run was
    trained with `data.missing = "mean"`.
    """
    told = inputs.get("preparation", {}).get("table")
    columns = _columns(table, inputs, told)
    gaps = sum(is_missing(cell) for c in columns for cell in table.columns[c.name])
    if gaps and not (told and told["missing"] == "mean"):
        check_complete(table, columns)
    for column in columns:
        _check_cells(table, column)
    encoded = np.concatenate([column.encode(table) for column in columns], axis=1)
    whole = filled(encoded, np.arange(len(table)), columns, table)
    return whole, ((f"{gaps} empty cells filled with the mean of these rows",) if gaps else ())


def table_labels(table: Table, inputs: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """The rows' labels, where the table has a column of them."""
    name = _label_column(table, inputs)
    if name is None:
        return None
    cells = [cell.strip() for cell in table.columns[name]]
    if any(is_missing(cell) for cell in cells):
        if all(is_missing(cell) for cell in cells):
            return None
        row = next(r for r, c in zip(table.rows, cells, strict=True) if is_missing(c))
        raise DataError(f"{table.where}, row {row}: no value in {name!r}, which others have")
    return places(cells, inputs["classes"], f"{table.where}, column {name!r}")


def _label_column(table: Table, inputs: Mapping[str, Any]) -> str | None:
    told = inputs.get("preparation", {}).get("table")
    names = (told["label"],) if told else _LABELS
    return next((name for name in names if name in table.columns), None)


def _columns(
    table: Table, inputs: Mapping[str, Any], told: Mapping[str, Any] | None
) -> list[Column]:
    if told:
        columns = [Column(str(n), None if v is None else tuple(v)) for n, v in told["columns"]]
        _check_there(table, [column.name for column in columns])
        return columns
    label = _label_column(table, inputs)
    names = [name for name in table.columns if name != label]
    shape = tuple(inputs["input_shape"])
    if shape != (len(names),):
        raise DataError(
            f"{table.where}: {len(names)} columns of features; the run was trained on samples of "
            f"shape {shape}"
        )
    return [Column(name, None) for name in names]


def _check_there(table: Table, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise DataError(
            f"{table.where}: no column {missing[0]!r}, which the run was trained on; it has "
            f"{', '.join(table.columns)}"
        )


def _check_cells(table: Table, column: Column) -> None:
    for row, cell in zip(table.rows, table.columns[column.name], strict=True):
        if is_missing(cell):
            continue
        if column.values is None:
            _check_number(cell, f"{table.where}, row {row}, column {column.name!r}")
        elif cell.strip() not in column.values:
            raise DataError(
                f"{table.where}, row {row}, column {column.name!r}: {cell.strip()!r} is new; the "
                f"run was trained on {', '.join(column.values[:20])}"
            )


def _check_number(cell: str, where: str) -> None:
    try:
        value = float(cell)
    except ValueError as error:
        raise DataError(f"{where}: {cell.strip()!r} is not a number") from error
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise DataError(f"{where}: {cell.strip()} is not finite in float32")
