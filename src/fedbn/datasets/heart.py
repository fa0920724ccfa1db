"""UCI heart disease in four hospitals, prepared as the benchmark Fed-Heart-Disease does.

du Terrail et al. (2022, FLamby) leave out the three columns that most patients lack, drop rows with
a value missing among the rest, make chest pain and the resting ECG one-hot over all sites without
their first levels, call any narrowing a disease, divide each site 66 to 34, and normalise it by its
own training mean and deviation; `normalise = false` leaves that to the model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from fedbn.core.federation import Client, Federation, Split
from fedbn.data.image_folders import check_folder
from fedbn.data.storage import Info, data_root
from fedbn.errors import DataError
from fedbn.text import shown

SITES = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va": "va"}
_COLUMNS = 14
_KEPT = 10  # age to oldpeak; slope, ca and thal are left out
_LEVELS = {2: (2.0, 3.0, 4.0), 6: (1.0, 2.0)}  # chest pain, resting ECG; each without its first
_TEST_SHARE, _SEED = 0.34, 43

INFO = {
    "heart": Info(
        title="UCI heart disease, four hospitals, as in Fed-Heart-Disease",
        clients="4 of 30 to 199",
        classes=1,
        shape="13",
        source="by hand: UCI machine learning repository, data set 45",
        licence="CC BY 4.0",
        files=("heart/processed.*.data",),
        by_hand="put processed.{cleveland,hungarian,switzerland,va}.data below heart/",
    )
}


def heart(path: str | None = None, normalise: bool = True) -> Federation:
    """Read the four hospitals, one a client; the target is one label, disease or not.

    Args:
        path: The folder of the four files; `heart` below the data root unless given.
        normalise: Take each site's own training mean off, and divide by its deviation.
    """
    folder = Path(path) if path else data_root() / "heart"
    check_folder(folder, "processed.cleveland.data and the other three sites' files")
    clients, prepared = [], {}
    for site, name in SITES.items():
        table = _complete(folder / f"processed.{name}.data")
        plain = [table[:, column] for column in range(_KEPT) if column not in _LEVELS]
        levels = [table[:, column] == level for column, all_ in _LEVELS.items() for level in all_]
        x, sick = np.stack([*plain, *levels], axis=1).astype(np.float64), table[:, -1] > 0
        # As published: by class where every class has more than two.
        by_class = sick if min(np.bincount(sick, minlength=2)) > 2 else None
        how = {"test_size": _TEST_SHARE, "random_state": _SEED, "stratify": by_class}
        train, test = map(np.sort, train_test_split(np.arange(len(sick)), **how))
        if normalise:
            mean, spread = x[train].mean(axis=0), x[train].std(axis=0, ddof=1)
            spread[~(spread > 0)] = 1.0
            x, prepared[site] = (x - mean) / spread, [mean.tolist(), spread.tolist()]
        whole = Split(torch.from_numpy(x).float(), torch.from_numpy(sick)[:, None])
        rest, held = (whole.take(torch.from_numpy(part)) for part in (train, test))
        clients.append(Client(site, site, rest, {site: held}))
    told = {"levels": prepared} if normalise else {}
    return Federation("heart", tuple(clients), ("disease",), preparation=told)


def _complete(file: Path) -> NDArray[np.float64]:
    """Read a site's patients who have all values that are used."""
    try:
        lines = file.read_text(encoding="ascii").split()
        rows = [[float(v) if v not in ("?", "") else np.nan for v in x.split(",")] for x in lines]
    except OSError as error:
        raise DataError(f"{shown(file)}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{shown(file)}: not a table of numbers ({error})") from error
    if not rows or any(len(row) != _COLUMNS for row in rows):
        raise DataError(f"{shown(file)}: {_COLUMNS} columns a row are needed")
    table = np.array(rows)
    used = [*range(_KEPT), _COLUMNS - 1]
    return np.asarray(table[~np.isnan(table[:, used]).any(axis=1)])
