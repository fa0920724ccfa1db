"""Arrays: what is in npz files, and what samples and labels must be.

An npz has `train_x`, `train_y`, `test_x`, `test_y` (`train_images`, ... will do too)
and, if the labels have names, `classes`. `uint8` images become floats in [−1, 1], floats are taken
as they are, and so are vectors of any type: their `uint8` columns are numbers. Images may be
(n, h, w), (n, h, w, c) or (n, c, h, w).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.data.storage import NO_FILE
from fedbn.errors import DataError, unknown
from fedbn.text import one_line, shown

_SHOWN = 20
_CHANNELS = (1, 3, 4)
ENDINGS = {"x": ("x", "images"), "y": ("y", "labels")}
"""What arrays of samples and of labels may be called, behind the name of their part."""
_ARRAYS = "arrays of NumPy, tensors or lists of numbers"
Content = Mapping[str, NDArray[np.generic]]
"""What an npz holds, by name."""


def numbered_groups(names: NDArray[Any], n: int, where: str) -> Tensor:
    """Number groups; samples of one name have one number."""
    if names.shape != (n,):
        raise DataError(f"{where}: shape {names.shape} for {n} samples; expected one a sample")
    return torch.from_numpy(np.unique(names.astype(str), return_inverse=True)[1])


def tensor_of(value: Any, where: str) -> Tensor:
    """Bring numbers to a tensor; what is none is refused before anybody iterates over it."""
    if hasattr(value, "to_numpy"):  # pandas, which gives views that are read-only or turned round
        value = np.array(value.to_numpy(), order="C")
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # torch warns of such arrays
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if hasattr(first, "__getitem__") and not (
        isinstance(first, Sequence) or hasattr(first, "__array__")
    ):  # a Dataset need not end
        raise DataError(f"{where}: a {type(first).__name__}; expected {_ARRAYS}")
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: not numbers ({one_line(error)}); expected {_ARRAYS}") from error
    if tensor.is_complex():
        raise DataError(f"{where}: complex numbers; expected real numbers")
    return tensor


def in_float32(x: Any) -> Any:
    """Return an array of numbers other than bytes in float32, whatever way it is stored.

    What overflows becomes infinite; checks of samples name it.
    """
    if not isinstance(x, np.ndarray) or x.dtype == np.uint8 or x.dtype.kind not in "fiub":
        return x
    with np.errstate(all="ignore"):
        return x.astype(np.float32)


def as_samples(x: Tensor) -> Tensor:
    """Return samples as `uint8` pixels or as floats; vectors are numbers, whatever their type.

    Examples:
        >>> as_samples(torch.zeros(2, 3, dtype=torch.uint8)).dtype
        torch.float32
        >>> as_samples(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).dtype
        torch.uint8
    """
    return x if x.dtype == torch.uint8 and x.dim() > 2 else x.float()


def labels_of(
    y: Any, n: int, classes: Sequence[str], where: str = "y", named: bool = False
) -> NDArray[np.int64]:
    """Bring labels, names of classes or whole numbers from 0, to places in the list of classes.

    Whole numbers are names where `named` ones may be such: a table's grades 1 to 3.

    Examples:
        >>> labels_of(["dog", "cat"], 2, ("cat", "dog")).tolist()
        [1, 0]
    """
    values = np.asarray(y)
    if values.shape != (n,):
        raise DataError(
            f"{where}: labels of shape {values.shape} for {n} samples{_way_out(values, n)}"
        )
    if values.dtype.kind == "f" and np.isin(values, [0.0, 1.0]).all():  # as `fit` takes them
        values = values.astype(np.int64)
    texts = all(isinstance(value, str | bool | bytes) for value in values.tolist())
    if texts or (named and any(map(str.isdecimal, classes))):
        return places(values.astype(str).tolist(), classes, where)
    labels = _numbered(values, where, "names and ")
    listed = ", ".join(classes[:_SHOWN]) + (" ..." if len(classes) > _SHOWN else "")
    for sample in np.flatnonzero((labels < 0) | (labels >= len(classes))):
        legal = f"the run knows 0 to {len(classes) - 1} ({listed})"
        raise DataError(f"{where}: label {labels[sample]} of sample {sample}: {legal}")
    return labels


def _way_out(values: NDArray[Any], n: int) -> str:
    """Return what to give in place of a column or of one-hot rows."""
    if values.shape == (n, 1):
        return ", one column; give y[:, 0]"
    one_hot = values.ndim == 2 and len(values) == n and values.dtype.kind in "biuf"
    if one_hot and np.isin(values, [0, 1]).all() and (values.sum(axis=1) == 1).all():
        return ", one-hot rows; give y.argmax(axis=1)"
    return ""


def _numbered(values: NDArray[Any], where: str, legal: str = "") -> NDArray[np.int64]:
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise DataError(
            f"{where}: labels of dtype {values.dtype} and shape {values.shape}; "
            f"legal are {legal}whole numbers from 0, one a sample"
        )
    return values.astype(np.int64)


def plain_labels(labels: NDArray[np.generic]) -> NDArray[np.generic]:
    """Bring the ways in which files keep whole numbers to one: a column, floats, booleans."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.dtype.kind == "f" and bool(np.isfinite(flat).all()):
        flat = flat.astype(np.int64) if np.array_equal(flat, np.round(flat)) else flat
    return flat.astype(np.int64) if flat.dtype.kind == "b" else flat


