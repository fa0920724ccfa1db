"""Labelled picture files: listed by class, divided, and only then read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedbn.core.federation import Augment, Client, Split
from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.data._cache import cached, fingerprint
from fedbn.data._files import shown
from fedbn.data._images import DEPTH, check_depth, pictures_below, read_pictures
from fedbn.data._info import data_root
from fedbn.errors import ConfigError, DataError

_VERSION = 2
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


@dataclass(frozen=True)
class Reading:
    """How pictures become samples.

    Attributes:
        size: Side in pixels.
        depth: The 16-bit value that becomes 1.
        keep: The data set whose cache keeps the pixels; None keeps none.
    """

    size: int
    depth: int = DEPTH
    keep: str | None = None

    def __post_init__(self) -> None:
        if not 4 <= self.size <= 2048:
            raise ConfigError(f"data.size = {self.size}: legal are 4 to 2048 pixels")
        check_depth(self.depth)

    def client(
        self, site: str, parts: Sequence[PictureSet], augment: Augment | None = None
    ) -> Client:
        """Read a site's training and test pictures, and those for validation if there are some."""
        train, test, *valid = (Split(self._pixels(part.files), part.labels) for part in parts)
        train = replace(train, augment=augment)
        return Client(site, site, train, {site: test}, valid[0] if valid else None)

    def _pixels(self, files: Sequence[Path]) -> Tensor:
        if self.keep is None:
            return read_pictures(files, self.size, self.depth)
        depends_on = {"pixels": _VERSION, "size": self.size, "depth": self.depth}
        made = cached(
            self.keep,
            {**depends_on, "files": fingerprint(files)},
            lambda: {"x": read_pictures(files, self.size, self.depth).numpy()},
        )
        return torch.from_numpy(made["x"])


def of_one_type(clients: Sequence[Client]) -> tuple[Client, ...]:
    """Give all clients floats where one has them, because of its 16-bit pictures."""

    def changed(split: Split) -> Split:
        return replace(split, x=split.batch(slice(None))[0])

    if not any(part.x.is_floating_point() for client in clients for part in client.splits):
        return tuple(clients)
    return tuple(client.change(changed) for client in clients)


def check_folder(folder: Path, wanted: str) -> None:
    """Refuse a path that is not a folder, saying what should be there."""
    if not folder.is_dir():
        hint = (
            f"; `fedbn data prepare {folder.name}` says how to get it, FEDBN_DATA names the folder "
            "above"
        )
        ours = folder.parent == data_root()
        raise DataError(f"{shown(folder)}: no such folder; expected {wanted}{hint if ours else ''}")
