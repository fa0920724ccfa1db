"""From tables of sites, read from files or given as DataFrames, to numbers and a federation.

What is a number stays one, what is not becomes one-hot: at training, and for further rows of a
trained model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.federation import A_CLASS, Client, Federation, Origin, Split
from fedbn.core.findings import Warned
from fedbn.core.randomness import divided, generator
from fedbn.data import table_files
from fedbn.data.arrays import numbered_groups, places
from fedbn.data.shared_groups import (
    GroupScope,
    Ids,
    by_index,
    divided_by_id,
    global_numbers,
    shared_ids_warning,
)
from fedbn.data.table_checks import check_dates, column_warnings
from fedbn.data.table_files import Table, is_missing, named_none
from fedbn.errors import ConfigError, DataError

_MOST_VALUES = 1000
_MOST_ODD = 0.1  # a larger share of cells, and of values, that are no numbers is meant as texts
_LABELS = ("label", "y", "class")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Column:
    """How a column is encoded: as numbers, or one-hot over the sorted values of all sites."""

    name: str
    values: tuple[str, ...] | None
    remark: Warned | None = None

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return 1 if self.values is None else len(self.values)

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


def feature_columns(
    tables: Mapping[str, Table], left_out: Collection[str], categorical: Sequence[str]
) -> list[Column]:
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
    return [_column(name, list(tables.values()), name in categorical) for name in names]


_TO_TRAIN = "fill it, or set data.missing = 'mean', or name the column in data.drop"
_IN_USE = "fill it: the run was trained without empty cells, and its models take none"


def check_complete(table: Table, columns: Sequence[Column], advice: str = _TO_TRAIN) -> None:
    """Refuse a table with an empty cell in one of the columns."""
    for column in columns:
        for row in table.gaps(column.name, column.values or ()):
            cell = table.columns[column.name][table.rows.index(row)].strip()
            why = "; data.categorical takes 'none' as a category" if cell.lower() == "none" else ""
            raise DataError(
                f"{table.where}, row {row}: no value in column {column.name!r}; {advice}{why}"
            )


def means_of(features: NDArray[np.float32]) -> list[float]:
    """The mean of each feature over the rows that have a value; NaN where none has."""
    known = np.ma.masked_invalid(features).mean(axis=0, dtype=np.float64)
    return [float(mean) for mean in np.ma.filled(known, math.nan)]


def filled(
    features: NDArray[np.float32], means: Sequence[float], columns: Sequence[Column], table: Table
) -> NDArray[np.float32]:
    """Put a feature's mean where a number is missing."""
    rows, gaps = np.nonzero(np.isnan(features))
    features[rows, gaps] = np.array(means)[gaps]
    for gap in gaps[np.isnan(features[rows, gaps])][:1]:
        name = [column.name for column in columns for _ in range(column.width)][gap]
        raise DataError(
            f"{table.where}: column {name!r} has no value in a row to take a mean of; fill it, or "
            "name it in data.drop"
        )
    return features


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
            _check_cells(table, column)
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


def _check_cells(table: Table, column: Column) -> None:
    """Refuse cells that cannot be encoded: no finite numbers, or values that nobody trained on."""
    for row, cell in zip(table.rows, table.columns[column.name], strict=True):
        where, value = f"{table.where}, row {row}, column {column.name!r}", cell.strip()
        if is_missing(cell, column.values or ()):
            continue
        if column.values is not None:
            if value not in column.values:
                known = ", ".join(column.values[:20])
                raise DataError(f"{where}: {value!r} is new; the run was trained on {known}")
        elif not is_number(cell):
            raise DataError(f"{where}: {value!r} is not a number")
        elif not abs(float(cell)) <= _LARGEST:
            raise DataError(f"{where}: {value} is not finite in float32; legal are finite numbers")


def is_number(cell: str) -> bool:
    """Tell whether a cell is written as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    # float() takes digits joined by underscores, which no table means as a number.
    return "_" not in cell


def own_of(known: Mapping[str, Any], client: str) -> Any:
    """What a run knows of a client; or what it knows of all alike, which holds for anybody."""
    same = len({str(each) for each in known.values()}) == 1
    return next(iter(known.values())) if same else known.get(client)


def features(
    table: Table, inputs: Mapping[str, Any], client: str
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Encode a table's rows, (n, features), which must be one site's; and say what was filled in.

    An empty cell is refused; or, where the run was trained with `data.missing = "mean"`, it becomes
    the mean of the client's training rows, of these rows where the run knows no such mean.
    """
    sites = {cell for cell in cells_of(table, inputs, "site") if not is_missing(cell)}
    if len(sites) > 1 and client != "all":  # the client of pooled data
        names = f"column {told_of(inputs)['site']!r}: {', '.join(sorted(sites)[:10])}"
        raise DataError(f"{table.where}: a table of sites ({names}); give the rows of one of them")
    columns = _columns(table, inputs)
    gaps = sum(len(table.gaps(column.name, column.values or ())) for column in columns)
    if gaps and told_of(inputs).get("missing") != "mean":
        check_complete(table, columns, _IN_USE)
    for column in columns:
        _check_cells(table, column)
    encoded = np.concatenate([column.encode(table) for column in columns], axis=1)
    means = own_of(told_of(inputs).get("means", {}), client)
    said = f"{gaps} empty cells filled with the mean of"
    notes = (f"{said} training rows" if means else Warned(f"{said} these rows"),)
    whole = filled(encoded, means or means_of(encoded), columns, table)
    return whole, notes if gaps else ()


