"""Benchmarks of pictures in domains: DOMAIN/CLASS/*.jpg, under the names their copies go by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedbn.core.federation import Federation
from fedbn.data._augment import FlipAndTurn
from fedbn.data._files import check_distinct, shown, subfolders
from fedbn.data._info import Info
from fedbn.data._picking import checked_domains
from fedbn.data._picture_sets import (
    Division,
    PictureSet,
    Reading,
    check_folder,
    listed,
    of_one_type,
)
from fedbn.errors import DataError


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's domains and classes, and what else their folders are called.

    Attributes:
        name: What the data set is called here.
        domains: In the paper's order; one client each.
        classes: In the order of their labels.
        aliases: Other names of folders, each with the domain or class it means.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    aliases: Mapping[str, str]

    def federation(
        self,
        root: Path,
        size: int,
        division: Division,
        augment: FlipAndTurn | None,
        domains: Sequence[str] | None = None,
    ) -> Federation:
        """Read the pictures below a folder, one client a domain; of all domains, or of some."""
        reading = Reading(size, keep=self.name)
        chosen = checked_domains(domains, self.domains)
        found = replace(self, domains=chosen).pictures(root)
        parts = {domain: division.divide(pictures, domain) for domain, pictures in found.items()}
        clients = of_one_type([reading.client(d, parts[d], augment) for d in chosen])
        told = {"aliases": dict(self.aliases)}
        return Federation(self.name, clients, self.classes, preparation=told)

    def pictures(self, root: Path) -> dict[str, PictureSet]:
        """List all pictures of the wanted classes below a folder, by domain.

        Raises:
            DataError: Naming the domains or classes that have no folder.
        """
        check_folder(root, f"the folders {', '.join(self.domains)}")
        homes = self._found(root, self.domains)
        check_distinct([home for domain in self.domains for home in homes[domain]])
        return {domain: self._pictures(homes[domain]) for domain in self.domains}

    def places(self, folder: Path) -> dict[Path, Path]:
        """Recognise the pictures in a folder or right below; other classes are left out.

        Returns:
            Where below the data root each goes.
        """
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

    def _pictures(self, homes: Sequence[Path]) -> PictureSet:
        # Office-31 keeps the classes of a domain one folder deeper, in `images`.
        deeper = [home / "images" if (home / "images").is_dir() else home for home in homes]
        folders: dict[str, list[Path]] = {}
        for home in deeper:
            for name, found in self._found(home, self.classes).items():
                folders.setdefault(name, []).extend(found)
        return listed(folders, self.classes)

    def _found(self, root: Path, wanted: Sequence[str]) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for folder in subfolders(root):
            meant = self._meant(folder.name)
            if meant in wanted:
                found.setdefault(meant, []).append(folder)
        missing = [name for name in wanted if name not in found]
        if missing:
            there = ", ".join(shown(folder.name) for folder in subfolders(root)[:40])
            raise DataError(
                f"{shown(root)}: no folder {', '.join(missing)}; it has {there or 'no folders'}"
            )
        return found

    def _meant(self, folder: str) -> str:
        plain = plain_name(folder)
        return self.aliases.get(plain, plain)


@dataclass(frozen=True)
class PicturesInfo(Info):
    """Facts about a benchmark of pictures."""

    benchmark: Benchmark | None = None

    def places(self, folder: Path) -> dict[Path, Path] | None:
        """Recognise its pictures."""
        return None if self.benchmark is None else self.benchmark.places(folder)


def plain_name(folder: str) -> str:
    """Bring a folder's name to one spelling.

    Examples:
        >>> plain_name("045.computer-keyboard"), plain_name("127.laptop-101")
        ('computer_keyboard', 'laptop')
    """
    name = re.sub(r"^\d+\.", "", folder.lower())
    return re.sub(r"[\s_-]+", "_", re.sub(r"-101$", "", name)).strip("_")
