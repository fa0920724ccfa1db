"""Taking over files that a user already has: recognised, linked or copied, then moved in place.

A file is a hard link where the system allows it, and a copy elsewhere; either way the originals
may be deleted afterwards. All files are gathered in a hidden folder first, so what is cut short
leaves nothing behind that could be taken for data.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedbn.data._digit_files import Source, find_source
from fedbn.data._files import shown, subfolders
from fedbn.errors import DataError

Places = Mapping[Path, Path]
"""Files, and where each goes below the data root."""

_DEPTH = 4


def digit_places(folder: Path, domains: Sequence[str]) -> dict[str, Places]:
    """Recognise digit data sets at any depth up to four; those not found are left out."""
    places = list(_folders(folder, _DEPTH))
    found = {domain: _first_source(places, domain) for domain in domains}
    return {domain: _digit_files(source) for domain, source in found.items() if source}


def take_over(places: Places, root: Path) -> int:
    """Bring files below the data root, whole or not at all; say how many were new.

    Raises:
        DataError: Where another file of that name is there, or the root cannot be written.
    """
    new = {file: place for file, place in places.items() if not _is_there(file, root / place)}
    gathered = root / f".incoming-{uuid.uuid4().hex}"
    try:
        for file, place in new.items():
            (gathered / place).parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(file, gathered / place)
        if new:
            _move(gathered, root)
    except OSError as error:
        where = shown(error.filename or root)
        raise DataError(f"{where}: cannot be taken over ({error.strerror})") from error
    finally:
        shutil.rmtree(gathered, ignore_errors=True)
    return len(new)


def _is_there(file: Path, target: Path) -> bool:
    if not target.exists():
        return False
    if not filecmp.cmp(file, target, shallow=False):
        raise DataError(f"{shown(target)}: there already, but not as {shown(file)}: remove one")
    return True


def _link_or_copy(file: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        os.link(file.resolve(), target)
        return
    shutil.copy2(file, target)


def _move(made: Path, target: Path) -> None:
    """Rename the highest folders that are new, so that each appears at once."""
    if made.is_dir() and target.is_dir():
        for entry in made.iterdir():
            _move(entry, target / entry.name)
    else:
        made.replace(target)


def _first_source(places: Sequence[Path], domain: str) -> Source | None:
    for place in places:
        with contextlib.suppress(DataError):  # incomplete here, perhaps whole elsewhere
            source = find_source(place, domain)
            if source:
                return source
    return None


def _digit_files(source: Source) -> Places:
    found: dict[Path, Path] = {}
    for part in source.files:
        files = sorted(f for f in part.rglob("*") if f.is_file()) if part.is_dir() else [part]
        found |= {file: Path("digits", file.relative_to(part.parent)) for file in files}
    return found


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth:
        for below in subfolders(folder):
            yield from _folders(below, depth - 1)
