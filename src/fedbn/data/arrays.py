"""Your own arrays: a folder with one `NAME.npz` a client.

Keys: `train_x`, `train_y`, `test_x`, `test_y` (`train_images`, `train_labels`, ... are accepted
too) and, if the labels have names, `classes`. `uint8` images become floats in [−1, 1], floats are
taken as they are. Images may be (n, h, w), (n, h, w, c) or (n, c, h, w).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedbn.core.federation import Client, Federation, Split
from fedbn.data._files import check_distinct, check_regular, shown
from fedbn.data._info import Info
from fedbn.errors import ConfigError, DataError

INFO = {
    "arrays": Info(
        title="Your own arrays: a folder with one NAME.npz a client",
        clients="one a file",
        classes=0,
        shape="any",
        source="data.path",
        licence="yours",
    )
}

_MOST_CLASSES = 100_000
_PARTS = {"x": ("x", "images"), "y": ("y", "labels")}


def arrays(path: str | None = None) -> Federation:
    """Read a folder of npz files, one a client, in the order of their names.

    Args:
        path: The folder.
    """
    if path is None:
        raise ConfigError(
            "data.path is needed for data 'arrays': a folder with one NAME.npz a client"
        )
    folder = Path(path)
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if not files:
        raise DataError(f"{folder}: no clients; expected one NAME.npz a client")
    check_distinct(files)
    contents = {file: read_npz(file) for file in files}
    classes = common_classes(contents)
    clients = tuple(_client(file, content) for file, content in contents.items())
    return Federation(folder.resolve().name, clients, classes)


def read_npz(file: Path) -> dict[str, NDArray[np.generic]]:
    """Read an npz whole; pickled objects are refused, a damaged file is named."""
    check_regular(file)  # a pipe would be waited for, for ever
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise DataError(f"{file}: not an npz file")
            found = {key: content[key] for key in content.files}
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{file}: an array larger than this machine's memory ({error})") from error
    except Exception as error:  # a damaged archive raises whatever its readers meet first
        if "pickle" in str(error).lower():
            raise DataError(
                f"{file}: holds pickled objects, which can run code: refused"
            ) from error
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: damaged or not an npz file ({reason})") from error
    for key, value in found.items():
        if not isinstance(value, np.ndarray):
            raise DataError(f"{file}: {shown(key)} is not an array; legal are .npy members")
    return found


def class_names(content: Mapping[str, NDArray[np.generic]], file: Path) -> tuple[str, ...] | None:
    """Read the names of the classes; None where the file has none."""
    names = content.get("classes")
    if names is None:
        return None
    if names.ndim != 1:
        raise DataError(f"{file}: classes of shape {names.shape}; expected one name a class")
    return tuple(map(str, names))


def common_classes(contents: Mapping[Path, Mapping[str, NDArray[np.generic]]]) -> tuple[str, ...]:
    """Find the classes that all files agree on: by name where given, else by the largest label."""
    read = {file: class_names(content, file) for file, content in contents.items()}
    named = {file: names for file, names in read.items() if names is not None}
    if named:
        first_file, first = next(iter(named.items()))
        for file in contents:
            if named.get(file) != first:
                raise DataError(
                    f"{file}: classes {list(named.get(file, ()))} differ in name or order from "
                    f"{list(first)} of {first_file.name}"
                )
        return first
    labels = [
        labels_in(content, part, file)
        for file, content in contents.items()
        for part in ("train", "test")
    ]
    largest = max(int(y.max(initial=0)) for y in labels)
    if largest >= _MOST_CLASSES:
        raise DataError(f"label {largest}: legal are whole numbers below {_MOST_CLASSES:,}")
    return tuple(str(label) for label in range(largest + 1))


def _client(file: Path, content: Mapping[str, NDArray[np.generic]]) -> Client:
    train, test = (
        Split(samples_in(content, part, file), torch.from_numpy(labels_in(content, part, file)))
        for part in ("train", "test")
    )
    return Client(file.stem, file.stem, train, {file.stem: test})


def _array(
    content: Mapping[str, NDArray[np.generic]], part: str, kind: str, file: Path
) -> NDArray[np.generic]:
    names = [f"{part}_{suffix}" for suffix in _PARTS[kind]]
    for name in names:
        if name in content:
            return content[name]
    raise DataError(f"{file}: no {' or '.join(names)}; it has {', '.join(content) or 'nothing'}")


def samples_in(content: Mapping[str, NDArray[np.generic]], part: str, file: Path) -> torch.Tensor:
    """Bring a part's samples to (n, ...): channels first, `uint8` or float32."""
    x = _array(content, part, "x", file)
    if x.ndim < 2:
        raise DataError(f"{file}, {part}: samples of shape {x.shape}; expected (n, ...)")
    if x.dtype != np.uint8:
        if x.dtype.kind not in "fiub":
            raise DataError(
                f"{file}, {part}: samples of dtype {x.dtype}; legal are uint8 and floats"
            )
        with np.errstate(all="ignore"):  # what overflows is infinite, and named by the checks
            x = x.astype(np.float32)
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = np.moveaxis(x, -1, 1)
    return torch.from_numpy(np.ascontiguousarray(x))


def labels_in(
    content: Mapping[str, NDArray[np.generic]], part: str, file: Path
) -> NDArray[np.int64]:
    """Read a part's labels, whole numbers from 0."""
    y = _array(content, part, "y", file)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = y.dtype.kind in "iub" or (
        y.dtype.kind == "f" and bool(np.isfinite(y).all()) and np.array_equal(y, np.round(y))
    )
    if not whole or y.ndim != 1:
        raise DataError(
            f"{file}, {part}: labels of dtype {y.dtype} and shape {y.shape}; "
            "legal are whole numbers from 0, one a sample"
        )
    return y.astype(np.int64)
