"""From tables of sites, read from files or given as DataFrames, to a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import divided, generator
from fedbn.data.arrays import numbered_groups, places
from fedbn.data.table_columns import Column, check_complete, feature_columns, filled, target_columns
from fedbn.data.table_files import Table, by_site, label_classes, repeated_ids, unique_header
from fedbn.errors import ConfigError, DataError


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


def table_federation(name: str, tables: Mapping[str, Table], options: TableOptions) -> Federation:
    """Make a client of each site's table."""
    label, group = options.label, options.group
    if label is None:
        named = ", ".join(next(iter(tables.values())).columns)
        raise ConfigError(f"data.label is needed for tables: the column of classes, of {named}")
    labels = [label] if isinstance(label, str) else list(label)
    several = options.numbers or not isinstance(label, str)
    found = tuple(labels) if several else None
    classes = options.classes or found or label_classes(tables, labels[0])
    others = (options.site, options.id, group, *options.drop)
    no_features = {*labels, *(name for name in others if name is not None)}
    columns = options.columns or feature_columns(tables, no_features, options.categorical)
    if options.missing == "error":
        for table in tables.values():
            check_complete(table, columns)
    clients = []
    for site, table in tables.items():
        x = np.concatenate([column.encode(table) for column in columns], axis=1)
        if several:
            y = torch.from_numpy(target_columns(table, labels, options.numbers))
        else:
            cells = [cell.strip() for cell in table.columns[labels[0]]]
            y = torch.from_numpy(places(cells, classes, table.where))
        groups = None
        if group is not None:
            same = np.array([cell.strip() for cell in table.column(group, "data.group")])
            for row in table.gaps(group):
                raise DataError(f"{table.where}, row {row}: no value in {group!r} (data.group)")
            groups = numbered_groups(same, len(table), f"{table.where}, column {group!r}")
        whole = Split(torch.from_numpy(x), y, groups=groups)
        draws = generator(options.split_seed, "test split", client=site)
        rest, held = divided(whole, options.test_share, draws)
        whole = replace(whole, x=torch.from_numpy(filled(x, rest.numpy(), columns, table)))
        clients.append(Client(site, site, whole.take(rest), {site: whole.take(held)}))
    remarks = repeated_ids(tables, options.id) if options.id else ()
    told = {
        "columns": [[c.name, c.values] for c in columns],
        "label": label if isinstance(label, str) else labels,
        "missing": options.missing,
        "numbers": options.numbers,
    }
    return Federation(name, tuple(clients), classes, remarks, {"table": told})


def is_frame(value: Any) -> bool:
    """Tell a pandas DataFrame, without importing pandas."""
    return hasattr(value, "columns") and hasattr(value, "iloc")


def frame_tables(frames: Mapping[str, Any], site: str | None) -> dict[str, Table]:
    """Give each client its table: its own DataFrame, or its rows of one that has a column."""
    for name, frame in frames.items():
        if not is_frame(frame):
            got = type(frame).__name__
            raise DataError(f"data, client {name}: a {got}, but others are DataFrames")
    tables = {name: _table(frame, f"data, client {name}") for name, frame in frames.items()}
    if site is None:
        return tables
    if len(tables) > 1:
        raise ConfigError(f"data.site = {site!r}: {len(tables)} DataFrames, one a client already")
    return by_site(replace(next(iter(tables.values())), where="data"), site)


def _table(frame: Any, where: str) -> Table:
    """Read a DataFrame as text, as files are: columns are understood in one place."""
    header = unique_header([str(name) for name in frame.columns], where)
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
