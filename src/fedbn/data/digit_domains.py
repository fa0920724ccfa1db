"""One digit domain: the paper's protocol (section 5.1) on the original files, or on a stand-in.

A data set is divided, shuffled, truncated and brought to 3×28×28. A stand-in says what it is:
SynthDigits rendered here, or MNIST-M made of MNIST digits over patches of photographs, as Ganin et
al. (2016) did with those of BSDS500; any folder of photographs will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedbn.core.federation import Client, Origin, Split
from fedbn.core.randomness import derive_seed, generator, stratified
from fedbn.data.digit_files import DIGIT_DOMAINS, DigitSource, describe_forms, find_source
from fedbn.data.digit_rendering import SIDE, rendered
from fedbn.data.images import PICTURE_SUFFIXES, is_picture, opened, watched
from fedbn.data.storage import Arrays, Info, cached, data_root, fingerprint
from fedbn.errors import DataError

TRAIN_SIZE = 7438
"""Training samples of the smallest domain: four fifths of USPS."""
_TEST_SHARE = 0.2
_PARTS_VERSION = 2


class Part(NamedTuple):
    """Samples for training or for testing, and their numbers in the files that they come from."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]


def prepared(source: DigitSource, seed: int, whole: bool = False) -> Arrays:
    """Return `train_x`, `train_y`, `train_rows` of a domain and the same for `test`.

    They come from the cache if possible. The seed decides the split of pooled files and the order
    within it.
    """
    how = {"version": _PARTS_VERSION, "domain": source.domain, "seed": seed, "whole": whole}

    def make() -> Arrays:
        parts = train_and_test(source, seed, None if whole else TRAIN_SIZE)
        named = dict(zip(("train", "test"), parts, strict=True))
        images = {f"{name}_x": colour28(part.images) for name, part in named.items()}
        labels = {f"{name}_y": part.labels for name, part in named.items()}
        return images | labels | {f"{name}_rows": part.rows for name, part in named.items()}

    return cached("digits", {**how, "files": fingerprint(source.files)}, make)


def split_of(arrays: Arrays, part: str, cut: slice = slice(None), x: str = "") -> Split:
    """Take `train` or `test` of prepared arrays, or some of it; images may be another's, `x`."""
    images, labels = arrays[x or f"{part}_x"], arrays[f"{part}_y"]
    rows = arrays.get(f"{part}_rows")
    places = torch.arange(len(labels)) if rows is None else torch.from_numpy(rows)
    origin = Origin(places[cut])
    return Split(torch.from_numpy(images)[cut], torch.from_numpy(labels)[cut], origin=origin)


def client_of(arrays: Arrays, name: str, of: str = "") -> Client:
    """Make a client of prepared arrays, whose images may be one of several domains'."""
    train, test = (split_of(arrays, part, x=f"{of}{part}_x") for part in ("train", "test"))
    return Client(name, name, train, {name: test})


def train_and_test(source: DigitSource, seed: int, limit: int | None = None) -> tuple[Part, Part]:
    """Read a domain's training and test part: as they are in an npz, else divided 80 to 20."""
    (images, labels), *test_part = source.parts()
    if test_part:
        held, named = test_part[0]
        first = Part(images[:limit], labels[:limit], np.arange(len(labels))[:limit])
        return first, Part(held, named, np.arange(len(named)))
    draws = generator(seed, "digits split", client=source.domain)
    wanted = torch.from_numpy(labels)
    train, test = (
        index[interleaved(wanted[index], draws)].numpy()
        for index in stratified(wanted, _TEST_SHARE, draws)
    )
    kept = train[:limit]
    return Part(images[kept], labels[kept], kept), Part(images[test], labels[test], test)


