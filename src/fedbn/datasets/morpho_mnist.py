"""Morpho-MNIST: the two clients from unseen domains of the paper's appendix (Castro et al. 2019).

`morpho-global` has MNIST digits made thinner or thicker, `morpho-local` digits with a swelling or
with fractures, half and half. They are made here from the MNIST files of the data set `digits`: its
training samples for training, its test samples for testing. A digit is enlarged and thresholded,
its skeleton and the distance of every pixel to the stroke's edge are measured, the shape is changed
relative to the stroke's own thickness, and the result is brought back to its size; scikit-image
gives the skeleton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from scipy import ndimage

from fedbn.core.federation import Federation
from fedbn.core.randomness import derive_seed
from fedbn.data.benchmarks import Count
from fedbn.data.digit_domains import DigitsInfo, client_of, colour28, needed_source, prepared
from fedbn.data.storage import Arrays, cached, fingerprint
from fedbn.errors import ConfigError

SCALE = 4
_CUT = 1.5 * SCALE
_FREE = 2 * SCALE
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Shape:
    """A digit, enlarged four times: its grey values, and where its stroke is.

    `depth` is the distance of every pixel of the stroke to its edge, `skeleton` the stroke's middle
    line, one pixel wide, and `thickness` its mean width.
    """

    grey: NDArray[np.float32]
    inside: Mask
    depth: NDArray[np.float64]
    skeleton: Mask
    thickness: float


ShapeChange = Callable[[Shape, np.random.Generator], Mask]


def measure(image: NDArray[np.uint8]) -> Shape:
    """Enlarge and measure a digit, light on dark."""
    size = (image.shape[1] * SCALE, image.shape[0] * SCALE)
    enlarged = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
    grey = np.asarray(enlarged, np.float32) / np.float32(255)
    inside = grey > 0.5
    depth = ndimage.distance_transform_edt(inside)
    skeleton = _skeleton(inside)
    thickness = 2 * float(depth[skeleton].mean()) if skeleton.any() else 0.0
    return Shape(grey, inside, depth, skeleton, thickness)


def changed_digit(
    image: NDArray[np.uint8], change: ShapeChange, draws: np.random.Generator
) -> NDArray[np.uint8]:
    """Change a digit's shape; an image without a stroke stays as it is."""
    shape = measure(image)
    if not shape.skeleton.any():
        return image
    return np.asarray(Image.fromarray(change(shape, draws).astype(np.uint8) * 255).reduce(SCALE))


def thin(shape: Shape, draws: np.random.Generator, thinning: float) -> Mask:
    """Take off a part of the mean half width; a finer stroke keeps its middle line."""
    core = ndimage.binary_dilation(shape.skeleton) & shape.inside
    return np.asarray((shape.depth > thinning * shape.thickness / 2) | core)


def thicken(shape: Shape, draws: np.random.Generator, thickening: float) -> Mask:
    """Add a part of the mean half width on every side."""
    away = ndimage.distance_transform_edt(~shape.inside)
    return np.asarray(away <= thickening * shape.thickness / 2)


def swell(shape: Shape, draws: np.random.Generator, swelling: float) -> Mask:
    """Blow the stroke up around a point of its middle line: radius r shows R (r/R)^swelling.

    R is twice the stroke's width, and at least four pixels of the image.
    """
    centre = np.argwhere(shape.skeleton)[draws.integers(shape.skeleton.sum())]
    reach = max(2 * shape.thickness, 4.0 * SCALE)
    place = np.indices(shape.grey.shape, np.float64) - centre[:, None, None]
    radius = np.hypot(*place) / reach
    near = (radius < 1) & (radius > 0)
    source = centre[:, None] + place[:, near] * radius[near] ** (swelling - 1)
    swollen = shape.inside.copy()
    swollen[near] = ndimage.map_coordinates(shape.grey, source, order=1) > 0.5
    return swollen


