"""Pictures of any kind Pillow knows as tensors: found, read, brought to one size and augmented.

What becomes RGB, and how: grey values are repeated; palettes are looked up; what is transparent is
laid over white; a photograph is turned as its EXIF entry says; of an animation the first picture
is taken. Pixels are `uint8`; where a picture of 16 bit is among them, floats in [−1, 1], as `uint8`
pixels become when a model takes them.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedbn.core.engine import cores
from fedbn.core.federation import scaled
from fedbn.data.storage import scan
from fedbn.errors import DataError
from fedbn.text import one_line, shown

PICTURE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
SIZES = (28, 32, 64, 128, 256)
_LOOKED_AT = 500
_BLACK = -1.0
_SIXTEEN_BIT = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
_SIXTEEN_BIT_COLOURS = re.compile(r"(LA|RGB|CMYK).*;16")
_LOG = logging.getLogger("fedbn")
_current = threading.local()
"""The picture that a thread reads, whom a warning of Pillow's is about."""
_WHITE = (255, 255, 255, 255)
logging.getLogger("PIL").addHandler(logging.NullHandler())  # what matters to us, it raises
DEPTH = 65535
"""The 16-bit value that becomes 1, unless said otherwise; 0 becomes −1."""
PictureDepth = Annotated[int, Field(gt=255, le=DEPTH)]
PictureSide = Annotated[int, Field(ge=4, le=2048)]
Constants = Sequence[Sequence[float]]
"""Means and deviations, one of each by channel or by feature."""


def is_picture(file: Path) -> bool:
    """Tell by its name whether a file should be a picture."""
    return file.suffix.lower() in PICTURE_SUFFIXES


def pictures_below(folder: Path) -> list[Path]:
    """Find all pictures below a folder, by name; one that is a broken link is refused."""
    found: list[Path] = []
    for item in scan(folder):
        if isinstance(item, Path):
            found += [item] if is_picture(item) else []
        elif not item.harmless and (item.path.suffix == "" or is_picture(item.path)):
            raise DataError(f"{shown(item.path)}: {item.text}")
    return found


