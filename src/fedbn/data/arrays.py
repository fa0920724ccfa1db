"""Data given from Python: arrays by client, of NumPy, torch or plain lists.

Labels of further samples, by name or by number, as places in a list of classes.

Your own arrays: a folder with one `NAME.npz` a client.

Keys: `train_x`, `train_y`, `test_x`, `test_y` (`train_images`, `train_labels`, ... are accepted
too) and, if the labels have names, `classes`. `uint8` images become floats in [−1, 1], floats are
taken as they are. Images may be (n, h, w), (n, h, w, c) or (n, c, h, w).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import generator, stratified
from fedbn.data.storage import check_regular, shown
from fedbn.errors import DataError, unknown
from fedbn.text import one_line

Arrays = tuple[Any, Any]
Data = Federation | Mapping[str, Arrays | tuple[Arrays, Arrays]]
_TEST_SHARE = 0.2
_ARRAYS = "arrays of NumPy, tensors or lists of numbers"
_SHAPES = "(x, y) or ((train_x, train_y), (test_x, test_y))"


def federation_of(data: Data) -> Federation:
    """Make a federation of arrays by client.

    A client with one pair of arrays has a stratified fifth of it held out for testing. Floats
    become float32, as models are; `uint8` images stay and are scaled to [−1, 1] batch by batch.

    Examples:
        >>> x = [[0.0], [1.0], [2.0], [3.0], [4.0]] * 2
        >>> made = federation_of({"a": (x, [0, 1, 0, 1, 0] * 2)})
        >>> len(made.clients[0].train), len(made.clients[0].tests["a"]), made.classes
        (8, 2, ('0', '1'))
    """
    if isinstance(data, Federation):
        return data
    if not isinstance(data, Mapping):
        raise DataError(
            f"data is a {type(data).__name__}; expected a mapping of clients to {_SHAPES}"
        )
    if not data:
        raise DataError(f"data: no clients; expected a mapping of clients to {_SHAPES}")
    clients = tuple(_client(str(name), given) for name, given in data.items())
    parts = [part for c in clients for part in (c.train, *c.tests.values())]
    classes = max(_largest(part.y) for part in parts) + 1
    return Federation("arrays", clients, tuple(str(label) for label in range(max(classes, 2))))


def _client(name: str, given: Any) -> Client:
    where = f"data, client {name}"
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DataError(f"{where}: expected {_SHAPES}, got a {type(given).__name__}")
    first, second = given
    if isinstance(first, tuple) and isinstance(second, tuple):
        train, test = _split(f"{where}, train", first), _split(f"{where}, test", second)
        return Client(name, name, train, {name: test})
    whole = _split(where, given)
    if len(whole) < 3:
        raise DataError(f"{where}: {len(whole)} samples; at least 3 are needed")
    rest, held = stratified(whole.y, _TEST_SHARE, generator(0, "test split", client=name))
    return Client(name, name, whole.take(rest), {name: whole.take(held)})


def _split(where: str, pair: Any) -> Split:
    if len(pair) != 2:
        raise DataError(f"{where}: {len(pair)} arrays; expected x and y")
    x, y = tensor_of(pair[0], f"{where}, x"), tensor_of(pair[1], f"{where}, y")
    if x.dim() < 2 or y.dim() != 1:
        raise DataError(
            f"{where}: x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; "
            "expected (n, ...) and (n,)"
        )
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples but {len(y)} labels")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(f"{where}: labels of {y.dtype}; legal are whole numbers from 0")
    for sample in (y < 0).nonzero().flatten().tolist():
        raise DataError(f"{where}: label {int(y[sample])} of sample {sample}: legal are 0 and up")
    return Split(x if x.dtype == torch.uint8 else x.float(), y.long())


def tensor_of(value: Any, where: str) -> Tensor:
    """Bring numbers to a tensor; what is none is refused before anybody iterates over it."""
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
        raise DataError(f"{where}: complex numbers; legal are real ones")
    return tensor


def _largest(labels: Tensor) -> int:
    return int(labels.max()) if len(labels) else 0


_SHOWN = 20


def labels_of(y: Any, n: int, classes: Sequence[str], where: str = "y") -> NDArray[np.int64]:
    """Bring labels to places in the list of classes.

    Args:
        y: One a sample: names of classes, or whole numbers from 0.
        n: How many samples there are.
        classes: The classes that a run knows.
        where: What to call the labels in messages.

    Examples:
        >>> labels_of(["dog", "cat"], 2, ("cat", "dog")).tolist()
        [1, 0]
    """
    values = np.asarray(y)
    if values.shape != (n,):
        raise DataError(f"{where}: labels of shape {values.shape} for {n} samples")
    if values.dtype.kind in "US" or all(isinstance(value, str) for value in values.tolist()):
        return places(values.astype(str).tolist(), classes, where)
    if values.dtype.kind not in "iu":
        raise DataError(f"{where}: labels of {values.dtype}; legal are names and whole numbers")
    outside = np.flatnonzero((values < 0) | (values >= len(classes)))
    if len(outside):
        first = int(outside[0])
        raise DataError(
            f"{where}: label {values[first]} of sample {first}: the run knows 0 to "
            f"{len(classes) - 1} ({_listed(classes)})"
        )
    return values.astype(np.int64)


def places(names: Iterable[str], classes: Sequence[str], where: str) -> NDArray[np.int64]:
    """Find names in the list of classes; one that a run never saw is refused."""
    place = {name: number for number, name in enumerate(classes)}
    found = []
    for sample, name in enumerate(names):
        if name not in place:
            raise DataError(f"{where}, sample {sample}: {unknown('class', name, classes)}")
        found.append(place[name])
    return np.array(found, dtype=np.int64)


def _listed(classes: Sequence[str]) -> str:
    return ", ".join(classes[:_SHOWN]) + (" ..." if len(classes) > _SHOWN else "")


_MOST_CLASSES = 100_000
_PARTS = {"x": ("x", "images"), "y": ("y", "labels")}


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
        raise DataError(f"{file}: damaged or not an npz file ({one_line(error)})") from error
    for key, value in found.items():
        if not isinstance(value, np.ndarray):
            raise DataError(f"{file}: {shown(key)} is not an array; legal are .npy members")
    return found


def npz_classes(content: Mapping[str, NDArray[np.generic]], file: Path) -> tuple[str, ...] | None:
    """Read the names of the classes; None where the file has none."""
    names = content.get("classes")
    if names is None:
        return None
    if names.ndim != 1:
        raise DataError(f"{file}: classes of shape {names.shape}; expected one name a class")
    return tuple(map(str, names))


def common_classes(contents: Mapping[Path, Mapping[str, NDArray[np.generic]]]) -> tuple[str, ...]:
    """Find the classes that all files agree on: by name where given, else by the largest label."""
    read = {file: npz_classes(content, file) for file, content in contents.items()}
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
