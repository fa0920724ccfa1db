"""What data sets of domains have in common: their options, folders of pictures, shares of samples.

Ranges of options stand in the signature of a data set, where they are checked before it is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from fedbn.core.federation import AnySplit, Client
from fedbn.data import image_folders
from fedbn.data.storage import Info, check_distinct, subfolders
from fedbn.errors import ConfigError, DataError, unknown
from fedbn.text import shown

TestShare = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
_TENTHS = 10
ClientsPerDomain = Annotated[int, Field(ge=1, le=_TENTHS)]


def check_tenths(percent: int, clients: int) -> None:
    """Refuse shares that several clients of a domain cannot have."""
    if clients > 1 and percent != 10:
        raise ConfigError(
            f"data.percent = {percent} with data.clients_per_domain = {clients}: several clients "
            "have a tenth each; set percent to 10, or leave clients_per_domain at 1"
        )


def checked_domains(asked: Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """Check `data.domains`: one or more known ones, each once; all of them unless given.

    Examples:
        >>> checked_domains(None, ["a", "b"]), checked_domains(["b"], ["a", "b"])
        (('a', 'b'), ('b',))
    """
    legal = tuple(known)
    chosen = legal if asked is None else tuple(asked)
    for domain in chosen:
        if domain not in legal:
            raise ConfigError(f"data.domains: {unknown('domain', domain, legal)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"data.domains = {list(chosen)}: legal are one or more of {', '.join(legal)}, each once"
        )
    return chosen


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's domains and classes in the paper's order, one client a domain.

    `aliases` are other names of folders, each with the domain or class it means.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    aliases: Mapping[str, str]

    def pictures(self, root: Path) -> dict[str, image_folders.PictureSet]:
        """List all pictures of the wanted classes below a folder, by domain."""
        image_folders.check_folder(root, f"the folders {', '.join(self.domains)}")
        homes = self._found(root, self.domains)
        check_distinct([home for domain in self.domains for home in homes[domain]])
        return {domain: self._pictures(homes[domain]) for domain in self.domains}

    def places(self, folder: Path) -> dict[Path, Path]:
        """Recognise pictures in a folder or right below: where below the data root each goes."""
        refusals = []
        for place in (folder, *subfolders(folder)):
            try:
                sets = self.pictures(place)
            except DataError as error:
                refusals.append(error)
                continue
            files = [file for pictures in sets.values() for file in pictures.files]
            return {file: Path(self.name, file.relative_to(place)) for file in files}
        raise refusals[0]

    def _pictures(self, homes: Sequence[Path]) -> image_folders.PictureSet:
        # Office-31 keeps the classes of a domain one folder deeper, in `images`.
        deeper = [home / "images" if (home / "images").is_dir() else home for home in homes]
        folders: dict[str, list[Path]] = {}
        for home in deeper:
            for name, found in self._found(home, self.classes).items():
                folders.setdefault(name, []).extend(found)
        return image_folders.listed(folders, self.classes)

    def _found(self, root: Path, wanted: Sequence[str]) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for folder in subfolders(root):
            plain = plain_name(folder.name)
            meant = self.aliases.get(plain, plain)
            if meant in wanted:
                found.setdefault(meant, []).append(folder)
        if missing := [name for name in wanted if name not in found]:
            there = ", ".join(shown(folder.name) for folder in subfolders(root)[:40])
            raise DataError(
                f"{shown(root)}: no folder {', '.join(missing)}; it has {there or 'no folders'}"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class PicturesInfo(Info):
    """Facts about a benchmark of pictures."""

    benchmark: Benchmark


def plain_name(folder: str) -> str:
    """Bring a folder's name to one spelling.

    Examples:
        >>> plain_name("045.computer-keyboard"), plain_name("127.laptop-101")
        ('computer_keyboard', 'laptop')
    """
    name = re.sub(r"^\d+\.", "", folder.lower())
    return re.sub(r"[\s_-]+", "_", re.sub(r"-101$", "", name)).strip("_")


def checked_sizes(
    sizes: list[int] | None, lengths: Mapping[str, int], clients: int
) -> dict[str, int]:
    """Give each domain the number of training samples asked for; empty where none is."""
    if sizes is None:
        return {}
    if len(sizes) != len(lengths) or clients > 1:
        raise ConfigError(
            f"data.sizes = {sizes}: legal is one number a domain ({', '.join(lengths)}), and "
            "clients_per_domain = 1"
        )
    found = dict(zip(lengths, sizes, strict=True))
    for domain, size in found.items():
        if not 2 <= size <= lengths[domain]:
            raise ConfigError(
                f"data.sizes = {sizes}: {domain} has {lengths[domain]} training samples; "
                f"legal are 2 to {lengths[domain]}"
            )
    return found


def thinned(split: AnySplit, count: int | None) -> AnySplit:
    """Keep so many samples, evenly spread, so that what lies class by class keeps all classes."""
    if count is None or count >= len(split):
        return split
    return split.take(torch.arange(count) * len(split) // count)


def tenths(whole: Client, clients: int) -> list[Client]:
    """Make clients of one domain with a tenth of its samples each, scored on the same test set.

    The first has the same tenth, however many there are.
    """
    return [
        replace(
            whole,
            name=whole.name if clients == 1 else f"{whole.name}-{number + 1}",
            train=whole.train.take(torch.arange(number, len(whole.train), _TENTHS)),
        )
        for number in range(clients)
    ]
