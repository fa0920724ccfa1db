"""The MATLAB files of SVHN and SynthDigits: `X` of shape (32, 32, 3, n) and labels `y`."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from fedbn.errors import DataError


def read_mat(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images (n, h, w, 3) and labels; the label 10 of SVHN is the digit 0."""
    content = _content(file)
    lacking = [key for key in ("X", "y") if key not in content]
    if lacking:
        names = [key for key in content if not key.startswith("__")]
        raise DataError(f"{file}: no {' and '.join(lacking)}; it has {', '.join(names) or 'none'}")
    images, labels = content["X"], content["y"].reshape(-1)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3:
        raise DataError(
            f"{file}: X of {images.dtype} {images.shape}; expected uint8 of (height, width, 3, n)"
        )
    if len(labels) != images.shape[3]:
        raise DataError(f"{file}: {images.shape[3]} images but {len(labels)} labels")
    if not np.isin(labels, range(11)).all():
        raise DataError(f"{file}: labels from {labels.min()} to {labels.max()}; legal are 0 to 10")
    return np.moveaxis(images, 3, 0), labels.astype(np.int64) % 10


def _content(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = loadmat(file, variable_names=["X", "y"])
        if len([key for key in content if not key.startswith("__")]) < 2:
            content = loadmat(file)
        return content
    except NotImplementedError as error:
        raise DataError(
            f"{file}: a MATLAB 7.3 file, which is HDF5; expected version 5 (save it with '-v7')"
        ) from error
    except (OSError, ValueError, TypeError, MatReadError, zlib.error, EOFError) as error:
        raise DataError(f"{file}: damaged or not a MATLAB file ({error})") from error
