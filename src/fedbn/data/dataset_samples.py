"""Samples of any map-style Dataset: taken apart, checked, and read under a seed of their own.

torch's, Hugging Face's, MONAI's and torchvision's have `len` and `[index]`, and give `(x, y)` or a
dict with both. What a transform draws from a global generator (Python's, NumPy's or torch's) is
seeded a sample by (seed, client, round, pass, index), so that bits do not depend on who reads it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbn.core.federation import Targets
from fedbn.core.findings import not_finite
from fedbn.core.randomness import derive_seed, seeded
from fedbn.data.arrays import as_samples, channels_moved
from fedbn.errors import DataError, reason
from fedbn.text import one_line

_X = ("image", "img", "x", "pixel_values", "input", "inputs", "features")
_Y = ("label", "labels", "y", "target", "targets")
_LEGAL = f"(x, y), or a dict with one of {', '.join(_X)} and one of {', '.join(_Y)}"
_PLAIN_PICTURES = ("L", "RGB", "I", "I;16", "F")
_LOOKED_AT = 64


@dataclass(frozen=True)
class Source:
    """A Dataset, whose it is (for messages), and what is known of it: its first sample's looks."""

    dataset: Any
    where: str
    classes: tuple[str, ...]
    length: int
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    target: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    kind: Targets | None = None

    @staticmethod
    def of(dataset: Any, where: str, classes: Sequence[str], kind: Targets | None = None) -> Source:
        """Look at the first sample of a Dataset, whose targets are of a kind, if that is known."""
        bare = Source(dataset, where, tuple(classes), len(dataset), kind=kind)
        if not len(dataset):
            return bare
        x, y = map(torch.from_numpy, read_batch([bare], [(0, 0)]))
        return replace(bare, shape=tuple(x.shape[1:]), dtype=x.dtype, target=y)

    def sample(self, index: int) -> tuple[Tensor, Tensor]:
        """Read one sample; what is wrong with it is one line."""
        if len(self.dataset) != self.length:
            raise DataError(f"{self.length} samples when it was opened, {len(self.dataset)} now")
        x, y = parts_of(self.dataset[index])
        if self.shape and (x.shape, x.dtype) != (self.shape, self.dtype):
            raise DataError(
                f"{tuple(x.shape)} of {x.dtype}, but the first sample is {self.shape} of "
                f"{self.dtype}; all must be alike{getattr(self.dataset, 'way_out', '')}"
            )
        for text in not_finite(x[None]):
            raise DataError(text.partition(" in ")[0] + " in it")
        return x, self._target(y)

    def _target(self, y: Any) -> Tensor:
        """A target as a model takes it; a name or a truth value is a place among the classes."""
        named = self.kind in (None, Targets.CLASS)
        if named and np.ndim(y) == 0 and isinstance(value := np.asarray(y).item(), str | bool):
            if str(value) not in self.classes:
                raise DataError(f"label {value!r}; legal are {', '.join(self.classes)}")
            return torch.tensor(self.classes.index(str(value)))
        target = self._as_known(torch.as_tensor(y))
        if target.is_floating_point():
            for text in not_finite(target.reshape(1, -1)):
                raise DataError(f"{text.partition(' in ')[0]} in its target")
            return target.float().reshape(-1)
        if target.numel() > 1 or self.kind is Targets.LABELS:
            return target if target.dtype in (torch.bool, torch.uint8) else target.long()
        if not 0 <= int(target) < len(self.classes):
            raise DataError(f"label {int(target)}; expected 0 to {len(self.classes) - 1}")
        return target.long().reshape(())

    def _as_known(self, target: Tensor) -> Tensor:
        """Convert a target to the kind that all targets were decided to be."""
        if self.kind is Targets.NUMBERS:
            return target.float()
        if self.kind is Targets.LABELS:
            return target.bool().reshape(-1)
        if self.kind is not Targets.CLASS:
            return target
        if target.numel() > 1:  # one-hot
            return target.int().argmax()
        if target.is_floating_point():
            if not bool((target % 1 == 0).all()):
                raise DataError(f"label {float(target):g}; expected a whole number, a class")
            return target.long()
        return target


def label_key(columns: Mapping[str, Any]) -> str | None:
    """The column of targets, where there is one."""
    return next((key for key in _Y if key in columns), None)


def parts_of(sample: Any) -> tuple[Tensor, Any]:
    """Take a sample apart: x as a tensor, `uint8` or float32, and its target as it is."""
    if isinstance(sample, Mapping):
        found = [next((sample[k] for k in keys if k in sample), None) for keys in (_X, _Y)]
        if any(part is None for part in found):
            raise DataError(f"a dict with {', '.join(map(str, sample))}; expected {_LEGAL}")
        x, y = found
    elif isinstance(sample, tuple | list) and len(sample) == 2:
        x, y = sample
    else:
        raise DataError(f"a {type(sample).__name__}; expected {_LEGAL}")
    return _tensor(x), y


