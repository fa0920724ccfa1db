"""From tables of sites, read from files or given as DataFrames, to a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbn.core.federation import Client, Federation, Origin, Split
from fedbn.core.randomness import divided, generator
from fedbn.data import table_files
from fedbn.data.arrays import numbered_groups
from fedbn.data.columns import (
    Column,
    LevelsBy,
    Missing,
    TableEncoding,
    feature_columns,
    table_targets,
)
from fedbn.data.shared_groups import (
    GroupScope,
    Ids,
    by_index,
    divided_by_id,
    global_numbers,
    shared_ids_warning,
)
from fedbn.data.table_checks import column_warnings
from fedbn.data.table_files import Table, is_missing
from fedbn.errors import ConfigError, DataError


def row_groups(cells: Sequence[str]) -> Tensor | None:
    """Number rows by the group of each; None where not every row has one."""
    known = cells and not any(map(is_missing, cells))
    return numbered_groups(np.array(cells), len(cells), "groups") if known else None


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
    missing: Missing = "error"
    test_share: float = 0.2
    split_seed: int = 0
    classes: tuple[str, ...] | None = None
    columns: Sequence[Column] | None = None
    numbers: bool = False
    task: str | None = None
    group_scope: GroupScope | None = None
    normalize: LevelsBy = "none"


def table_federation(name: str, tables: Mapping[str, Table], options: TableOptions) -> Federation:
    """Make a client of each site's table.

    Samples are encoded as at every site. `fedbn.data.preparation.prepared` completes them.
    """
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
    encoding = TableEncoding(
        tuple(columns),
        label if isinstance(label, str) else labels,
        options.missing,
        options.numbers,
        options.site,
        group,
    )
    if options.missing == "error":
        for table in tables.values():
            encoding.check_complete(table, training=True)
    clients = []
    trained, tested = dict[str, list[str]](), dict[str, list[str]]()
    ids = (
        {site: table.whole(group, "data.group") for site, table in tables.items()} if group else {}
    )
    sides = _sides_by_id(tables, ids, labels, numbers, classes, options)
    for site, table in tables.items():
        x, y = encoding.encode(table), table_targets(table, labels, numbers, classes)
        origin = Origin(torch.tensor(table.rows), table.where)
        groups = row_groups(ids.get(site, []))
        whole = Split(x, y, groups=groups, origin=origin)
        if sides:
            rest, held = sides[site]
            whole = replace(whole, groups=global_numbers(ids)[site])
        else:
            draws = generator(options.split_seed, "test split", client=site)
            rest, held = divided(whole, options.test_share, draws)
        trained[site], tested[site] = (by_index(ids.get(site, []), part) for part in (rest, held))
        clients.append(Client(site, site, whole.take(rest), {site: whole.take(held)}))
    if options.task is None and options.columns is None:
        _check_one_hot(clients, labels)
    remarks: tuple[str, ...] = tuple(column.remark for column in columns if column.remark)
    if options.columns is None:  # else a contract declares what the columns are
        features = [column.name for column in columns]
        remarks += tuple(column_warnings(tables, features, options.categorical))
    remarks += table_files.repeated_ids(tables, options.id) if options.id else ()
    remarks += tuple(shared_ids_warning(trained, tested, options.group_scope))
    told: dict[str, Any] = {"table": encoding.facts()}
    if options.normalize != "none":
        told["levels_by"] = options.normalize
    if sides:
        told["group_scope"] = "global"
    return Federation(name, tuple(clients), classes, remarks, told)


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
