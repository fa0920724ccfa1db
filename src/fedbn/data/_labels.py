"""Labels of further samples, by name or by number, as places in a list of classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbn.errors import DataError, unknown

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