_WORDS = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}


def table_targets(
    table: Table, names: Sequence[str], numbers: bool | None, classes: Sequence[str]
) -> Tensor:
    """The rows' numbers, or which of several labels each has, (rows, names); or their classes."""
    found = []
    for name in names:
        cells = table.whole(name, "data.label", categories=classes)
        if numbers is None:
            where = f"{table.where}, column {name!r}"
            return torch.from_numpy(places(cells, classes, where, table.rows))
        if numbers:
            _check_cells(table, Column(name, None))
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


def told_of(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run remembers of its tables; empty where it was trained on other data."""
    return inputs.get("preparation", {}).get("table") or {}


def cells_of(table: Table, inputs: Mapping[str, Any], what: Literal["site", "group"]) -> list[str]:
    """The cells of the column that was the run's `what`, stripped; none where there is none."""
    named = told_of(inputs).get(what)
    return [c.strip() for name, cells in table.columns.items() if name == named for c in cells]


def row_groups(cells: Sequence[str]) -> Tensor | None:
    """Number rows by the group of each; None where not every row has one."""
    known = cells and not any(map(is_missing, cells))
    return numbered_groups(np.array(cells), len(cells), "groups") if known else None


def table_labels(table: Table, inputs: Mapping[str, Any]) -> Tensor | None:
    """The rows' targets, of the kind that the run learned, where the table has them."""
    names = _label_columns(table, inputs)
    if all(len(table.gaps(name, inputs["classes"])) == len(table) for name in names):
        return None
    return table_targets(table, names, numbers_in(inputs), inputs["classes"])


def numbers_in(inputs: Mapping[str, Any]) -> bool | None:
    """Whether a run's targets are numbers, or several labels; None where they are classes."""
    kind, _ = inputs.get("target") or A_CLASS
    return {"float32": True, "float64": True, "bool": False}.get(kind)


def _label_columns(table: Table, inputs: Mapping[str, Any]) -> list[str]:
    """The columns of a run's targets; none where the table lacks one of them."""
    several = numbers_in(inputs) is not None and len(inputs["classes"]) > 1
    label = told_of(inputs).get("label", inputs["classes"] if several else None)
    known = [[label] if isinstance(label, str) else label] if label else [[n] for n in _LABELS]
    return next((names for names in known if table.columns.keys() >= set(names)), [])


def _columns(table: Table, inputs: Mapping[str, Any]) -> list[Column]:
    frame = inputs.get("preparation", {}).get("frame", ())
    if known := told_of(inputs).get("columns", [[name, None] for name in frame]):
        for name, _ in known:
            table.column(name, "the run was trained on it")
        return [Column(str(n), None if v is None else tuple(v)) for n, v in known]
    labels = _label_columns(table, inputs)
    names = [name for name in table.columns if name not in labels]
    shape = tuple(inputs["input_shape"])
    if shape != (len(names),):
        raise DataError(
            f"{table.where}: {len(names)} columns of features; the run was trained on samples of "
            f"shape {shape}"
        )
    return [Column(name, None) for name in names]


@dataclass(frozen=True)
class TableOptions:
    """What the columns of tables mean, and how rows are divided; see `own_files.tables`.

    A contract knows the classes and columns of all sites; else they are those found here.
    """

    label: str | Sequence[str] | None = None
    site: str | None = None
    id: str | None = None
    group: str | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    missing: Literal["error", "mean"] = "error"
    test_share: float = 0.2
    split_seed: int = 0
    classes: tuple[str, ...] | None = None
    columns: Sequence[Column] | None = None
    numbers: bool = False
    task: str | None = None
    group_scope: GroupScope | None = None


def table_federation(name: str, tables: Mapping[str, Table], options: TableOptions) -> Federation:
    """Make a client of each site's table."""
    label, group = options.label, options.group
    if label is None:
        named = ", ".join(next(iter(tables.values())).columns)
        raise ConfigError(f"data.label is needed for tables: the column of classes, of {named}")
    if options.task == "regression":
        options = replace(options, numbers=True)
    labels = [label] if isinstance(label, str) else list(label)
    numbers = options.numbers if options.numbers or not isinstance(label, str) else None
    found = None if numbers is None else tuple(labels)
    classes = options.classes or found or table_files.label_classes(tables, labels[0])
    others = (options.site, options.id, group, *options.drop)
    for name in sorted({*options.drop}.difference(*(table.columns for table in tables.values()))):
        next(iter(tables.values())).column(name, "data.drop")
    no_features = {*labels, *(name for name in others if name is not None)}
    columns = options.columns or feature_columns(tables, no_features, options.categorical)
    if options.missing == "error":
        for table in tables.values():
            check_complete(table, columns)
    clients, means = [], {}
    trained, tested = dict[str, list[str]](), dict[str, list[str]]()
    ids = (
        {site: table.whole(group, "data.group") for site, table in tables.items()} if group else {}
    )
    sides = _sides_by_id(tables, ids, labels, numbers, classes, options)
    for site, table in tables.items():
        x = np.concatenate([column.encode(table) for column in columns], axis=1)
        y = table_targets(table, labels, numbers, classes)
        origin = Origin(torch.tensor(table.rows), table.where)
        groups = row_groups(ids.get(site, []))
        whole = Split(torch.from_numpy(x), y, groups=groups, origin=origin)
        if sides:
            rest, held = sides[site]
            whole = replace(whole, groups=global_numbers(ids)[site])
        else:
            draws = generator(options.split_seed, "test split", client=site)
            rest, held = divided(whole, options.test_share, draws)
        trained[site], tested[site] = (by_index(ids.get(site, []), part) for part in (rest, held))
        means[site] = means_of(x[rest.numpy()])
        whole = replace(whole, x=torch.from_numpy(filled(x, means[site], columns, table)))
        clients.append(Client(site, site, whole.take(rest), {site: whole.take(held)}))
    if options.task is None and options.columns is None:
        _check_one_hot(clients, labels)
    remarks: tuple[str, ...] = tuple(column.remark for column in columns if column.remark)
    if options.columns is None:  # else a contract declares what the columns are
        features = [column.name for column in columns]
        remarks += tuple(column_warnings(tables, features, options.categorical))
    remarks += table_files.repeated_ids(tables, options.id) if options.id else ()
    remarks += tuple(shared_ids_warning(trained, tested, options.group_scope))
    told = {
        "columns": [[c.name, c.values] for c in columns],
        "label": label if isinstance(label, str) else labels,
        "missing": options.missing,
        **({"means": means} if options.missing == "mean" else {}),
        "numbers": options.numbers,
        "site": options.site,
        "group": group,
    }
    scope = {"group_scope": "global"} if sides else {}
    return Federation(name, tuple(clients), classes, remarks, {"table": told, **scope})


def _sides_by_id(
    tables: Mapping[str, Table],
    ids: Ids,
    labels: Sequence[str],
    numbers: bool | None,
    classes: Sequence[str],
    options: TableOptions,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the division of all sites' rows where ids are global; empty where they are not."""
    if options.group_scope != "global":
        return {}
    if not ids:
        raise ConfigError("data.group_scope = 'global' needs data.group, the column of ids")
    targets = {site: table_targets(t, labels, numbers, classes) for site, t in tables.items()}
    return divided_by_id(targets, ids, options.test_share, options.split_seed)


def _check_one_hot(clients: Sequence[Client], labels: Sequence[str]) -> None:
    """Refuse several columns of labels of which every row has exactly one."""
    y = [split.y for client in clients for split in client.splits if split.y is not None]
    if len(labels) < 2 or any(one.dtype != torch.bool for one in y):
        return
    if all(bool((one.sum(dim=1) == 1).all()) for one in y):
        raise DataError(
            f"data.label: every row has exactly one of {', '.join(labels[:10])}: one-hot classes, "
            "or labels that exclude each other. For classes give one column with the name of the "
            "class; task.name = 'multilabel' learns them as independent labels"
        )


def is_frame(value: Any) -> bool:
    """Tell a pandas DataFrame, without importing pandas."""
    return hasattr(value, "columns") and hasattr(value, "iloc")


def frame_tables(frames: Mapping[str, Any], site: str | None) -> dict[str, Table]:
    """Give each client its table: its own DataFrame, or its rows of one that has a column."""
    tables = {name: frame_table(frame, f"data, client {name}") for name, frame in frames.items()}
    if site is None:
        return tables
    if len(tables) > 1:
        raise ConfigError(f"data.site = {site!r}: {len(tables)} DataFrames, one a client already")
    return table_files.by_site(replace(next(iter(tables.values())), where="data"), site)


def in_order(frame: Any, names: Sequence[str], where: str) -> Any:
    """A DataFrame's columns as the run had them; as they are where it knows no names."""
    here = [str(name) for name in frame.columns]
    for name in sorted({*names} - {*here}):
        lacks = f"no column {name!r} (the run was trained on it)"
        raise DataError(f"{where}: {lacks}; it has {', '.join(here)}")
    return frame if [*names] in ([], here) else frame.iloc[:, [here.index(n) for n in names]]


def frame_table(frame: Any, where: str) -> Table:
    """Read a DataFrame as text, as files are: columns are understood in one place."""
    if not is_frame(frame):
        raise DataError(f"{where}: a {type(frame).__name__}, but others are DataFrames")
    header = table_files.unique_header([str(name) for name in frame.columns], where)
    if not len(frame):
        raise DataError(f"{where}: a DataFrame without rows")
    missing = frame.isna()
    columns = {
        name: [
            "" if gap else str(value)
            for value, gap in zip(frame.iloc[:, at].tolist(), missing.iloc[:, at], strict=True)
        ]
        for at, name in enumerate(header)
    }
    return Table(where, columns, list(range(len(frame))))
