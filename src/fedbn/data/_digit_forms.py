"""The forms in which the five digit data sets are passed around, and how each is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbn.data._idx import read_idx
from fedbn.data._labelled_folder import read_labelled_folder
from fedbn.data._mat import read_mat
from fedbn.data._usps import read_hdf5, read_libsvm
from fedbn.data.arrays import read_npz
from fedbn.errors import DataError

Samples = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (n, height, width) or (n, height, width, channels), and the digits they show."""


@dataclass(frozen=True)
class Form:
    """One way in which a data set is passed around.

    Attributes:
        files: The files or folders it consists of.
        read: Reads their paths: one part to be divided, or a training and a test part.
    """

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], list[Samples]]


def _npz(files: Sequence[Path]) -> list[Samples]:
    content = read_npz(files[0])
    parts = []
    for part in ("train", "test"):
        keys = (f"{part}_images", f"{part}_labels")
        for key in keys:
            if key not in content:
                raise DataError(f"{files[0]}: no {key}; it has {', '.join(content) or 'nothing'}")
        images, labels = (content[key] for key in keys)
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise DataError(
                f"{files[0]}: {keys[1]} of {labels.dtype} {labels.shape}; legal are whole numbers"
                ", one each"
            )
        # Checked with its shape where all forms are.
        parts.append((np.asarray(images), labels.astype(np.int64)))
    return parts


def _pooled(parts: Sequence[Samples]) -> list[Samples]:
    images, labels = zip(*parts, strict=True)
    return [(np.concatenate(images), np.concatenate(labels))]


def _idx(files: Sequence[Path]) -> list[Samples]:
    parts = [(read_idx(x, 3), read_idx(y, 1).astype(np.int64)) for x, y in _pairs(files)]
    for (images, labels), (file, _) in zip(parts, _pairs(files), strict=True):
        if len(images) != len(labels):
            raise DataError(f"{file}: {len(images)} images but {len(labels)} labels")
    return _pooled(parts)


def _pairs(files: Sequence[Path]) -> list[tuple[Path, Path]]:
    return list(zip(files[::2], files[1::2], strict=True))


def _mats(files: Sequence[Path]) -> list[Samples]:
    return _pooled([read_mat(file) for file in files])


def _libsvm(files: Sequence[Path]) -> list[Samples]:
    return _pooled([read_libsvm(file) for file in files])


def _hdf5(files: Sequence[Path]) -> list[Samples]:
    return [read_hdf5(files[0])]


def _folders(files: Sequence[Path]) -> list[Samples]:
    return _pooled([read_labelled_folder(folder, table) for folder, table in _pairs(files)])


_IDX = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_MNIST_M = tuple(
    f"mnist_m_{part}{end}" for part in ("train", "test") for end in ("", "_labels.txt")
)

FORMS = {
    "svhn": (Form(("svhn.npz",), _npz), Form(("train_32x32.mat", "test_32x32.mat"), _mats)),
    "usps": (
        Form(("usps.npz",), _npz),
        Form(("usps.bz2", "usps.t.bz2"), _libsvm),
        Form(("usps.h5",), _hdf5),
    ),
    "synthdigits": (
        Form(("synthdigits.npz",), _npz),
        Form(("synth_train_32x32.mat", "synth_test_32x32.mat"), _mats),
    ),
    "mnist_m": (Form(("mnist_m.npz",), _npz), Form(_MNIST_M, _folders)),
    "mnist": (
        Form(("mnist.npz",), _npz),
        Form(tuple(f"{name}.gz" for name in _IDX), _idx),
        Form(_IDX, _idx),
    ),
}
"""By domain, in the order in which they are looked for."""
