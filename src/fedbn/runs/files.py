"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbn.errors import DamagedRun, FedbnError


def write_atomically(path: Path, content: bytes, kind: type[FedbnError] = FedbnError) -> None:
    """Replace a file as a whole; `kind` is as for `explained`."""
    temporary = temporary_name(path)
    with explained(path, kind):
        write_through(temporary, content)
        temporary.replace(path)
        sync_folder(path.parent)


def temporary_name(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.tmp")


def write_through(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> bytes:
    """Render JSON the same way every time."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def sealed(value: Mapping[str, Any]) -> bytes:
    """Render JSON with a checksum of all the rest in it, as `sha256`."""
    return to_json({**value, "sha256": hashlib.sha256(to_json(value)).hexdigest()})


def unsealed(file: Path, format: int) -> dict[str, Any]:
    """Read what `sealed` rendered; its key `format` is at most the one given.

    Raises:
        DamagedRun: The file is missing, is not to the last byte what was written, or is newer.
    """
    try:
        content = file.read_bytes()
        value = {key: part for key, part in json.loads(content).items() if key != "sha256"}
        whole = content == sealed(value)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedRun(f"{file}: missing or damaged") from error
    if not whole:
        raise DamagedRun(f"{file}: damaged (its sha256 is not its own)")
    if value["format"] > format:
        raise DamagedRun(
            f"{file}: format {value['format']} is from a newer fedbn; this reads {format}"
        )
    return value


@contextmanager
def explained(path: Path, kind: type[FedbnError] = FedbnError) -> Iterator[None]:
    """Turn what the system refuses into one line that names the file.

    Args:
        path: What is being written.
        kind: The error to raise, unless the disk is full: a path that the user chose is a wrong
            value, and not a run that failed.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or str(error)
        hint = "; completed rounds are saved: make room, then `fedbn resume`" if full else ""
        error_kind = FedbnError if full else kind
        raise error_kind(f"cannot write {path}: {reason}{hint}") from error
