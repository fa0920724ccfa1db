"""MNIST-M made here: each MNIST digit over a patch of a photograph (Ganin et al. 2016).

The original takes its patches from the photographs of BSDS500; any folder of photographs will do,
and the result is labelled as made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbn.data._images import opened, watched
from fedbn.errors import DataError

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp"}
_MOST = 500
_LONGEST = 512


def photograph_files(folder: Path) -> list[Path]:
    """List the photographs below a folder: the first 500 by name."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of photographs")
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in _SUFFIXES and f.is_file())
    if not files:
        raise DataError(f"{folder}: no photograph; legal are {', '.join(sorted(_SUFFIXES))}")
    return files[:_MOST]


def blended(
    digits: NDArray[np.uint8], photographs: list[NDArray[np.uint8]], draws: np.random.Generator
) -> NDArray[np.uint8]:
    """Blend digits (n, h, w) with random patches: |patch − digit| in each channel.

    Examples:
        >>> digit = np.array([[[0, 255]]], np.uint8)
        >>> grey = [np.full((4, 4, 3), 100, np.uint8)]
        >>> blended(digit, grey, np.random.default_rng(0))[0, 0, :, 0].tolist()
        [100, 155]
    """
    height, width = digits.shape[1:]
    made = np.empty((*digits.shape, 3), np.uint8)
    for digit, target in zip(digits, made, strict=True):
        photograph = photographs[draws.integers(len(photographs))]
        top = draws.integers(photograph.shape[0] - height + 1)
        left = draws.integers(photograph.shape[1] - width + 1)
        patch = photograph[top : top + height, left : left + width].astype(np.int16)
        target[:] = np.abs(patch - digit[..., None])
    return made


def read_photograph(file: Path, least: int = 28) -> NDArray[np.uint8]:
    """Read a photograph in colour, shrunk to at most 512 pixels a side."""
    with watched(), opened(file) as image:
        image.draft("RGB", (_LONGEST, _LONGEST))
        colour = image.convert("RGB")
    colour.thumbnail((_LONGEST, _LONGEST))
    if min(colour.size) < least:
        raise DataError(
            f"{file}: {colour.width}×{colour.height} pixels at 512 a side; "
            f"at least {least}×{least} are needed"
        )
    return np.asarray(colour)