def _tensor(x: Any) -> Tensor:
    if hasattr(x, "getbands"):  # Pillow's
        values = np.array(x if x.mode in _PLAIN_PICTURES else x.convert("RGB"))
        x = np.moveaxis(np.atleast_3d(values), -1, 0)
    x = channels_moved(x, 0)
    tensor = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    if tensor.is_complex():
        raise DataError("complex numbers; expected real numbers")
    return as_samples(tensor[None])[0]


def told(error: Exception) -> str:
    """What an error says of a sample: our own line, or whose it is and what it says."""
    return str(error) if isinstance(error, DataError) else reason(error)


def reads_differ(dataset: Any, times: int = 6) -> bool:
    """Return True if a Dataset gives different samples for one index, as random transforms do.

    A transform that changes every second sample is missed once in 2**times cases. The global
    random generators are seeded for every read and are put back.
    """
    first: Tensor | None = None
    for seed in range(times + 1):
        with seeded(seed):
            x, _ = parts_of(dataset[0])
        if first is not None and (x.shape != first.shape or not torch.equal(x, first)):
            return True
        first = x.clone() if first is None else first
    return False


Address = tuple[int, int]
Batch = tuple[NDArray[Any], NDArray[Any]]


def read_batch(
    sources: Sequence[Source], addresses: Sequence[Address], seed: int = 0, turn: int = 0
) -> Batch:
    """Read samples by data set and index, each under a seed of its own for what transforms draw.

    Global generators stay as they are. `turn` is the pass over the data. A `DataError` names whose
    sample is bad, its index, and what is wrong with it.
    """
    found: list[tuple[Tensor, Tensor]] = []
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:  # not by `seeded`, which would seed devices too
        for which, index in addresses:
            own = derive_seed(seed, "sample", turn, f"{sources[which].where}\0{index}")
            random.seed(own)
            np.random.seed(own % 2**32)
            torch.default_generator.manual_seed(own)
            try:
                found.append(sources[which].sample(index))
            except Exception as error:
                where = f"{sources[which].where}, sample {index}"
                raise DataError(f"{where}: {one_line(told(error))}") from error
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)
    x, y = zip(*found, strict=True)
    for (which, index), target in zip(addresses, y, strict=True):
        if target.shape != y[0].shape:
            got = f"a target of {tuple(target.shape)}, not {tuple(y[0].shape)}"
            raise DataError(f"{sources[which].where}, sample {index}: {got}")
    return torch.stack(x).numpy(), torch.stack(y).numpy()


def known_targets(dataset: Any) -> NDArray[Any] | None:
    """Targets of all samples, where a Dataset tells them without reading samples.

    `targets` (torchvision), `labels` (MedMNIST), `tensors` (torch), a column (Hugging Face),
    `data` (MONAI); parts and chains of such (`Subset`, `ConcatDataset`). What does not agree with
    the first sample of each value, and the last of all, is no target of them: a `target_transform`
    may change it.
    """
    found = _told(dataset)
    if found is None or len(found) != len(dataset) or not len(found):
        return None
    values = in_one_column(np.asarray(found))
    values = values.astype(str) if values.dtype.kind == "O" else values  # pandas keeps texts so
    kinds = values if values.ndim < 3 else values[:, 0, 0]  # masks are long to compare
    firsts = np.unique(kinds, axis=0, return_index=True)[1][:_LOOKED_AT]
    some = sorted({0, len(found) - 1, *firsts.tolist()})
    try:
        with seeded(0):
            given = [np.asarray(parts_of(dataset[index])[1]).reshape(-1) for index in some]
    except Exception:  # whoever reads that sample next names it
        return None
    told = [values[index].reshape(-1) for index in some]
    return values if all(map(np.array_equal, given, told)) else None


def in_one_column(values: NDArray[Any]) -> NDArray[Any]:
    """Labels that stand in a column, as MedMNIST's do, one a sample."""
    column = values.ndim == 2 and values.shape[1] == 1 and values.dtype.kind in "iubUS"
    return values[:, 0] if column else values


def _told(dataset: Any) -> Any:
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        whole = _told(dataset.dataset)
        return None if whole is None else np.asarray(whole)[np.asarray(dataset.indices, dtype=int)]
    if hasattr(dataset, "datasets"):
        parts = [_told(each) for each in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate([*map(np.asarray, parts)])
    if isinstance(tensors := getattr(dataset, "tensors", None), tuple) and len(tensors) == 2:
        return tensors[1]
    if (features := getattr(dataset, "features", None)) and (key := label_key(features)):
        return dataset[key]
    rows = getattr(dataset, "data", None)
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
        key = label_key(rows[0])
        return [row[key] for row in rows] if key else None
    return getattr(dataset, "targets", getattr(dataset, "labels", None))


def class_names(dataset: Any) -> list[str] | None:
    """The names of a Dataset's classes, where it tells them."""
    features = getattr(dataset, "features", None)
    if features and (key := label_key(features)):
        return getattr(features[key], "names", None)
    inner = getattr(dataset, "dataset", None)
    found = getattr(dataset, "classes", None) or (class_names(inner) if inner is not None else None)
    return [str(name) for name in found] if isinstance(found, list | tuple) else None
