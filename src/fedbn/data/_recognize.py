"""Telling which kind of data a path holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedbn.data import folders as picture_folders
from fedbn.data._files import is_hidden, shown, subfolders
from fedbn.data._images import is_picture
from fedbn.data._table_files import SUFFIXES
from fedbn.data._table_sites import LAYOUT as TABLES
from fedbn.errors import DataError

ARRAYS = "PATH/SITE.npz"
LAYOUTS = f"(1) pictures: {picture_folders.LAYOUT}; (2) arrays: {ARRAYS}; (3) tables: {TABLES}"


@dataclass(frozen=True)
class _Content:
    """What lies in a folder, by kind."""

    arrays: int
    tables: int
    sites: int

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds that are there, each with a sentence; the likeliest first."""
        found = {
            "arrays": (self.arrays, f"arrays: {self.arrays} npz file(s), one a site"),
            "folders": (self.sites, f"picture folders: {self.sites} site(s)"),
            "tables": (self.tables, f"tables: {self.tables} file(s)"),
        }
        return {kind: text for kind, (count, text) in found.items() if count}


def recognize(path: str | Path) -> tuple[str, str]:
    """Tell which data set reads a path, and say what it was taken for.

    Arrays come before pictures and pictures before tables: a table beside picture folders is
    likely to be about them.

    Returns:
        `arrays`, `folders` or `tables`, and a sentence for the user.

    Raises:
        DataError: Where it is none of them, listing the three layouts.
    """
    place = Path(path)
    if place.is_file():
        return _file(place)
    if not place.is_dir():
        raise DataError(f"{shown(place)}: no such file or folder; expected {LAYOUTS}")
    kinds = _content(place).kinds
    if not kinds:
        raise DataError(f"{shown(place)}: neither pictures, arrays nor tables; expected {LAYOUTS}")
    (kind, text), *others = kinds.items()
    ignored = "".join(f"; ignored: {other}" for _, other in others)
    return kind, f"{shown(place)} read as {text}{ignored}"


def _file(file: Path) -> tuple[str, str]:
    if file.suffix.lower() in SUFFIXES:
        return "tables", f"{shown(file)} read as one table of all sites"
    if file.suffix.lower() == ".npz":
        raise DataError(f"{shown(file)}: one npz file; give its folder, with one SITE.npz a site")
    raise DataError(f"{shown(file)}: not a folder or a table; expected {LAYOUTS}")


def _content(folder: Path) -> _Content:
    try:
        suffixes = [f.suffix.lower() for f in folder.iterdir() if f.is_file() and not is_hidden(f)]
    except OSError as error:
        raise DataError(f"{shown(folder)}: cannot be listed ({error.strerror})") from error
    return _Content(
        arrays=suffixes.count(".npz"),
        tables=sum(suffix in SUFFIXES for suffix in suffixes),
        sites=sum(_has_pictures(site) for site in subfolders(folder)),
    )


def _has_pictures(site: Path) -> bool:
    """Tell whether there are pictures as SITE/CLASS/* or SITE/train/CLASS/*."""
    try:
        return any(is_picture(f) for pattern in ("*/*", "*/*/*") for f in site.glob(pattern))
    except OSError:
        return False  # other sites may tell what it is, and reading this one says what is wrong
