"""Where data lies on this machine, the cache of prepared arrays, and other people's folders.

Prepared arrays are kept as memory-mapped `.npy` files, so that a data set is made once. An entry
lies in `.cache/NAME/KEY` below the data root, or below `~/.cache/fedbn` where the data root is
read-only; where neither can be written, the arrays are made anew each time. The key is a hash of
everything that the arrays depend on, contents of source files included, so a changed option or
source file is another entry and nothing is ever out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbn.errors import DataError
from fedbn.text import shown


@dataclass(frozen=True)
class Info:
    """The facts about a data set; its module has one by its name in `INFO`."""

    title: str  # one line for a person
    clients: str  # how many, and of what size ("5 of 743")
    classes: int  # how many
    shape: str  # the shape of a sample ("3×28×28")
    source: str  # where it comes from
    licence: str  # as its owners state it
    # Patterns below the data root, all of which must match for the data to be there; empty for data
    # that needs no file.
    files: tuple[str, ...] = ()
    module: str = ""  # what must be installed to read or make it, beside this library's own needs
    extra: str = ""  # the part of this library that brings the module (`pip install fedbn[EXTRA]`)
    by_hand: str = ""  # what to get, and from where, where no checksum is published
    # Tells where below the data root a folder's files go; None to take none over.
    places: Callable[[Path], dict[Path, Path]] | None = None

    def is_installed(self) -> bool:
        """Tell whether the module it needs is there."""
        return not self.module or importlib.util.find_spec(self.module) is not None

    def is_there(self) -> bool:
        """Tell whether the files it needs are below the data root."""
        return all(any(data_root().glob(pattern)) for pattern in self.files)


def data_root() -> Path:
    """The folder for data: `FEDBN_DATA`, or a cache folder in the user's home."""
    return Path(os.environ.get("FEDBN_DATA") or home() / ".cache" / "fedbn")


def home() -> Path:
    """The user's home; a folder among the temporary ones for a container's user who has none.

    One that somebody else made is refused: anything could be put into it.
    """
    try:
        return Path.home()
    except RuntimeError:
        folder = Path(tempfile.gettempdir()) / f"fedbn-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid == os.getuid():
            return folder
        raise DataError(
            f"{folder}: belongs to somebody else, and this user has no home; "
            "let HOME or FEDBN_DATA name a folder"
        ) from None


Arrays = dict[str, NDArray[Any]]
_LOG = logging.getLogger("fedbn")
_warned: set[str] = set()


def cached(name: str, depends_on: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return arrays from the cache, or make and keep them.

    The key is all that decides them: options, versions, `fingerprint` of the sources. They are
    mapped copy-on-write: they may be written to, the files stay as they are.
    """
    text = json.dumps(dict(depends_on), sort_keys=True, default=str)
    entry = Path(name) / hashlib.sha256(text.encode()).hexdigest()[:20]
    for folder in _folders():
        if (found := _read(folder / entry)) is not None:
            return found
    arrays = make()
    for folder in _folders():
        if _write(folder / entry, arrays, text):
            return _read(folder / entry) or arrays
    _warn_once(f"no cache: {' and '.join(map(str, _folders()))} cannot be written; what is prepared"
               " is kept in memory and made anew each time")  # fmt: skip
    return arrays


def fingerprint(paths: Iterable[Path]) -> dict[str, object]:
    """Describe files by where they lie and what they hold; a folder by the files in it.

    The hash of the contents is kept in the cache: files of the same path, inode, size and times
    are not read again. Names and times alone would not do: sites unpacked from archives may have
    them in common.
    """
    files = [f for path in paths for f in (sorted(path.iterdir()) if path.is_dir() else [path])]
    homes = {parent: parent.resolve() for parent in {file.parent for file in files}}
    places = [str(f.resolve() if f.is_symlink() else homes[f.parent] / f.name) for f in files]
    stats = [file.stat() for file in files]
    # The time of the inode's change too: a copy over a file can keep all the others.
    states = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats]
    made = cached("contents", {"places": places, "states": states}, lambda: _contents(files))
    return {"places": places, "sha256": made["sha256"].tobytes().hex()}


def _contents(files: Iterable[Path]) -> Arrays:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return {"sha256": np.frombuffer(digest.digest(), np.uint8)}


def _folders() -> list[Path]:
    found = [data_root() / ".cache"]
    with contextlib.suppress(DataError):  # no home is no matter where there is a data root
        found.append(home() / ".cache" / "fedbn" / ".cache")
    return list(dict.fromkeys(found))


def _read(entry: Path) -> Arrays | None:
    if not (files := sorted(entry.glob("*.npy"))):
        return None
    try:
        return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in files}
    except (OSError, ValueError) as error:
        _warn_once(f"{entry}: damaged cache entry, made anew ({error})")
        return None


def _write(entry: Path, arrays: Arrays, text: str) -> bool:
    """Write an entry whole or not at all; tell whether it is there afterwards."""
    if not may_write(entry):
        return False
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        unfinished = entry.parent / f".unfinished-{uuid.uuid4().hex}"
        unfinished.mkdir()
    except OSError:
        return False
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
        (unfinished / "depends_on.json").write_text(text, encoding="utf-8")
        if entry.exists() and _read(entry) is None:
            shutil.rmtree(entry)
        unfinished.rename(entry)
    except OSError as error:
        # Another process may have finished the same entry first, which is as good.
        if _read(entry) is None:
            _warn_once(f"{entry}: the cache cannot be written ({error})")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return entry.exists()


def may_write(entry: Path) -> bool:
    """Honour a folder marked read-only even for the superuser, whom the system would let write."""
    there = next(parent for parent in entry.parents if parent.exists())
    return bool(there.stat().st_mode & 0o222) and os.access(there, os.W_OK)


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _LOG.warning(text)


NO_FILE = "not a file, but a pipe, a socket or a device"
_SKIPPED = frozenset({"__MACOSX", "__pycache__", "@eaDir"})


@dataclass(frozen=True)
class Trouble:
    """A place in a tree of files that could not be followed; harmless where nothing is lost."""

    path: Path
    text: str
    harmless: bool = False


def subfolders(folder: Path) -> list[Path]:
    """List the folders right below one, by name, but for hidden ones and links to above."""
    found, above = _entries(folder, Path.is_dir), {folder.resolve(), *folder.resolve().parents}
    return [entry for entry in found if not entry.is_symlink() or entry.resolve() not in above]


def files_in(folder: Path) -> list[Path]:
    """List the files right below a folder, by name, but for hidden ones."""
    return _entries(folder, Path.is_file)


def _entries(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:
        found = [entry for entry in folder.iterdir() if not is_hidden(entry) and wanted(entry)]
    except OSError as error:
        raise DataError(f"{shown(folder)}: cannot be listed ({error.strerror})") from error
    return sorted(found, key=lambda entry: os.fsencode(entry.name))


def is_hidden(path: Path) -> bool:
    """Tell whether a file or folder is one that systems leave behind, not a person's data."""
    return path.name.startswith(".") or path.name in _SKIPPED


def scan(folder: Path, above: frozenset[tuple[int, int]] | None = None) -> Iterator[Path | Trouble]:
    """Walk all files below a folder, by name; links are followed, but never in a circle."""
    if above is None:
        above = frozenset(_inode(parent) for parent in folder.absolute().parents)
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
            yield from scan(entry, above | {inode})
        elif entry.is_symlink() and not entry.exists():
            yield Trouble(entry, "a link that leads nowhere")
        elif not entry.is_file():
            yield Trouble(entry, NO_FILE)
        else:
            yield entry


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
