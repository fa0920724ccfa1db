"""Your own tables: a folder with one CSV or Parquet file a site, or one file with a site column.

Numbers are taken as they are, in float32: levelling what differs from site to site is left to
BatchNorm. Texts become one-hot over the values of all sites. Parquet needs `fedbn[tables]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.data._info import Info
from fedbn.data._picture_sets import check_share
from fedbn.data._table_columns import Column, check_complete, feature_columns, filled
from fedbn.data._table_files import Table
from fedbn.data._table_labels import class_names, repeated_ids
from fedbn.data._table_sites import LAYOUT, read_sites
from fedbn.errors import ConfigError

INFO = {
    "tables": Info(
        title="Your own tables: one CSV or Parquet file a site, or one file with a site column",
        clients="one a file, or one a value of data.site",
        classes=0,
        shape="features",
        source="data.path",
        licence="yours",
    )
}


def tables(
    path: str | None = None,
    label: str | None = None,
    site: str | None = None,
    id: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Literal["error", "mean"] = "error",
    test_share: float = 0.2,
    split_seed: int = 0,
) -> Federation:
    """Read tables, one client a site.

    Args:
        path: The folder, or the file.
        label: The column of classes.
        site: The column of sites, for one file.
        id: The column that names a row, no feature; values that repeat are remarked on.
        drop: Columns that are no features.
        categorical: Columns of numbers that are names, to be one-hot.
        missing: Whether an empty cell is an error, or becomes the mean of the site's training
            rows (for a text: zeros).
        test_share: The stratified part of each site held out for testing.
        split_seed: Decides which rows these are.
    """
    check_share(test_share)
    if missing not in ("error", "mean"):
        raise ConfigError(f"data.missing = {missing!r}: legal are 'error', 'mean'")
    if path is None:
        raise ConfigError(f"data.path is needed for data 'tables': {LAYOUT}")
    found = read_sites(Path(path), site)
    if label is None:
        named = ", ".join(next(iter(found.values())).columns)
        raise ConfigError(f"data.label is needed for tables: the column of classes, of {named}")
    classes = class_names(found, label)
    left_out = {label, *drop, *(name for name in (site, id) if name)}
    columns = feature_columns(found, left_out, categorical)
    if missing == "error":
        for table in found.values():
            check_complete(table, columns)
    clients = tuple(
        _client(name, table, columns, label, classes, test_share, split_seed)
        for name, table in found.items()
    )
    remarks = repeated_ids(found, id) if id else ()
    told = {"columns": [[c.name, c.values] for c in columns], "label": label, "missing": missing}
    return Federation(Path(path).resolve().stem, clients, classes, remarks, {"table": told})


def _client(
    name: str,
    table: Table,
    columns: Sequence[Column],
    label: str,
    classes: Sequence[str],
    test_share: float,
    seed: int,
) -> Client:
    place = {value: number for number, value in enumerate(classes)}
    y = torch.tensor([place[cell.strip()] for cell in table.columns[label]])
    rest, held = stratified(y, test_share, generator(seed, "test split", client=name))
    features = np.concatenate([column.encode(table) for column in columns], axis=1)
    x = torch.from_numpy(filled(features, rest.numpy(), columns, table))
    return Client(name, name, Split(x[rest], y[rest]), {name: Split(x[held], y[held])})