def places(
    names: Iterable[str], classes: Sequence[str], where: str, rows: Sequence[int] = ()
) -> NDArray[np.int64]:
    """Find names in the list of classes; one that a run never saw is refused.

    `rows` are the rows of a table that the names stand in.
    """
    place = {name: number for number, name in enumerate(classes)}
    found = []
    for sample, name in enumerate(names):
        if name not in place:
            at = f"row {rows[sample]}" if rows else f"sample {sample}"
            raise DataError(f"{where}, {at}: {unknown('class', name, classes)}")
        found.append(place[name])
    return np.array(found, dtype=np.int64)


def read_npz(file: Path) -> dict[str, NDArray[np.generic]]:
    """Read an npz whole; pickled objects are refused, a damaged file is named."""
    if file.exists() and not file.is_file():  # a pipe would be waited for, for ever
        raise DataError(f"{shown(file)}: {NO_FILE}")
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise DataError(f"{file}: not an npz file")
            _check_size(content, file)
            found = {key: content[key] for key in content.files}
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{file}: an array larger than this machine's memory ({error})") from error
    except Exception as error:  # a damaged archive raises whatever its readers meet first
        if "pickle" in str(error).lower():
            pickled = "holds pickled objects, which can run code: refused"
            raise DataError(f"{file}: {pickled}") from error
        raise DataError(f"{file}: damaged or not an npz file ({one_line(error)})") from error
    for key, value in found.items():
        if not isinstance(value, np.ndarray):
            raise DataError(f"{file}: {shown(key)} is not an array; legal are .npy members")
    return found


def _check_size(content: np.lib.npyio.NpzFile, file: Path) -> None:
    """Refuse a small file that would unpack to more than the machine's memory."""
    size = sum(member.file_size for member in (content.zip.infolist() if content.zip else ()))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise DataError(
            f"{file}: unpacks to {size / 1e9:,.1f} GB, where this machine has {memory / 1e9:,.1f} "
            "GB of memory; divide it, or give a Dataset that reads samples one by one"
        )


def npz_classes(content: Content, file: Path) -> tuple[str, ...] | None:
    """Read the names of the classes; None where the file has none."""
    if (names := content.get("classes")) is None:
        return None
    if names.ndim != 1:
        raise DataError(f"{file}: classes of shape {names.shape}; expected one name a class")
    return tuple(map(str, names))


def common_classes(contents: Mapping[Path, Content]) -> tuple[str, ...] | None:
    """Return the names of the classes that all files agree on; None where no file has names."""
    read = {file: npz_classes(content, file) for file, content in contents.items()}
    named = {file: names for file, names in read.items() if names is not None}
    if not named:
        return None
    first_file, first = next(iter(named.items()))
    for file in contents:
        if named.get(file) != first:
            raise DataError(
                f"{file}: classes {list(named.get(file, ()))} differ in name or order from "
                f"{list(first)} of {first_file.name}"
            )
    return first


def array_samples(content: Content, part: str, file: Path) -> Tensor:
    """Return the samples of the part `train` or `test` of what an npz holds."""
    return samples_of(_array(content, part, "x", file), f"{file}, {part}", grey=True)


def array_targets(content: Content, part: str, file: Path) -> NDArray[np.generic]:
    """Return the targets of a part as they are; a column of whole numbers becomes (n,)."""
    y = _array(content, part, "y", file)
    if y.dtype.kind not in "buifUS":
        _numbered(y, f"{file}, {part}")
    column = y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind != "f"
    return y[:, 0] if column else y


def channels_moved(x: Any, at: int = 1) -> Any:
    """Put channels of NumPy's pictures, 1, 3 or 4 that come last, before height and width."""
    if not isinstance(x, np.ndarray) or x.ndim != at + 3 or x.shape[at] in _CHANNELS:
        return x
    return np.ascontiguousarray(np.moveaxis(x, -1, at)) if x.shape[-1] in _CHANNELS else x


def samples_of(x: Any, where: str, grey: bool = False) -> Tensor:
    """Return the raw samples of a client as a tensor (n, ...), `uint8` pixels or float32.

    Args:
        x: An array, a tensor, numbers in lists, or a DataFrame of numbers.
        where: What messages call the samples.
        grey: True if arrays (n, height, width) are pictures of one channel.

    Raises:
        DataError: The samples are no numbers, or have no first dimension of their own.
    """
    if grey and isinstance(x, np.ndarray) and x.ndim == 3:
        x = x[:, None]
    tensor = tensor_of(in_float32(channels_moved(x)), where)
    if tensor.dim() < 2:
        raise DataError(f"{where}: samples of shape {tuple(tensor.shape)}; expected (n, ...)")
    return as_samples(tensor)


def _array(content: Content, part: str, kind: str, file: Path) -> NDArray[np.generic]:
    names = [f"{part}_{suffix}" for suffix in ENDINGS[kind]]
    for name in names:
        if name in content:
            return content[name]
    raise DataError(f"{file}: no {' or '.join(names)}; it has {', '.join(content) or 'nothing'}")
