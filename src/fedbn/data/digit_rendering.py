"""Digits drawn from fonts, after the idea of SynthDigits (Ganin et al. 2016).

Numbers of one to three digits in many fonts, at any place, angle and colour, blurred and noisy,
their neighbours cut off at the edges; the label is the digit in the middle. The fonts inside
matplotlib, which are on every machine that has this library, and a seed decide every image (for one
version of Pillow, whose FreeType draws the glyphs). What is rendered here is not Ganin's data, and
says so wherever it is shown.

An image is drawn in four steps: the masks of one font stand side by side; an affine map brings the
line to 28×28; the masks are blurred; background, outline and stroke get their colours and noise.
All masks are drawn at twice the size and halved, which smooths their edges.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from fedbn.core.randomness import derive_seed
from fedbn.data.storage import Arrays, cached, home
from fedbn.errors import ConfigError, DataError

CELL = 96
"""Width and height of a glyph's mask."""
HEIGHT = 44
"""Height of the digit 0 in a mask."""
OUTLINE = 4
_LEAST_ALIKE = 5


@dataclass(frozen=True)
class Font:
    """The ten digits of a font as masks, each centred in its cell; `outlined` with a border.

    Neighbours stand `advance` pixels of the mask apart.
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
    if (model := _drawn(_matplotlib() / "DejaVuSans.ttf")) is None:
        raise DataError(f"{_matplotlib()}: no DejaVuSans.ttf; install matplotlib anew")
    usable, standard = [], _standardised(model)
    for font in filter(None, map(_drawn, font_files(fonts))):
        # Most digits must look more like themselves than like another digit of the model.
        alike = _standardised(font) @ standard.T
        if int((alike.argmax(axis=1) == np.arange(10)).sum()) >= _LEAST_ALIKE:
            usable.append(font)
    if not usable:
        raise DataError(f"data.fonts = {fonts!r}: no font there shows the ten digits")
    return usable


def font_hashes(fonts: list[Font]) -> dict[str, str]:
    """Give the sha256 of each font's file, for the record."""
    return {font.file.name: hashlib.sha256(font.file.read_bytes()).hexdigest() for font in fonts}


def _drawn(file: Path) -> Font | None:
    try:
        # At the size at which its 0 is `HEIGHT` high; the basic layout does without libraqm.
        trial = ImageFont.truetype(str(file), 100, layout_engine=ImageFont.Layout.BASIC)
        box = trial.getbbox("0")
        font = trial.font_variant(size=round(100 * HEIGHT / (box[3] - box[1])))
        fill = tuple(_glyph(font, str(digit), 0) for digit in range(10))
        outlined = tuple(_glyph(font, str(digit), OUTLINE) for digit in range(10))
    except (OSError, ValueError, ZeroDivisionError):
        return None
    if any(mask.getbbox() is None for mask in fill):
        return None
    advance = tuple(max(8, round(font.getlength(str(digit)))) for digit in range(10))
    return Font(file, fill, outlined, advance)


def _glyph(font: ImageFont.FreeTypeFont, digit: str, outline: int) -> Image.Image:
    mask = Image.new("L", (CELL, CELL))
    place = (CELL / 2, CELL / 2 + HEIGHT / 2)
    ImageDraw.Draw(mask).text(place, digit, fill=255, font=font, anchor="ms", stroke_width=outline)
    return mask


def _standardised(font: Font) -> NDArray[np.float64]:
    cut = [np.asarray(m.crop(m.getbbox()).resize((24, 24)), np.float64).ravel() for m in font.fill]
    rows = np.stack(cut) - np.mean(cut, axis=1, keepdims=True)
    return np.asarray(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-9))


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


SIDE = 28
_LINE = 3 * CELL
_CHUNK = 256
_Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Look:
    """The bounds within which images vary, in pixels of the image unless said otherwise.

    They were chosen by how hard 743 images are to learn from: a small CNN reaches 78 %, near the
    80 % of the paper's SingleSet on Ganin's, so that likeness is no finding.
    """

    height: tuple[float, float] = (17.0, 23.0)  # of the digit 0
    stretch: tuple[float, float] = (0.85, 1.15)  # width against height
    rotation: float = 10.0  # in degrees, to either side
    slant: float = 0.1  # sideways for each pixel up
    shift: float = 1.5  # off the centre, to either side
    outline: float = 0.1  # the share of images whose strokes have a border
    contrast: float = 0.7  # the least distance of stroke and background, colours being in [0, 1]³
    blur: tuple[float, float] = (0.0, 1.2)  # standard deviation
    noise: tuple[float, float] = (0.0, 0.03)  # standard deviation, pixel values being in [0, 1]


