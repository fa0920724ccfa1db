"""MNIST-M as it was distributed: a folder of PNG files and a text file of `NAME LABEL` lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbn.data._images import opened, watched
from fedbn.errors import DataError


def read_labelled_folder(folder: Path, table: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images that a table names, all of one size, in the table's order."""
    rows = _rows(table)
    images = [_image(folder / name, table) for name, _ in rows]
    odd = next((i for i, image in enumerate(images) if image.shape != images[0].shape), None)
    if odd is not None:
        raise DataError(
            f"{folder / rows[odd][0]}: {images[odd].shape[1]}×{images[odd].shape[0]} pixels, but "
            f"{rows[0][0]} has {images[0].shape[1]}×{images[0].shape[0]}"
        )
    return np.stack(images), np.array([label for _, label in rows], np.int64)


def _rows(table: Path) -> list[tuple[str, int]]:
    rows = []
    for number, line in enumerate(_lines(table), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal() or Path(words[0]).name != words[0]:
            raise DataError(f"{table}, line {number}: {line!r}; expected a file's name and a digit")
        rows.append((words[0], int(words[1])))
    if not rows:
        raise DataError(f"{table}: no line; expected a file's name and a digit on each")
    return rows


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table}: unreadable or not text ({error})") from error


def _image(file: Path, table: Path) -> NDArray[np.uint8]:
    if not file.exists():
        raise DataError(f"{file}: named in {table.name}, but not there")
    with watched(), opened(file) as image:
        return np.asarray(image.convert("RGB"))
