"""Labelled picture files: listed by class, divided, and only then read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedbn.core.federation import Augment, Client, Split
from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.data._cache import cached, fingerprint
from fedbn.data._files import shown
from fedbn.data._images import pictures_below, read_pictures
from fedbn.errors import ConfigError, DataError

_VERSION = 1
"""Part of the cache's key: to be raised when the same files give other pixels."""


@dataclass(frozen=True)
class PictureSet:
    """Files and the label of each."""

    files: tuple[Path, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor) -> PictureSet:
        """Keep some."""
        return PictureSet(tuple(self.files[i] for i in index.tolist()), self.labels[index])


@dataclass(frozen=True)
class Division:
    """How a site's pictures are divided, always in the same way for the same seed.

    Attributes:
        test_share: The stratified part held out for testing.
        seed: Decides which.
        per_client: Keep so many training pictures, stratified too, or all.
    """

    test_share: float
    seed: int
    per_client: int | Literal["all"] = "all"

    def __post_init__(self) -> None:
        check_share(self.test_share)
        if isinstance(self.per_client, int) and self.per_client >= 2:
            return
        if self.per_client != "all":
            raise ConfigError(f"data.per_client = {self.per_client!r}: legal are 2 and more, 'all'")

    def divide(self, pictures: PictureSet, site: str) -> tuple[PictureSet, PictureSet]:
        """Divide a site's pictures in train and test."""
        draws = generator(self.seed, "test split", client=site)
        rest, held = stratified(pictures.labels, self.test_share, draws)
        return self._some(pictures.take(rest), site), pictures.take(held)

    def _some(self, train: PictureSet, site: str) -> PictureSet:
        if self.per_client == "all":
            return train
        if self.per_client > len(train):
            raise DataError(
                f"site {site}: {len(train)} training pictures, but data.per_client asks for "
                f"{self.per_client}; legal are 2 to {len(train)}, 'all'"
            )
        draws = generator(self.seed, "training pictures", client=site)
        _, chosen = stratified(train.labels, self.per_client / len(train), draws)
        return train.take(chosen)


def check_share(share: float) -> None:
    """Refuse a test share that leaves one side empty."""
    if not 0 < share < 1:
        raise ConfigError(f"data.test_share = {share}: legal are numbers between 0 and 1")


def listed(folders: Mapping[str, Sequence[Path]], classes: Sequence[str]) -> PictureSet:
    """List the pictures below the folders of each class, in the order of the classes."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = [file for folder in folders.get(name, ()) for file in pictures_below(folder)]
        files += found
        labels += [label] * len(found)
    return PictureSet(tuple(files), torch.tensor(labels, dtype=torch.int64))


def read_split(
    pictures: PictureSet, size: int, augment: Augment | None = None, keep: str | None = None
) -> Split:
    """Read the pictures of a split; `keep` names the data set whose cache keeps the pixels."""
    if keep is None:
        return Split(read_pictures(pictures.files, size), pictures.labels, augment)
    depends_on = {"pixels": _VERSION, "size": size, "files": fingerprint(pictures.files)}
    made = cached(keep, depends_on, lambda: {"x": read_pictures(pictures.files, size).numpy()})
    return Split(torch.from_numpy(made["x"]), pictures.labels, augment)


def read_client(
    site: str,
    parts: tuple[PictureSet, PictureSet],
    size: int,
    augment: Augment | None = None,
    keep: str | None = None,
) -> Client:
    """Read a site's training and test pictures."""
    train, test = (
        read_split(part, size, change, keep)
        for part, change in zip(parts, (augment, None), strict=True)
    )
    return Client(site, site, train, {site: test})


def check_size(size: int) -> None:
    """Refuse a side in pixels that no model could take."""
    if not 4 <= size <= 2048:
        raise ConfigError(f"data.size = {size}: legal are 4 to 2048 pixels")


def check_folder(folder: Path, wanted: str) -> None:
    """Refuse a path that is not a folder, saying what should be there."""
    if not folder.is_dir():
        raise DataError(f"{shown(folder)}: no such folder; expected {wanted}")
