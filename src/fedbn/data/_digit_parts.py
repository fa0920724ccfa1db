"""The paper's protocol for one digit data set: divide, shuffle, truncate, bring to 3×28×28."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.data._cache import Arrays, cached, fingerprint
from fedbn.data._digit_files import Source
from fedbn.data._digit_forms import Samples

TRAIN_SIZE = 7438
"""Training samples of the smallest domain: four fifths of USPS."""

SIDE = 28
_TEST_SHARE = 0.2
_VERSION = 1


def prepared(source: Source, seed: int, whole: bool = False) -> Arrays:
    """Return a domain's `train_x`, `train_y`, `test_x`, `test_y`, from the cache if possible.

    Args:
        source: The domain's files.
        seed: Decides the split of pooled files and the order within it.
        whole: Keep all training samples, not the first 7,438.
    """
    key = {
        "version": _VERSION,
        "domain": source.domain,
        "files": fingerprint(source.files),
        "seed": seed,
        "whole": whole,
    }
    limit = None if whole else TRAIN_SIZE
    return cached("digits", key, lambda: _arrays(*divided(source, seed, limit)))


def divided(source: Source, seed: int, limit: int | None = None) -> tuple[Samples, Samples]:
    """Read a domain's training and test part: as they are in an npz, else divided 80 to 20.

    Args:
        source: The domain's files.
        seed: Decides the division.
        limit: Keep the first so many training samples.
    """
    parts = source.parts()
    if source.split:
        images, labels = parts[0]
        return (images[:limit], labels[:limit]), parts[1]
    images, labels = parts[0]
    draws = generator(seed, "digits split", client=source.domain)
    wanted = torch.from_numpy(labels)
    train, test = (
        index[interleaved(wanted[index], draws)].numpy()
        for index in stratified(wanted, _TEST_SHARE, draws)
    )
    return (images[train[:limit]], labels[train[:limit]]), (images[test], labels[test])


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
    small = flat if flat.shape[1:3] == (SIDE, SIDE) else _resized(flat)
    planes = small[:, None] if small.ndim == 3 else np.moveaxis(small, 3, 1)
    return np.ascontiguousarray(np.broadcast_to(planes, (len(planes), 3, SIDE, SIDE)))


def _resized(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    small = np.empty((len(images), SIDE, SIDE, *images.shape[3:]), np.uint8)
    for image, target in zip(images, small, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(image))
        target[:] = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return small


def _arrays(train: Samples, test: Samples) -> Arrays:
    return {
        "train_x": colour28(train[0]),
        "train_y": train[1],
        "test_x": colour28(test[0]),
        "test_y": test[1],
    }
