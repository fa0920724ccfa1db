"""One digit data set at a time: the original files, or a stand-in that says what it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedbn.core.randomness import generator, number
from fedbn.data._cache import Arrays, cached, fingerprint
from fedbn.data._digit_files import DOMAINS, Source, describe_forms, find_source
from fedbn.data._digit_parts import TRAIN_SIZE, colour28, divided, interleaved, prepared
from fedbn.data._info import Info, data_root
from fedbn.data._photographs import blended, photograph_files, read_photograph
from fedbn.data.synth_digits import rendered
from fedbn.errors import DataError

Synth = Literal["auto", "original", "rendered"]
MnistM = Literal["auto", "original", "made"]

_RENDERED_TEST = 5000
_VERSION = 1


class Loaded(NamedTuple):
    """A domain's arrays, what must be said of them, and whether they stand in for the original."""

    arrays: Arrays
    remark: str | None
    stand_in: bool = False


@dataclass(frozen=True)
class DigitsInfo(Info):
    """Facts about a data set that is made of digit files, in whichever form those are there.

    Attributes:
        domains: The domains it needs; SynthDigits can be rendered, MNIST-M made.
    """

    domains: tuple[str, ...] = DOMAINS

    def is_there(self, root: Path | None = None) -> bool:
        """Tell whether every domain is there or can be made."""
        folder = root / "digits" if root else digits_folder()
        try:
            there = {domain for domain in DOMAINS if find_source(folder, domain)}
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
    return _made(folder, seed, whole)


def needed_source(domain: str) -> Source:
    """Find a domain's files, or say which would do."""
    source = find_source(digits_folder(), domain)
    if source is None:
        raise DataError(
            f"{digits_folder()}: no {domain}: expected {describe_forms(domain)}; "
            "`fedbn data prepare digits` gets it, FEDBN_DATA names the folder above"
        )
    return source


def _made(folder: Path, seed: int, whole: bool) -> Loaded:
    mnist, files = needed_source("mnist"), photograph_files(folder)
    key = {
        "version": _VERSION,
        "mnist": fingerprint(mnist.files),
        "photographs": fingerprint(files),
        "seed": seed,
        "whole": whole,
    }
    arrays = cached("mnist_m", key, lambda: _blend(mnist, files, seed, whole))
    remark = f"mnist_m is made from MNIST and {len(files)} photographs, not Ganin's files"
    return Loaded(arrays, remark, stand_in=True)


def _blend(mnist: Source, files: list[Path], seed: int, whole: bool) -> Arrays:
    """Blend in another order than MNIST's own; an original stays in training or test."""
    photographs = [read_photograph(file) for file in files]
    arrays: Arrays = {}
    for part, (images, labels) in zip(("train", "test"), divided(mnist, seed), strict=True):
        order = interleaved(torch.from_numpy(labels), generator(seed, "mnist_m", client=part))
        chosen = order.numpy()[: TRAIN_SIZE if part == "train" and not whole else None]
        draws = np.random.default_rng(number(seed, "mnist_m patches", client=part))
        arrays[f"{part}_x"] = colour28(blended(images[chosen], photographs, draws))
        arrays[f"{part}_y"] = labels[chosen]
    return arrays
