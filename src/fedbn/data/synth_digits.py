"""Our own renderer of the idea of SynthDigits (Ganin et al. 2016), whose files are hard to get.

Numbers of one to three digits in many fonts, at any place, angle and colour, blurred and noisy,
their neighbours cut off at the edges; the label is the digit in the middle. The fonts inside
matplotlib and a seed decide every image (for one version of Pillow, whose FreeType draws the
glyphs). What is rendered here is not Ganin's data, and says so wherever it is shown.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version

import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import number
from fedbn.data._cache import Arrays, cached
from fedbn.data._fonts import Font, font_hashes, load_fonts
from fedbn.data._info import Info
from fedbn.data._render import Look, render
from fedbn.errors import ConfigError

INFO = {
    "synth_digits": Info(
        title="Coloured digits rendered from fonts, like SynthDigits",
        clients="1 of 7438",
        classes=10,
        shape="3×28×28",
        source="rendered here from the fonts inside matplotlib; no download",
        licence="the images are yours; the fonts' own licences hold for the fonts",
    )
}

_VERSION = 1


def synth_digits(
    train: int = 7438, test: int = 5000, fonts: str = "matplotlib", seed: int = 0
) -> Federation:
    """Render one client, `synthdigits`.

    Args:
        train: Images to train on.
        test: Images to test on.
        fonts: `matplotlib`, `system` or a folder of font files.
        seed: Decides the images.
    """
    arrays, remark = rendered(train, test, fonts, seed)
    parts = {
        part: Split(torch.from_numpy(arrays[f"{part}_x"]), torch.from_numpy(arrays[f"{part}_y"]))
        for part in ("train", "test")
    }
    client = Client("synthdigits", "synthdigits", parts["train"], {"synthdigits": parts["test"]})
    return Federation("synth_digits", (client,), tuple("0123456789"), (remark,))


def rendered(train: int, test: int, fonts: str, seed: int) -> tuple[Arrays, str]:
    """Render training and test images, or take them from the cache, and say what they are."""
    for name, count in (("train", train), ("test", test)):
        if count < 1:
            raise ConfigError(f"data.{name} = {count}: legal are whole numbers from 1")
    drawn = load_fonts(fonts)
    hashes = font_hashes(drawn)
    key = {
        "version": _VERSION,
        "pillow": version("pillow"),
        "numpy": version("numpy"),
        "fonts": hashes,
        "look": repr(Look()),
        "sizes": [train, test],
        "seed": seed,
    }
    arrays = cached(
        "synth_digits", key, lambda: _arrays({"train": train, "test": test}, drawn, seed)
    )
    return arrays, _remark(hashes)


def _arrays(sizes: dict[str, int], fonts: list[Font], seed: int) -> Arrays:
    arrays: Arrays = {}
    for part, size in sizes.items():
        own = number(seed, "synth_digits", client=part)
        arrays[f"{part}_x"], arrays[f"{part}_y"] = render(size, (own,), fonts)
    return arrays


def _remark(hashes: dict[str, str]) -> str:
    """Say that the digits are rendered, with one hash over those of all fonts."""
    whole = hashlib.sha256("".join(sorted(hashes.values())).encode()).hexdigest()
    return (
        f"synthdigits is rendered from {len(hashes)} fonts (sha256 {whole[:12]}), not Ganin's files"
    )
