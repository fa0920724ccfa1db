"""Prepared arrays, kept as memory-mapped `.npy` files so that a data set is made once.

An entry lies in `.cache/NAME/KEY` below the data root, or below `~/.cache/fedbn` where the data
root is read-only; where neither can be written, the arrays are made anew each time. The key is a
hash of everything that the arrays depend on, contents of source files included, so a changed option
or source file is another entry and nothing is ever out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbn.data._info import data_root, home
from fedbn.errors import DataError

Arrays = dict[str, NDArray[Any]]

_LOG = logging.getLogger("fedbn")
_warned: set[str] = set()


def cached(name: str, depends_on: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return arrays from the cache, or make and keep them.

    Args:
        name: The data set, a folder of the cache.
        depends_on: All that decides the arrays: options, versions, `fingerprint` of the sources.
        make: Makes the arrays.

    Returns:
        The arrays, mapped copy-on-write: they may be written to, the files stay as they are.
    """
    text = json.dumps(dict(depends_on), sort_keys=True, default=str)
    entry = Path(name) / hashlib.sha256(text.encode()).hexdigest()[:20]
    for folder in _folders():
        found = _read(folder / entry)
        if found is not None:
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
    files = [file for path in paths for file in _files(path)]
    homes = {parent: parent.resolve() for parent in {file.parent for file in files}}
    places = [str(_place(file, homes[file.parent])) for file in files]
    states = [_state(file) for file in files]
    made = cached("contents", {"places": places, "states": states}, lambda: _contents(files))
    return {"places": places, "sha256": made["sha256"].tobytes().hex()}


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _place(file: Path, home: Path) -> Path:
    return file.resolve() if file.is_symlink() else home / file.name


def _state(file: Path) -> tuple[int, ...]:
    stat = file.stat()
    # The time of the inode's change too: a copy over a file can keep all the others.
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


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
    files = sorted(entry.glob("*.npy"))
    if not files:
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
