"""Choosing one size for pictures of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from fedbn.data._images import opened, watched
from fedbn.errors import DataError

SIZES = (28, 32, 64, 128, 256)
_LOOKED_AT = 500


def choose_size(files: Sequence[Path]) -> tuple[int, str]:
    """Choose a side in pixels, and say how.

    At most 500 pictures, spread evenly over the files, are looked at. Squares of one size up to
    256 stay as they are; otherwise the largest of 28, 32, 64, 128 and 256 that is not above the
    median shorter side is taken, so that most pictures are made smaller and few larger.
    """
    if not files:
        raise DataError("no pictures to choose a size from")
    sides = [_sides(file) for file in files[:: 1 + (len(files) - 1) // _LOOKED_AT]]
    width, height = sides[0]
    if len(set(sides)) == 1 and width == height <= SIZES[-1]:
        return max(width, 4), ""
    shorter = median(min(pair) for pair in sides)
    side = max((size for size in SIZES if size <= shorter), default=SIZES[0])
    least, most = min(sides), max(sides)
    return side, (
        f"pictures of {least[0]}×{least[1]} to {most[0]}×{most[1]} pixels resized to {side}×{side}"
    )


def _sides(file: Path) -> tuple[int, int]:
    with watched(), opened(file) as picture:
        return picture.size
