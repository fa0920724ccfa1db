"""Fonts for rendered digits: found, checked to show digits, hashed, and drawn once into masks.

The fonts inside matplotlib are on every machine that has this library, so they are the default.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedbn.data._info import home
from fedbn.errors import ConfigError, DataError

CELL = 96
"""Width and height of a glyph's mask."""

HEIGHT = 44
"""Height of the digit 0 in a mask."""

OUTLINE = 4
_LEAST_ALIKE = 5


@dataclass(frozen=True)
class Font:
    """The ten digits of a font as masks.

    Attributes:
        file: Where it came from.
        fill: A mask a digit, centred in its cell.
        outlined: The same with a border around the stroke.
        advance: How far apart neighbours stand, in pixels of the mask.
    """

    file: Path
    fill: tuple[Image.Image, ...]
    outlined: tuple[Image.Image, ...]
    advance: tuple[int, ...]


def font_files(fonts: str = "matplotlib") -> list[Path]:
    """List font files by name: those inside matplotlib, the system's, or those of a folder."""
    if fonts == "matplotlib":
        folders = [_matplotlib()]
    elif fonts == "system":
        folders = [folder for folder in _system() if folder.is_dir()]
    else:
        folders = [Path(fonts)]
        if not folders[0].is_dir():
            raise ConfigError(
                f"data.fonts = {fonts!r}: no such folder; legal are 'matplotlib', 'system' and a "
                "folder of .ttf and .otf files"
            )
    found = [f for folder in folders for end in ("ttf", "otf") for f in folder.rglob(f"*.{end}")]
    return sorted(found, key=lambda file: (file.name, str(file)))


def load_fonts(fonts: str = "matplotlib") -> list[Font]:
    """Draw the digits of all fonts that have them; symbol fonts and the like are left out."""
    model = _drawn(_matplotlib() / "DejaVuSans.ttf")
    if model is None:
        raise DataError(f"{_matplotlib()}: no DejaVuSans.ttf; install matplotlib anew")
    drawn = [_drawn(file) for file in font_files(fonts)]
    usable = [font for font in drawn if font is not None and _shows_digits(font, model)]
    if not usable:
        raise DataError(f"data.fonts = {fonts!r}: no font there shows the ten digits")
    return usable


def font_hashes(fonts: list[Font]) -> dict[str, str]:
    """Give the sha256 of each font's file, for the record."""
    return {font.file.name: hashlib.sha256(font.file.read_bytes()).hexdigest() for font in fonts}


def _drawn(file: Path) -> Font | None:
    try:
        font = _sized(file)
        fill = tuple(_mask(font, str(digit), 0) for digit in range(10))
        outlined = tuple(_mask(font, str(digit), OUTLINE) for digit in range(10))
    except (OSError, ValueError, ZeroDivisionError):
        return None
    if any(mask.getbbox() is None for mask in fill):
        return None
    advance = tuple(max(8, round(font.getlength(str(digit)))) for digit in range(10))
    return Font(file, fill, outlined, advance)


def _sized(file: Path) -> ImageFont.FreeTypeFont:
    """Open a font at the size at which its 0 is `HEIGHT` pixels high."""
    # The basic layout does the same with and without libraqm.
    trial = ImageFont.truetype(str(file), 100, layout_engine=ImageFont.Layout.BASIC)
    box = trial.getbbox("0")
    return trial.font_variant(size=round(100 * HEIGHT / (box[3] - box[1])))


def _mask(font: ImageFont.FreeTypeFont, digit: str, outline: int) -> Image.Image:
    mask = Image.new("L", (CELL, CELL))
    place = (CELL / 2, CELL / 2 + HEIGHT / 2)
    ImageDraw.Draw(mask).text(place, digit, fill=255, font=font, anchor="ms", stroke_width=outline)
    return mask


def _shows_digits(font: Font, model: Font) -> bool:
    """Tell whether most digits look more like themselves in `model` than like another digit."""
    alike = _standardised(font) @ _standardised(model).T
    return int((alike.argmax(axis=1) == np.arange(10)).sum()) >= _LEAST_ALIKE


def _standardised(font: Font) -> NDArray[np.float64]:
    cut = [np.asarray(m.crop(m.getbbox()).resize((24, 24)), np.float64).ravel() for m in font.fill]
    rows = np.stack(cut) - np.mean(cut, axis=1, keepdims=True)
    whole: NDArray[np.float64] = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-9)
    return whole


def _matplotlib() -> Path:
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise DataError("matplotlib is not installed; its fonts are needed to render digits")
    return Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"


def _system() -> list[Path]:
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home() / "Library/Fonts"]
    shared = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts")]
    return [*shared, home() / ".fonts", home() / ".local/share/fonts"]