def interleaved(labels: Tensor, draws: torch.Generator) -> Tensor:
    """Order samples at random such that every stretch has all classes in equal proportion.

    The paper cuts a data set into ten parts "with the same label distribution".

    Examples:
        >>> labels = torch.tensor([0] * 6 + [1] * 3)
        >>> order = interleaved(labels, torch.Generator().manual_seed(0))
        >>> [sorted(part.tolist()) for part in labels[order].split(3)]
        [[0, 0, 1], [0, 0, 1], [0, 0, 1]]
    """
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        mine = (labels == label).nonzero().flatten()
        mine = mine[torch.randperm(len(mine), generator=draws)]
        shift = torch.rand(len(mine), generator=draws, dtype=torch.float64)
        place[mine] = (torch.arange(len(mine)) + shift) / len(mine)
    return place.argsort(stable=True)


def colour28(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bring images to (n, 3, 28, 28): resized bilinearly, grey repeated in three channels.

    Examples:
        >>> colour28(np.full((2, 16, 16), 7, np.uint8))[1, :, 0, 0].tolist()
        [7, 7, 7]
    """
    flat = images[..., 0] if images.shape[3:] == (1,) else images
    small = flat
    if flat.shape[1:3] != (SIDE, SIDE):
        small = np.empty((len(flat), SIDE, SIDE, *flat.shape[3:]), np.uint8)
        for image, target in zip(flat, small, strict=True):
            picture = Image.fromarray(np.ascontiguousarray(image))
            target[:] = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    planes = small[:, None] if small.ndim == 3 else np.moveaxis(small, 3, 1)
    return np.ascontiguousarray(np.broadcast_to(planes, (len(planes), 3, SIDE, SIDE)))


_MOST = 500
_LONGEST = 512


def photograph_files(folder: Path) -> list[Path]:
    """List the photographs below a folder: the first 500 by name."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of photographs")
    files = sorted(f for f in folder.rglob("*") if is_picture(f) and f.is_file())
    if not files:
        raise DataError(f"{folder}: no photograph; legal are {', '.join(sorted(PICTURE_SUFFIXES))}")
    return files[:_MOST]


def blended(
    digits: NDArray[np.uint8], photographs: list[NDArray[np.uint8]], draws: np.random.Generator
) -> NDArray[np.uint8]:
    """Blend digits (n, h, w) with random patches: |patch − digit| in each channel.

    Examples:
        >>> digit = np.array([[[0, 255]]], np.uint8)
        >>> grey = [np.full((4, 4, 3), 100, np.uint8)]
        >>> blended(digit, grey, np.random.default_rng(0))[0, 0, :, 0].tolist()
        [100, 155]
    """
    height, width = digits.shape[1:]
    made = np.empty((*digits.shape, 3), np.uint8)
    for digit, target in zip(digits, made, strict=True):
        photograph = photographs[draws.integers(len(photographs))]
        top = draws.integers(photograph.shape[0] - height + 1)
        left = draws.integers(photograph.shape[1] - width + 1)
        patch = photograph[top : top + height, left : left + width].astype(np.int16)
        target[:] = np.abs(patch - digit[..., None])
    return made


def read_photograph(file: Path) -> NDArray[np.uint8]:
    """Read a photograph in colour, shrunk to at most 512 pixels a side."""
    with watched(), opened(file) as image:
        image.draft("RGB", (_LONGEST, _LONGEST))
        colour = image.convert("RGB")
    colour.thumbnail((_LONGEST, _LONGEST))
    if min(colour.size) < SIDE:
        raise DataError(
            f"{file}: {colour.width}×{colour.height} pixels at 512 a side; "
            f"at least {SIDE}×{SIDE} are needed"
        )
    return np.asarray(colour)


Synth = Literal["auto", "original", "rendered"]
MnistM = Literal["auto", "original", "made"]
_RENDERED_TEST = 5000
_VERSION = 2


class Loaded(NamedTuple):
    """A domain's arrays, what must be said of them, and whether they stand in for the original."""

    arrays: Arrays
    remark: str | None
    stand_in: bool = False


