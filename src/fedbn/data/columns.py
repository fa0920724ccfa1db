"""Columns of tables: how each becomes features, and which of them are targets.

A column is numbers, or it is one-hot over the sorted values of all sites. The same encoding is
used for training and for further rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.findings import Warned
from fedbn.data.arrays import places
from fedbn.data.images import Constants
from fedbn.data.table_checks import check_dates
from fedbn.data.table_files import Table, is_missing, named_none
from fedbn.errors import DataError, Misfit

Missing = Literal["error", "mean"]
Standardized = Literal["none", "numeric", "site"]
LevelsBy = Standardized | Constants
"""Which features are brought to mean 0 and deviation 1, and by what.

None of them; columns of numbers, or every feature, by each site's own training samples; or every
feature by constants that are the same at all sites.
"""
_MOST_VALUES = 1000
_MOST_ODD = 0.1  # a larger share of cells, and of values, that are no numbers is meant as texts
_LARGEST = float(np.finfo(np.float32).max)
_WORDS = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_TO_TRAIN = "fill it, or set data.missing = 'mean', or name the column in data.drop"
_IN_USE = "fill it: the run was trained without empty cells, and its models take none"


@dataclass(frozen=True)
class Column:
    """A column of features: numbers, or one-hot over the sorted values of all sites."""

    name: str
    values: tuple[str, ...] | None
    remark: Warned | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        """The number of features that it becomes."""
        return 1 if self.values is None else len(self.values)

    @property
    def features(self) -> list[str]:
        """The names of the features that it becomes."""
        return [self.name] if self.values is None else [f"{self.name}={v}" for v in self.values]

    def encode(self, table: Table) -> NDArray[np.float32]:
        """Encode a site's cells as (rows, width); a missing number is NaN, a missing text zeros."""
        cells = table.columns[self.name]
        if self.values is None:
            numbers = [math.nan if is_missing(c) else float(c) for c in cells]
            return np.array(numbers, dtype=np.float32)[:, None]
        place = {value: number for number, value in enumerate(self.values)}
        encoded = np.zeros((len(cells), len(self.values)), dtype=np.float32)
        for row, cell in enumerate(cells):
            if not is_missing(cell, place):
                encoded[row, place[cell.strip()]] = 1
        return encoded

    def check(self, table: Table, agreed: bool = False) -> None:
        """Refuse a column that is not there, and cells that cannot be encoded.

        Args:
            table: The rows of a site.
            agreed: True if a contract has the column, False if a run was trained on it.

        Raises:
            Misfit: The column is missing; or a cell is no number, or no value that is known.
        """
        if self.name not in table.columns:
            why = "the contract" if agreed else "the run was trained on it"
            text = f"no column {self.name!r} ({why}); it has {', '.join(table.columns)}"
            raise Misfit(f"{table.where}: {text}", f"no column {self.name!r}")
        known = frozenset(self.values or ())
        for row, cell in zip(table.rows, table.columns[self.name], strict=True):
            value = cell.strip()
            if is_missing(cell, known):
                continue
            if self.values is not None:
                if value not in known:
                    self._refuse(table, row, f"{value!r} {self._unknown(agreed)}", "category")
            elif not is_number(cell):
                self._refuse(table, row, f"{value!r} is not a number", "number")
            elif not abs(float(cell)) <= _LARGEST:
                said = f"{value} is not finite in float32; legal are finite numbers"
                self._refuse(table, row, said, "finite number")

    def _unknown(self, agreed: bool) -> str:
        known = ", ".join((self.values or ())[:20])
        if agreed:
            return f"is not a category of the contract: {known}"
        return f"is new; the run was trained on {known}"

    def _refuse(self, table: Table, row: int, text: str, kind: str) -> None:
        where = f"{table.where}, row {row}, column {self.name!r}"
        raise Misfit(f"{where}: {text}", f"column {self.name!r} has a value that is no {kind}")


def feature_columns(
    tables: Mapping[str, Table], left_out: Collection[str], categorical: Sequence[str]
) -> tuple[Column, ...]:
    """Decide how the columns, which all sites must have, are encoded.

    A column is numbers where every value at every site is one, unless it is named categorical.
    """
    first = next(iter(tables.values()))
    names = [name for name in first.columns if name not in left_out]
    for table in tables.values():
        for one, other in ((first, table), (table, first)):
            for name in one.columns:
                if name not in left_out:
                    other.column(name, f"{one.where} has it")
    if not names:
        raise DataError(f"{first.where}: no columns left as features")
    for name in categorical:
        first.column(name, "data.categorical")
    return tuple(_column(name, list(tables.values()), name in categorical) for name in names)