def fracture(shape: Shape, draws: np.random.Generator, fractures: int) -> Mask:
    """Cut through the stroke, at right angles to its middle line, away from ends and forks."""
    broken = shape.inside.copy()
    line = np.argwhere(shape.skeleton)
    free = np.argwhere(shape.skeleton & _plain(shape.skeleton))
    candidates = free if len(free) else line
    for _ in range(fractures):
        centre = candidates[draws.integers(len(candidates))]
        near = line[np.abs(line - centre).max(axis=1) <= _FREE] - centre
        along = np.linalg.eigh(near.T @ near)[1][:, -1]  # the middle line's principal axis here
        place = np.indices(broken.shape, np.float64) - centre[:, None, None]
        run = np.abs(place[0] * along[0] + place[1] * along[1])
        side = np.abs(place[1] * along[0] - place[0] * along[1])
        width = shape.depth[tuple(centre)] + SCALE / 2
        broken &= (run > _CUT / 2) | (side > width)
    return broken


def _plain(skeleton: Mask) -> Mask:
    """Pixels away from the ends and forks of a skeleton: those have not two neighbours."""
    neighbours = ndimage.convolve(skeleton.astype(np.uint8), np.ones((3, 3), np.uint8)) - 1
    special = skeleton & (neighbours != 2)
    if not special.any():
        return np.ones_like(skeleton)
    return np.asarray(ndimage.distance_transform_edt(~special) > _FREE)


def _skeleton(inside: Mask) -> Mask:
    try:
        from skimage import morphology
    except ImportError as error:
        raise ConfigError(
            "data 'morpho_mnist' needs scikit-image: pip install fedbn[morpho]"
        ) from error
    skeletonize: Callable[[Mask], Mask] = morphology.skeletonize
    return skeletonize(inside)


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
_REMARK = "made by fedbn from MNIST after Castro et al. 2019, not their files"
_VERSION = 2


def morpho_mnist(
    train: Count = 743,
    test: Count | None = None,
    thinning: Annotated[float, Field(ge=0, le=1)] = 0.7,
    thickening: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    swelling: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3.0,
    fractures: Annotated[int, Field(ge=0, le=100)] = 3,
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
    wider, finer = partial(thicken, thickening=thickening), partial(thin, thinning=thinning)
    blown, broken = partial(swell, swelling=swelling), partial(fracture, fractures=fractures)
    changes = {"morpho-global": (finer, wider), "morpho-local": (blown, broken)}
    source = needed_source("mnist")
    strength = [thinning, thickening, swelling, fractures]
    how = {"version": _VERSION, "sizes": [train, test], "strength": strength, "seed": seed}

    def make() -> Arrays:
        mnist, arrays = prepared(source, 0), {}
        for part, size in (("train", train), ("test", test)):
            for what in ("y", "rows"):
                arrays[f"{part}_{what}"] = mnist[f"{part}_{what}"][:size]
            for name, ways in changes.items():
                draws = np.random.default_rng(derive_seed(seed, f"morpho {part}", client=name))
                made = change_images(mnist[f"{part}_x"][:size, 0], ways, draws)
                arrays[f"{name}_{part}_x"] = colour28(made)
        return arrays

    arrays = cached("morpho_mnist", {**how, "mnist": fingerprint(source.files)}, make)
    clients = tuple(client_of(arrays, name, f"{name}_") for name in changes)
    return Federation("morpho_mnist", clients, tuple("0123456789"), (_REMARK,))


def change_images(
    images: NDArray[np.uint8], changes: Sequence[ShapeChange], draws: np.random.Generator
) -> NDArray[np.uint8]:
    """Change every digit (n, height, width) in one of several ways, equally often."""
    ways = draws.permutation(np.arange(len(images)) % len(changes))
    made = np.empty_like(images)
    for image, way, target in zip(images, ways, made, strict=True):
        target[:] = changed_digit(image, changes[way], draws)
    return made
