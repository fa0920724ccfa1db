"""The two forms in which USPS is passed around: libsvm text (bz2) and `usps.h5`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from fedbn.errors import DataError

_SIDE = 16


def read_libsvm(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read `usps.bz2` or `usps.t.bz2`: labels 1 to 10 for the digits 0 to 9, pixels in [−1, 1]."""
    try:
        pixels, labels = load_svmlight_file(str(file), n_features=_SIDE**2, zero_based=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file}: damaged or not libsvm text ({error})") from error
    if not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{file}: labels from {labels.min()} to {labels.max()}; legal are 1 to 10")
    return _images((pixels.toarray() + 1) / 2, file), labels.astype(np.int64) - 1


def read_hdf5(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read `usps.h5`: `train` and `test`, each with `data` (n, 256) in [0, 1] and `target`."""
    parts = _hdf5_parts(file)
    images = np.concatenate([_images(data, file) for data, _ in parts])
    labels = np.concatenate([target for _, target in parts]).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(f"{file}: {len(images)} images but {len(labels)} labels")
    return images, labels


def _hdf5_parts(file: Path) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{file}: reading HDF5 needs h5py: pip install fedbn[hdf5], "
            "or use usps.bz2 and usps.t.bz2"
        ) from error
    try:
        with h5py.File(file, "r") as content:
            return [
                (np.asarray(content[part]["data"]), np.asarray(content[part]["target"]))
                for part in ("train", "test")
            ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: damaged, or without train/data, train/target, test/data, test/target "
            f"({error})"
        ) from error


def _images(pixels: NDArray[Any], file: Path) -> NDArray[np.uint8]:
    flat = pixels.reshape(len(pixels), -1)
    if flat.shape[1] != _SIDE**2:
        raise DataError(f"{file}: {flat.shape[1]} pixels an image; expected {_SIDE**2}")
    if not (flat.min() >= 0 and flat.max() <= 1):
        raise DataError(
            f"{file}: pixels outside their range; legal are [−1, 1] in libsvm text, [0, 1] in HDF5"
        )
    images: NDArray[np.uint8] = np.rint(flat * 255).astype(np.uint8)
    return images.reshape(-1, _SIDE, _SIDE)
