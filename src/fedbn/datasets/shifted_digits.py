"""Handwritten digits at five sites that differ in one controlled way: the data of the shift map.

The 1,797 real digits inside scikit-learn, 16×16, are dealt to five sites; then one dial is turned.

| dial | what differs at strength s |
|---|---|
| contrast to resolution (`FEATURES`) | pictures of site k, 0 to 4, are changed to level s·k/4 |
| labels | a site holds 20 + 80·s per cent of two classes, and an equal part of the others |
| concept | one site calls 10·s of the classes by each other's names, each the next one's |
| samples | sites of five kinds keep 1 − 0.9·s of their training samples |
| clients | 5·s clients of each of the five kinds, each with a fifth of its training samples |
| participation | nothing: sites of five kinds; `training.participation` is what changes |

The five kinds are those of `KINDS`, each at level 0.6. Every original goes to one site and to one
of train and test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy import ndimage
from sklearn.datasets import load_digits
from torch.nn import functional

from fedbn.core.federation import Client, Federation
from fedbn.data.benchmarks import thinned
from fedbn.data.storage import Info
from fedbn.datasets.digits_mini import by_class, colour, patches, train_and_test
from fedbn.errors import ConfigError, unknown

INFO = {
    "shifted_digits": Info(
        title="scikit-learn's handwritten digits at five sites that differ in one way",
        clients="5 of 144",
        classes=10,
        shape="3×16×16",
        source="inside scikit-learn; no download",
        licence="BSD-3-Clause (scikit-learn), photographs CC BY",
    )
}

Pictures = NDArray[np.float32]
"""(n, side, side, 3), from 0 to 1; a dial may leave that range, and nothing is clipped."""
Dial = Callable[[Pictures, float, np.random.Generator], Pictures]
SITES, SIDE = 5, 16
_LEVEL, _TRAIN, _SEED = 0.6, 0.4, 2021


def _colour(x: Pictures, level: float, draws: np.random.Generator) -> Pictures:
    """From white to full colour, and once around the hues on the way."""
    return x * (1 - level + level * colour(np.array([level]))).astype(np.float32)


def _resolution(x: Pictures, level: float, draws: np.random.Generator) -> Pictures:
    side = round(SIDE - (SIDE - 3) * level)
    small = functional.interpolate(torch.from_numpy(x).permute(0, 3, 1, 2), side, mode="area")
    return functional.interpolate(small, SIDE, mode="bilinear").permute(0, 2, 3, 1).numpy()


FEATURES: dict[str, Dial] = {
    "contrast": lambda x, level, _: 0.5 + (x - 0.5) * (1 - 0.95 * level),
    "brightness": lambda x, level, _: x + 2 * level,
    "blur": lambda x, level, _: ndimage.gaussian_filter(x, (0, 3 * level, 3 * level, 0)),
    "noise": lambda x, level, draws: x + level * draws.normal(size=x.shape).astype(np.float32),
    "colour": _colour,
    "background": lambda x, level, draws: np.abs(level * patches(len(x), SIDE, draws) - x),
    "rotation": lambda x, level, _: ndimage.rotate(x, 90 * level, (2, 1), reshape=False, order=1),
    "resolution": _resolution,
}
KINDS = ("contrast", "blur", "noise", "colour", "background")
DIALS = (*FEATURES, "labels", "concept", "samples", "clients", "participation")


def shifted_digits(
    dial: str = "contrast", strength: Annotated[float, Field(ge=0, le=1)] = 1.0
) -> Federation:
    """Make the sites; 16×16×3, one client each but for the dial `clients`.

    Args:
        dial: What differs between the sites.
        strength: How much, from 0 to 1.
    """
    if dial not in DIALS:
        raise ConfigError(f"data.dial: {unknown('dial', dial, DIALS)}")
    originals, labels = load_digits(return_X_y=True)
    strokes = ndimage.zoom(originals.reshape(-1, 8, 8) / 16, (1, 2, 2), order=1)
    pictures = np.repeat(strokes[..., None], 3, axis=-1).astype(np.float32)
    order = by_class(labels)
    home = _homes(labels[order], strength if dial == "labels" else 0.0)
    clients: list[Client] = []
    for site in range(SITES):
        mine, draws = order[home == site], np.random.default_rng([_SEED, site])
        name, change, level = f"site-{site}", FEATURES.get(dial), strength * site / (SITES - 1)
        if dial in ("samples", "clients", "participation"):
            name, change, level = KINDS[site], FEATURES[KINDS[site]], _LEVEL
        x, y = pictures[mine], labels[mine]
        if change is not None:
            x = change(x, level, draws)
        if dial == "concept" and site == SITES - 1:
            others = round(10 * strength)
            y = np.where(y < others, (y + 1) % max(1, others), y)
        clients += _clients(name, x, y, mine, dial, strength)
    return Federation("shifted_digits", tuple(clients), tuple("0123456789"))


def _homes(labels: NDArray[np.int64], skew: float) -> NDArray[np.int64]:
    """Which site each original goes to, given their classes in order: by turns, or its owner's."""
    home = np.arange(len(labels)) % SITES
    if skew:
        for label in range(10):
            places = np.flatnonzero(labels == label)
            share = np.full(SITES, (1 - skew) / SITES)
            share[label * SITES // 10] += skew
            cuts = np.rint(np.cumsum(share)[:-1] * len(places)).astype(int)
            for site, part in enumerate(np.split(places, cuts)):
                home[part] = site
    return home


def _clients(
    name: str,
    x: Pictures,
    y: NDArray[np.int64],
    rows: NDArray[np.int64],
    dial: str,
    strength: float,
) -> list[Client]:
    train, test = train_and_test(x, y, _TRAIN, rows)
    if dial == "clients":
        parts = [train.take(torch.arange(i, len(train), SITES)) for i in range(SITES)]
        several = parts[: max(1, round(SITES * strength))]
        return [Client(f"{name}-{i}", name, part, {name: test}) for i, part in enumerate(several)]
    kept = round(len(train) * (1 - 0.9 * strength)) if dial == "samples" else None
    return [Client(name, name, thinned(train, kept), {name: test})]
