"""MNIST's own file format: a big-endian header of type and sizes, then the bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbn.errors import DataError

_UNSIGNED_BYTES = 0x08


def read_idx(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or not.

    Args:
        file: The file; compressed if its name ends in `.gz`.
        dimensions: How many the array must have: 3 for images, 1 for labels.
    """
    content = _content(file)
    expected = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    if content[:4] != expected:
        raise DataError(
            f"{file}: not an idx file of {dimensions}-dimensional bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, expected {expected.hex(' ')}"
        )
    begin = 4 + 4 * dimensions
    if len(content) < begin:
        raise DataError(f"{file}: cut off within its header of {begin} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:begin])
    size = int(np.prod(shape, dtype=object))
    if len(content) - begin != size:
        raise DataError(
            f"{file}: its header promises {size} bytes for shape {shape}, "
            f"but {len(content) - begin} follow"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _content(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        return gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: unreadable, cut off or not a gzip file ({error})") from error