def _column(name: str, tables: Sequence[Table], categorical: bool) -> Column:
    declared = named_none(c for t in tables for c in t.columns[name]) if categorical else set()
    found = [c.strip() for table in tables for c in table.columns[name]]
    cells = [cell for cell in found if not is_missing(cell, declared)]
    if not cells:
        raise DataError(f"{tables[0].where}: column {name!r} has no values; name it in data.drop")
    odd = [] if categorical else [cell for cell in cells if not is_number(cell)]
    if not categorical and not odd:
        column = Column(name, None)
        for table in tables:
            column.check(table)
        return column
    values, remark = sorted({*cells}), None
    if odd:
        check_dates(name, cells, tables)
    if odd and min(len(odd) / len(cells), len({*odd}) / len(values)) <= _MOST_ODD:
        table = next(table for table in tables if odd[0] in map(str.strip, table.columns[name]))
        row = table.rows[list(map(str.strip, table.columns[name])).index(odd[0])]
        remark = Warned(
            f"{table.where}, row {row}, column {name!r}: {odd[0]!r} is not a number ({len(odd)} "
            f"such cells), so the column is read as {len(values)} texts, a feature each; leave the "
            "cell of a missing value empty (data.missing), or name the column in data.categorical"
        )
    if len(values) > min(_MOST_VALUES, max(50, len(cells) // 2)):
        raise DataError(
            remark
            or f"{tables[0].where}: column {name!r} has {len(values)} different texts in "
            f"{len(cells)} rows, the first {values[0]!r}: name it in data.id or data.drop"
        )
    return Column(name, tuple(values), remark)


def is_number(cell: str) -> bool:
    """Return True if a cell is written as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    # float() takes digits joined by underscores, which no table means as a number.
    return "_" not in cell


@dataclass(frozen=True)
class TableEncoding:
    """How rows of tables become features, the same at every site.

    Attributes:
        columns: The columns of features, in their order.
        label: The column of targets, or several.
        missing: `error` where empty cells are refused, `mean` where they are filled.
        numbers: True if the targets are numbers.
        site: The column that says whose a row is.
        group: The column of groups, such as patients.
    """

    columns: tuple[Column, ...]
    label: str | Sequence[str] | None = None
    missing: Missing = "error"
    numbers: bool = False
    site: str | None = None
    group: str | None = None

    @staticmethod
    def read(facts: Mapping[str, Any]) -> TableEncoding:
        """Read what `facts` wrote."""
        return TableEncoding(
            tuple(Column(str(n), None if v is None else tuple(v)) for n, v in facts["columns"]),
            facts.get("label"),
            facts.get("missing", "error"),
            facts.get("numbers", False),
            facts.get("site"),
            facts.get("group"),
        )

    def facts(self) -> dict[str, Any]:
        """Return plain values, for a run's `environment.json`."""
        return {
            "columns": [[column.name, column.values] for column in self.columns],
            "label": self.label if self.label is None or isinstance(self.label, str)
            else [*self.label],
            "missing": self.missing,
            "numbers": self.numbers,
            "site": self.site,
            "group": self.group,
        }  # fmt: skip

    @property
    def features(self) -> list[str]:
        """The name of each feature."""
        return [name for column in self.columns for name in column.features]

    @property
    def numeric(self) -> Tensor:
        """True for each feature that is a column of numbers."""
        return torch.tensor([c.values is None for c in self.columns for _ in range(c.width)])

    def gaps(self, table: Table) -> int:
        """Return how many cells of features are empty."""
        return sum(len(table.gaps(c.name, frozenset(c.values or ()))) for c in self.columns)

    def encode(self, table: Table) -> Tensor:
        """Return a site's rows as features (rows, features); an empty number is NaN."""
        return torch.from_numpy(np.concatenate([c.encode(table) for c in self.columns], axis=1))

    def check_complete(self, table: Table, training: bool = False) -> None:
        """Refuse a table with an empty cell in a column of features."""
        advice = _TO_TRAIN if training else _IN_USE
        for column in self.columns:
            for row in table.gaps(column.name, frozenset(column.values or ())):
                cell = table.columns[column.name][table.rows.index(row)].strip()
                none = cell.lower() == "none"
                why = "; data.categorical takes 'none' as a category" if none else ""
                raise DataError(
                    f"{table.where}, row {row}: no value in column {column.name!r}; {advice}{why}"
                )


def means_of(features: NDArray[np.float32]) -> list[float]:
    """Return the mean of each feature over the rows that have a value; NaN where none has."""
    known = np.ma.masked_invalid(features).mean(axis=0, dtype=np.float64)
    return [float(mean) for mean in np.ma.filled(known, math.nan)]


def table_targets(
    table: Table, names: Sequence[str], numbers: bool | None, classes: Sequence[str]
) -> Tensor:
    """Return the targets of rows.

    Args:
        table: The rows.
        names: The columns of targets.
        numbers: True for numbers, False for several labels, (rows, names); None for classes.
        classes: The names of the classes, in their order.
    """
    found = []
    for name in names:
        cells = table.whole(name, "data.label", categories=classes)
        if numbers is None:
            where = f"{table.where}, column {name!r}"
            return torch.from_numpy(places(cells, classes, where, table.rows))
        if numbers:
            Column(name, None).check(table)
            found.append(torch.tensor([float(cell) for cell in cells]))
            continue
        words = [cell.lower().removesuffix(".0") for cell in cells]
        for row, cell, word in zip(table.rows, cells, words, strict=True):
            if word not in _WORDS:
                raise DataError(
                    f"{table.where}, row {row}, column {name!r}: {cell!r} is no label among "
                    f"several; legal are {', '.join(_WORDS)} (data.numbers = true learns numbers)"
                )
        found.append(torch.tensor([_WORDS[word] for word in words]))
    return torch.stack(found, dim=1)