@dataclass(frozen=True)
class DigitsInfo(Info):
    """Facts about a data set made of digit files; SynthDigits can be rendered, MNIST-M made."""

    domains: tuple[str, ...] = DIGIT_DOMAINS

    def is_there(self) -> bool:
        """Tell whether every domain is there or can be made."""
        folder = digits_folder()
        try:
            there = {domain for domain in DIGIT_DOMAINS if find_source(folder, domain)}
        except DataError:
            return False
        if "mnist" in there and (folder / "photographs").is_dir():
            there.add("mnist_m")
        return set(self.domains) <= there | {"synthdigits"}


def digits_folder() -> Path:
    """The folder for all files of the digit data sets."""
    return data_root() / "digits"


def original(domain: str, seed: int, whole: bool) -> Loaded:
    """Read a domain's original files."""
    source = needed_source(domain)
    remark = None
    if whole and source.split:
        remark = f"{domain} has the training samples of {source.files[0].name}, not all originals"
    return Loaded(prepared(source, seed, whole), remark)


def synth_digits_domain(how: Synth, seed: int, whole: bool, count: int, fonts: str) -> Loaded:
    """Read Ganin's SynthDigits, or render our own."""
    if how == "original" or (how == "auto" and find_source(digits_folder(), "synthdigits")):
        return original("synthdigits", seed, whole)
    return Loaded(*rendered(count, _RENDERED_TEST, fonts, seed), stand_in=True)


def mnist_m_domain(how: MnistM, seed: int, whole: bool, photographs: str | None) -> Loaded:
    """Read Ganin's MNIST-M, or make one from MNIST and a folder of photographs."""
    there = find_source(digits_folder(), "mnist_m")
    folder = Path(photographs) if photographs else digits_folder() / "photographs"
    if how == "original" or (there and how == "auto"):
        return original("mnist_m", seed, whole)
    if not folder.is_dir():
        raise DataError(
            f"{digits_folder()}: no mnist_m: expected {describe_forms('mnist_m')}; or, to make it "
            f"from MNIST, a folder of photographs at {folder} or as data.photographs"
        )
    mnist, files = needed_source("mnist"), photograph_files(folder)
    key = {"mnist": fingerprint(mnist.files), "photographs": fingerprint(files)}
    asked = {"version": _VERSION, "seed": seed, "whole": whole}

    def blend() -> Arrays:
        """Blend in another order than MNIST's own; an original stays in training or test."""
        read, arrays = [read_photograph(file) for file in files], {}
        divided = zip(("train", "test"), train_and_test(mnist, seed), strict=True)
        for part, (images, labels, rows) in divided:
            order = interleaved(torch.from_numpy(labels), generator(seed, "mnist_m", client=part))
            chosen = order.numpy()[: TRAIN_SIZE if part == "train" and not whole else None]
            draws = np.random.default_rng(derive_seed(seed, "mnist_m patches", client=part))
            arrays[f"{part}_x"] = colour28(blended(images[chosen], read, draws))
            arrays[f"{part}_y"] = labels[chosen]
            arrays[f"{part}_rows"] = rows[chosen]
        return arrays

    remark = f"mnist_m is made from MNIST and {len(files)} photographs, not Ganin's files"
    return Loaded(cached("mnist_m", {**key, **asked}, blend), remark, stand_in=True)


def twins() -> bool:
    """Tell whether MNIST and MNIST-M, the same digits twice, are divided here, each for itself."""
    sources = [find_source(digits_folder(), domain) for domain in ("mnist", "mnist_m")]
    return all(source is not None and not source.split for source in sources)


def needed_source(domain: str) -> DigitSource:
    """Find a domain's files, or say which would do."""
    if (source := find_source(digits_folder(), domain)) is None:
        raise DataError(
            f"{digits_folder()}: no {domain}: expected {describe_forms(domain)}; "
            "`fedbn data prepare digits` gets it, FEDBN_DATA names the folder above"
        )
    return source