@contextmanager
def watched() -> Iterator[dict[Path, str]]:
    """Let Pillow refuse pictures above its limit of pixels, and hear its other remarks by file.

    In all threads started inside; the last word on each file is kept.
    """
    odd: dict[Path, str] = {}
    plain = warnings.showwarning

    def hear(message: Warning | str, *where: Any, **more: Any) -> None:
        file = getattr(_current, "file", None)
        if file is None:
            plain(message, *where, **more)
        else:
            odd[file] = one_line(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.showwarning = hear
        yield odd


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """Open a picture, inside `watched()`; what is wrong becomes a `DataError` naming the file."""
    _current.file = file
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
        raise DataError(f"{shown(file)}: damaged or cut off ({one_line(error)})") from error
    finally:
        _current.file = None


def read_picture(
    file: Path, size: tuple[int, int] | None = None, depth: int = DEPTH, channels: int = 3
) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Read a picture, resized to (width, height) where given; to be used inside `watched()`.

    Gives pixels (height, width, 3), or (height, width) where one channel is asked for; of a 16-bit
    picture floats (height, width) in [−1, 1].
    """
    with opened(file) as picture:
        _check_colours(picture, file)
        picture.load()
        whole = _as_rgb(ImageOps.exif_transpose(picture), file, depth)
        if size is not None and whole.size != size:
            whole = whole.resize(size, Image.Resampling.BILINEAR)
        if whole.mode == "F":
            return np.asarray(whole) * np.float32(2) - np.float32(1)
        return np.asarray(whole if channels == 3 else whole.convert("L"), dtype=np.uint8)


def picture_tensor(file: Path, size: tuple[int, int], depth: int, channels: int) -> Tensor:
    """Read a picture as (channels, height, width); to be used inside `watched()`."""
    values = torch.from_numpy(read_picture(file, size, depth, channels).copy())
    return values.permute(2, 0, 1) if values.dim() == 3 else values.expand(channels, *values.shape)


def read_pictures(
    files: Sequence[Path], size: int | tuple[int, int], depth: int = DEPTH, channels: int = 3
) -> Tensor:
    """Read pictures as one tensor (n, channels, height, width), on all cores.

    It is `uint8`; float32 in [−1, 1] where a picture has 16 bit, of which `depth` becomes 1. The
    first file, in the order given, that cannot be read is named.
    """
    width, height = size if isinstance(size, tuple) else (size, size)
    pixels = torch.empty(len(files), channels, height, width, dtype=torch.uint8)
    deep: dict[int, Tensor] = {}

    def fill(number: int) -> None:
        picture = picture_tensor(files[number], (width, height), depth, channels)
        if picture.is_floating_point():
            deep[number] = picture
        else:
            pixels[number] = picture

    with watched() as odd, ThreadPoolExecutor(cores()) as pool:
        list(pool.map(fill, range(len(files))))
    for file, text in list(odd.items())[:1]:
        _LOG.warning(
            f"{len(odd)} picture(s) are odd, but can be read; the first: {shown(file)}: {text}"
        )
    if not deep:
        return pixels
    floats = pixels.float().div_(127.5).sub_(1)
    for number, picture in deep.items():
        floats[number] = picture
    return floats


def normalised(x: Tensor, constants: Constants | None) -> Tensor:
    """Bring pixels, scaled to [0, 1], to means of 0 and deviations of 1, as ImageNet's are.

    Examples:
        >>> normalised(torch.full((1, 1, 1), 255, dtype=torch.uint8), [[0.5], [0.25]]).flatten()
        tensor([2.])
    """
    if not constants:
        return x
    mean, deviation = (torch.tensor(each).reshape(-1, 1, 1) for each in constants)
    return ((scaled(x) + 1) / 2 - mean) / deviation


def _check_colours(picture: Image.Image, file: Path) -> None:
    """Refuse colours of 16 bit, of which Pillow keeps 8; to be called before pixels are read."""
    for codec, _, _, args in getattr(picture, "tile", ()):
        how = args if isinstance(args, tuple) else (args,)
        netpbm = codec.startswith("ppm") and picture.mode == "RGB" and how[-1] > 255
        if netpbm or _SIXTEEN_BIT_COLOURS.match(str(how[0])):
            raise DataError(
                f"{shown(file)}: colours of 16 bit, which would be cut to 8; save them with 8 bit, "
                "in grey with 16, or as floats in an npz file"
            )


def _as_rgb(picture: Image.Image, file: Path, depth: int) -> Image.Image:
    """Make a picture RGB; or floats from 0 to 1, where it has 16 bit."""
    if picture.mode == "RGB":
        return picture
    if picture.mode in _SIXTEEN_BIT:
        values = np.asarray(picture)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > depth:
            way_out = "raise data.depth" if low >= 0 and high <= DEPTH else "legal are 8 and 16 bit"
            raise DataError(
                f"{shown(file)}: pixels from {low} to {high}, beyond 0 to {depth}; {way_out}"
            )
        return Image.fromarray(values.astype(np.float32) / np.float32(depth))
    if picture.mode == "F":
        raise DataError(
            f"{shown(file)}: pixels are floats, whose range is unknown; legal are 8 and 16 bit "
            "(or put the values in an npz file)"
        )
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        ground = Image.new("RGBA", picture.size, _WHITE)
        return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")
    return picture.convert("RGB")


def choose_size(files: Sequence[Path]) -> tuple[int, str]:
    """Choose a side in pixels, and say how.

    At most 500 pictures, spread evenly over the files, are looked at. Squares of one size up to
    256 stay as they are; otherwise the largest of 28, 32, 64, 128 and 256 that is not above the
    median shorter side is taken, so that most pictures are made smaller and few larger.
    """
    if not files:
        raise DataError("no pictures to choose a size from")
    sides = []
    for file in files[:: 1 + (len(files) - 1) // _LOOKED_AT]:
        with watched(), opened(file) as picture:
            sides.append(picture.size)
    width, height = sides[0]
    if len(set(sides)) == 1 and width == height <= SIZES[-1]:
        return max(width, 4), ""
    shorter = median(min(pair) for pair in sides)
    side = max((size for size in SIZES if size <= shorter), default=SIZES[0])
    least, most = min(sides), max(sides)
    return side, (
        f"pictures of {least[0]}×{least[1]} to {most[0]}×{most[1]} pixels resized to {side}×{side}"
    )


@dataclass(frozen=True)
class FlipAndTurn:
    """Mirror half of the pictures left to right, and turn each by a random angle.

    What a turn leaves empty becomes black. The paper does not speak of it; its authors' code
    does this to Office-Caltech10 and DomainNet.

    Examples:
        >>> pictures = torch.zeros(4, 3, 8, 8)
        >>> FlipAndTurn()(pictures, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """

    degrees: float = 30.0  # angles are drawn evenly from −degrees to +degrees

    def __call__(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Change a batch (n, c, h, w) of floats in [−1, 1]."""
        n, _, height, width = x.shape
        angle = (torch.rand(n, generator=draws) * 2 - 1) * math.radians(self.degrees)
        mirror = (torch.rand(n, generator=draws) < 0.5).float() * -2 + 1
        # Where each output pixel is read, in coordinates from −1 to 1 along both sides.
        cos, sin, zero, ratio = angle.cos(), angle.sin(), torch.zeros_like(angle), height / width
        across = torch.stack([mirror * cos, mirror * -sin * ratio, zero], dim=1)
        down = torch.stack([sin / ratio, cos, zero], dim=1)
        matrices = torch.stack([across, down], dim=1).to(x)
        grid = functional.affine_grid(matrices, list(x.shape), align_corners=False)
        # Outside the picture grid_sample reads 0, which must mean black.
        return functional.grid_sample(x - _BLACK, grid, align_corners=False).add_(_BLACK)