def render(
    count: int, seed: Sequence[int], fonts: Sequence[Font], look: Look | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw images (count, 3, 28, 28) and the digits they show.

    Images come in chunks, each with random numbers of its own, so that more of them begin with
    the same ones.
    """
    chunks = [_chunk((*seed, n), fonts, look or Look()) for n in range(-(-count // _CHUNK))]
    images = np.concatenate([images for images, _ in chunks])[:count]
    return images, np.concatenate([labels for _, labels in chunks])[:count]


def _chunk(
    seed: Sequence[int], fonts: Sequence[Font], look: Look
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    draws = np.random.default_rng(seed)
    numbers = draws.integers(0, 10, (_CHUNK, 3))
    # A neighbour stands left and right so that one, two and three digits are equally often.
    kind, left = draws.integers(0, 3, _CHUNK), draws.random(_CHUNK) < 0.5
    beside = np.stack([(kind == 2) | (kind == 1) & left, (kind == 2) | (kind == 1) & ~left], axis=1)
    numbers[:, [0, 2]] = np.where(beside, numbers[:, [0, 2]], -1)
    chosen = draws.integers(0, len(fonts), _CHUNK)
    maps = _affine(draws, look)
    blur = draws.uniform(*look.blur, _CHUNK).tolist()
    outlines = draws.random(_CHUNK) < look.outline
    masks = np.empty((2, _CHUNK, SIDE, SIDE), np.uint8)
    for i in range(_CHUNK):
        font, number = fonts[chosen[i]], numbers[i].tolist()
        masks[:, i] = _mask(font, font.fill, number, maps[i], blur[i])
        if outlines[i]:
            masks[1, i] = _mask(font, font.outlined, number, maps[i], blur[i])
    return _coloured(masks.astype(np.float32) / np.float32(255), draws, look), numbers[:, 1]


def _affine(draws: np.random.Generator, look: Look) -> list[list[float]]:
    """Draw the maps from pixels of the image (at twice the size) to those of the line."""
    scale = HEIGHT / (2 * draws.uniform(*look.height, _CHUNK))
    angle = np.deg2rad(draws.uniform(-look.rotation, look.rotation, _CHUNK))
    slant = draws.uniform(-look.slant, look.slant, _CHUNK)
    across = scale / draws.uniform(*look.stretch, _CHUNK)
    centre = SIDE + 2 * draws.uniform(-look.shift, look.shift, (2, _CHUNK))
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = across * (cos + slant * sin), across * (sin - slant * cos)
    d, e = -scale * sin, scale * cos
    c = _LINE / 2 - a * centre[0] - b * centre[1]
    f = CELL / 2 - d * centre[0] - e * centre[1]
    rows: list[list[float]] = np.stack([a, b, c, d, e, f], axis=1).tolist()
    return rows


def _mask(
    font: Font, glyphs: Sequence[Image.Image], number: list[int], map: list[float], blur: float
) -> NDArray[np.uint8]:
    line = Image.new("L", (_LINE, CELL))
    left, middle, right = number
    for digit, side in ((left, -1), (right, 1), (middle, 0)):
        if digit >= 0:
            apart = side * (font.advance[middle] + font.advance[digit]) // 2
            line.paste(255, (CELL + apart, 0), glyphs[digit])
    small = line.transform(
        (2 * SIDE, 2 * SIDE), Image.Transform.AFFINE, map, Image.Resampling.BILINEAR
    ).reduce(2)
    return np.asarray(small.filter(ImageFilter.GaussianBlur(blur)) if blur > 0.2 else small)


def _coloured(masks: _Floats, draws: np.random.Generator, look: Look) -> NDArray[np.uint8]:
    fill, border = masks[0, :, None], masks[1, :, None]
    ground, far, stroke, edge = _colours(draws, look)
    # A slope from 0 to 1 across each image, in any direction.
    angle = draws.uniform(0, 2 * np.pi, (_CHUNK, 1, 1, 1)).astype(np.float32)
    place = np.linspace(-0.5, 0.5, SIDE, dtype=np.float32)
    slope = np.cos(angle) * place[:, None] + np.sin(angle) * place[None, :]
    background = ground + (far - ground) * np.clip(0.5 + slope, 0, 1)
    image = background * (1 - border) + edge * (border - fill) + stroke * fill
    strength = draws.uniform(*look.noise, (_CHUNK, 1, 1, 1)).astype(np.float32)
    image += strength * draws.standard_normal(image.shape, np.float32)
    return np.asarray(np.rint(np.clip(image, 0, 1) * 255), np.uint8)


def _colours(draws: np.random.Generator, look: Look) -> list[_Floats]:
    """Draw background, its far end, stroke and outline; the stroke stands out from both ends."""
    ground, edge = draws.random((2, _CHUNK, 3))
    far = np.clip(ground + draws.normal(0, 0.15, (_CHUNK, 3)), 0, 1)
    tried = draws.random((16, _CHUNK, 3))
    apart = np.minimum(np.linalg.norm(tried - ground, axis=2), np.linalg.norm(tried - far, axis=2))
    # The first that stands out enough, or else the one that does so most.
    best = np.where((apart >= look.contrast).any(0), (apart >= look.contrast).argmax(0),
                    apart.argmax(0))  # fmt: skip
    stroke = tried[best, np.arange(_CHUNK)]
    return [c.astype(np.float32)[:, :, None, None] for c in (ground, far, stroke, edge)]


_RENDERING_VERSION = 1


def rendered(train: int, test: int, fonts: str, seed: int) -> tuple[Arrays, str]:
    """Render training and test images, or take them from the cache, and say what they are."""
    drawn = load_fonts(fonts)
    hashes = font_hashes(drawn)
    key = {
        "version": _RENDERING_VERSION,
        "pillow": version("pillow"),
        "numpy": version("numpy"),
        "fonts": hashes,
        "look": repr(Look()),
        "sizes": [train, test],
        "seed": seed,
    }

    def make() -> Arrays:
        arrays: Arrays = {}
        for part, size in (("train", train), ("test", test)):
            own = derive_seed(seed, "synth_digits", client=part)
            arrays[f"{part}_x"], arrays[f"{part}_y"] = render(size, (own,), drawn)
        return arrays

    arrays = cached("synth_digits", key, make)
    whole = hashlib.sha256("".join(sorted(hashes.values())).encode()).hexdigest()
    return arrays, (
        f"synthdigits is rendered from {len(hashes)} fonts (sha256 {whole[:12]}), not Ganin's files"
    )
