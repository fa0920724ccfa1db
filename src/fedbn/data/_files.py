"""Walking folders of other people's files: any name, links that go in circles, hidden leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbn.errors import DataError

_NO_FILE = "not a file, but a pipe, a socket or a device"
_SKIPPED = frozenset({"__MACOSX", "__pycache__", "@eaDir"})


@dataclass(frozen=True)
class Trouble:
    """A place in a tree of files that could not be followed.

    Attributes:
        path: The place.
        text: What is wrong with it.
        harmless: Nothing is lost by leaving it out.
    """

    path: Path
    text: str
    harmless: bool = False


def shown(path: Path | str) -> str:
    r"""Write a path on one line, whatever its name holds.

    Examples:
        >>> shown("a b\nc.png")
        'a b\\nc.png'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))


def subfolders(folder: Path) -> list[Path]:
    """List the folders right below one, by name, but for hidden ones and links to above."""
    try:
        found = [entry for entry in folder.iterdir() if not is_hidden(entry) and entry.is_dir()]
        above = {folder.resolve(), *folder.resolve().parents}
    except OSError as error:
        raise DataError(f"{shown(folder)}: cannot be listed ({error.strerror})") from error
    kept = [entry for entry in found if not entry.is_symlink() or entry.resolve() not in above]
    return sorted(kept, key=lambda entry: os.fsencode(entry.name))


def is_hidden(path: Path) -> bool:
    """Tell whether a file or folder is one that systems leave behind, not a person's data."""
    return path.name.startswith(".") or path.name in _SKIPPED


def scan(folder: Path) -> Iterator[Path | Trouble]:
    """Walk all files below a folder, by name; links are followed, but never in a circle."""
    return _scan(folder, frozenset(_inode(parent) for parent in folder.absolute().parents))


def _scan(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path | Trouble]:
    try:
        inode = _inode(folder)
        entries = sorted(folder.iterdir(), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        yield Trouble(folder, f"cannot be listed ({error.strerror})")
        return
    if inode in above:
        yield Trouble(folder, "a link to a folder above it, a circle: not followed", harmless=True)
        return
    for entry in entries:
        if is_hidden(entry):
            continue
        if entry.is_dir():
            yield from _scan(entry, above | {inode})
        elif entry.is_symlink() and not entry.exists():
            yield Trouble(entry, "a link that leads nowhere")
        elif not entry.is_file():
            yield Trouble(entry, _NO_FILE)
        else:
            yield entry


def check_regular(file: Path) -> None:
    """Refuse what would not end when read: a pipe, a device."""
    if file.exists() and not file.is_file():
        raise DataError(f"{shown(file)}: {_NO_FILE}")


def check_distinct(places: Sequence[Path]) -> None:
    """Refuse two clients whose files or folders are one, by a link."""
    first: dict[tuple[int, int], Path] = {}
    for place in places:
        if place.exists() and (known := first.setdefault(_inode(place), place)) is not place:
            raise DataError(
                f"{shown(place)}: the same as {shown(known)}, by a link; "
                "each client needs data of its own"
            )


def _inode(folder: Path) -> tuple[int, int]:
    stat = folder.stat()
    return stat.st_dev, stat.st_ino
