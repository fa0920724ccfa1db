"""Morpho-MNIST: the two clients from unseen domains of the paper's appendix.

`morpho-global` has MNIST digits made thinner or thicker, `morpho-local` digits with a swelling or
with fractures, half and half (Castro et al. 2019). They are made here from the MNIST files of the
data set `digits`: its training samples for training, its test samples for testing.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import number
from fedbn.data._cache import Arrays, cached, fingerprint
from fedbn.data._digit_domains import DigitsInfo, needed_source
from fedbn.data._digit_parts import colour28, prepared
from fedbn.data._morphology import Change, Strength, changed, fracture, swell, thicken, thin
from fedbn.errors import ConfigError

INFO = {
    "morpho_mnist": DigitsInfo(
        title="Morpho-MNIST: digits thinned and thickened, swollen and broken",
        clients="2 of 743",
        classes=10,
        shape="3×28×28",
        source="made here from MNIST in FEDBN_DATA/digits",
        licence="as MNIST: CC BY-SA 3.0",
        files=("digits/*",),
        module="skimage",
        extra="morpho",
        domains=("mnist",),
    )
}

CHANGES: dict[str, tuple[Change, Change]] = {
    "morpho-global": (thin, thicken),
    "morpho-local": (swell, fracture),
}
_REMARK = "made by fedbn from MNIST after Castro et al. 2019, not their files"
_VERSION = 1


def morpho_mnist(
    train: int = 743,
    test: int | None = None,
    thinning: float = 0.7,
    thickening: float = 1.0,
    swelling: float = 3.0,
    fractures: int = 3,
    seed: int = 0,
) -> Federation:
    """Make both clients; they show the same originals.

    Args:
        train: Training samples of a client, of the 7,438 of MNIST.
        test: Test samples of a client; all by default.
        thinning: The part of a stroke's half width that thinning takes off.
        thickening: The part of it that thickening adds.
        swelling: The exponent of the swelling; 1 changes nothing.
        fractures: How many cuts a broken digit has.
        seed: Decides which digit is changed how.
    """
    _check(train, test, thinning, thickening, swelling, fractures)
    strength = Strength(thinning, thickening, swelling, fractures)
    source = needed_source("mnist")
    key = {
        "version": _VERSION,
        "mnist": fingerprint(source.files),
        "sizes": [train, test],
        "strength": asdict(strength),
        "seed": seed,
    }
    arrays = cached(
        "morpho_mnist", key, lambda: _arrays(prepared(source, 0), train, test, strength, seed)
    )
    clients = tuple(_client(name, arrays) for name in CHANGES)
    return Federation("morpho_mnist", clients, tuple("0123456789"), (_REMARK,))


def change_images(
    images: NDArray[np.uint8],
    changes: tuple[Change, ...],
    strength: Strength,
    draws: np.random.Generator,
) -> NDArray[np.uint8]:
    """Change every digit (n, height, width) in one of several ways, equally often."""
    ways = draws.permutation(np.arange(len(images)) % len(changes))
    made = np.empty_like(images)
    for image, way, target in zip(images, ways, made, strict=True):
        target[:] = changed(image, changes[way], strength, draws)
    return made


def _arrays(mnist: Arrays, train: int, test: int | None, strength: Strength, seed: int) -> Arrays:
    arrays: Arrays = {}
    for part, size in (("train", train), ("test", test)):
        arrays[f"{part}_y"] = mnist[f"{part}_y"][:size]
        for name, changes in CHANGES.items():
            draws = np.random.default_rng(number(seed, f"morpho {part}", client=name))
            made = change_images(mnist[f"{part}_x"][:size, 0], changes, strength, draws)
            arrays[f"{name}_{part}_x"] = colour28(made)
    return arrays


def _client(name: str, arrays: Arrays) -> Client:
    train, test = (
        Split(torch.from_numpy(arrays[f"{name}_{part}_x"]), torch.from_numpy(arrays[f"{part}_y"]))
        for part in ("train", "test")
    )
    return Client(name, name, train, {name: test})


def _check(
    train: int,
    test: int | None,
    thinning: float,
    thickening: float,
    swelling: float,
    fractures: int,
) -> None:
    for name, size in (("train", train), ("test", test)):
        if size is not None and size < 1:
            raise ConfigError(f"data.{name} = {size}: legal are whole numbers from 1")
    if not 0 <= thinning <= 1:
        raise ConfigError(f"data.thinning = {thinning}: legal are 0 to 1")
    if not (math.isfinite(thickening) and thickening >= 0):
        raise ConfigError(f"data.thickening = {thickening}: legal are numbers from 0")
    if not (math.isfinite(swelling) and swelling >= 1):
        raise ConfigError(f"data.swelling = {swelling}: legal are numbers from 1")
    if not 0 <= fractures <= 100:
        raise ConfigError(f"data.fractures = {fractures}: legal are 0 to 100")
