"""Finding and reading pictures of any kind Pillow knows, as `uint8` tensors of one size.

What becomes RGB, and how: grey values are repeated; 16-bit values 0 to 65535 are scaled to 0 to
255; palettes are looked up; what is transparent is laid over white; a photograph is turned as its
EXIF entry says; of an animation the first picture is taken.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedbn.data._files import scan, shown
from fedbn.errors import DataError

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
_SIXTEEN_BIT = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
_WHITE = (255, 255, 255, 255)


def is_picture(file: Path) -> bool:
    """Tell by its name whether a file should be a picture."""
    return file.suffix.lower() in SUFFIXES


def pictures_below(folder: Path) -> list[Path]:
    """Find all pictures below a folder, by name; other files are left out.

    Raises:
        DataError: For a folder that cannot be listed or a picture that is a broken link.
    """
    found: list[Path] = []
    for item in scan(folder):
        if isinstance(item, Path):
            found += [item] if is_picture(item) else []
        elif not item.harmless and (item.path.suffix == "" or is_picture(item.path)):
            raise DataError(f"{shown(item.path)}: {item.text}")
    return found


@contextmanager
def bombs_refused() -> Iterator[None]:
    """Make Pillow refuse pictures above its limit of pixels, in all threads started inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """Open a picture; whatever is wrong with it becomes a `DataError` naming the file.

    To be used inside `bombs_refused()`.
    """
    try:
        if file.stat().st_size == 0:
            raise DataError(f"{shown(file)}: empty, 0 bytes")
        with Image.open(file) as picture:
            yield picture
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = f"{Image.MAX_IMAGE_PIXELS:,}"
        raise DataError(f"{shown(file)}: enormous, more than {limit} pixels: refused") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{shown(file)}: not a picture, in spite of its name") from error
    except PermissionError as error:
        raise DataError(f"{shown(file)}: no permission to read it") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{shown(file)}: damaged or cut off ({reason})") from error


def read_picture(file: Path, size: int | None = None) -> NDArray[np.uint8]:
    """Read a picture as (height, width, 3), resized to a square where a size is given.

    To be used inside `bombs_refused()`.
    """
    with opened(file) as picture:
        picture.load()
        rgb = _as_rgb(ImageOps.exif_transpose(picture), file)
        if size is not None and rgb.size != (size, size):
            rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(rgb, dtype=np.uint8)


def read_pictures(files: Sequence[Path], size: int) -> Tensor:
    """Read pictures as one `uint8` tensor (n, 3, size, size), on all cores.

    Raises:
        DataError: Naming the first file, in the order given, that cannot be read.
    """
    pixels = torch.empty(len(files), 3, size, size, dtype=torch.uint8)

    def fill(number: int) -> None:
        picture = torch.from_numpy(read_picture(files[number], size).copy())
        pixels[number] = picture.permute(2, 0, 1)

    with bombs_refused(), ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(fill, range(len(files))):
            pass
    return pixels


def cores() -> int:
    """Count the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _as_rgb(picture: Image.Image, file: Path) -> Image.Image:
    if picture.mode == "RGB":
        return picture
    if picture.mode in _SIXTEEN_BIT:
        return _from_sixteen_bit(picture, file)
    if picture.mode == "F":
        raise DataError(
            f"{shown(file)}: pixels are floats, whose range is unknown; legal are 8 and 16 bit "
            "(or put the values in an npz file)"
        )
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        ground = Image.new("RGBA", picture.size, _WHITE)
        return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")
    return picture.convert("RGB")


def _from_sixteen_bit(picture: Image.Image, file: Path) -> Image.Image:
    values = np.asarray(picture).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"{shown(file)}: pixels beyond 0 to 65535; legal are 8 and 16 bit")
    return Image.fromarray(np.round(values / 257).astype(np.uint8)).convert("RGB")
