"""Records on disk: one JSON object a line, appended as rounds end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbn.core.rounds import Record
from fedbn.errors import DamagedRun
from fedbn.runs.folder import explained, write_atomically
from fedbn.runs.formats import Line, read_as

RECORD = TypeAdapter(Line)


def line(record: Record) -> str:
    """Render a record as its line."""
    return json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n"


def append(file: Path, content: bytes) -> None:
    """Add lines at the end of a file and wait until they are on disk."""
    with explained(file), file.open("ab") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def keep_until(file: Path, round: int, kind: TypeAdapter[Any] = RECORD) -> None:
    """Drop the records of later rounds, and a last line that a crash cut off.

    Args:
        file: The file; it need not be there.
        round: The last round to keep.
        kind: What a line holds.

    Raises:
        DamagedRun: Records of a round before are not there, though its checkpoint came after them.
    """
    lines = list(_lines(file, kind)) if file.exists() else []
    missing = set(range(1, round + 1)) - {record.round for _, record in lines}
    if missing:
        raise DamagedRun(f"{file}: the records of round {min(missing)} are missing")
    if file.exists():
        kept = [text for text, record in lines if record.round <= round]
        write_atomically(file, b"".join(kept))


def read(file: Path) -> list[dict[str, Any]]:
    """Read all whole records of a file."""
    return [vars(record) for _, record in _lines(file)] if file.exists() else []


def read_from(file: Path, offset: int) -> bytes:
    """Read the whole lines that were appended behind an offset."""
    with file.open("rb") as stream:
        stream.seek(offset)
        content = stream.read()
    return content[: content.rfind(b"\n") + 1]


def _lines(file: Path, kind: TypeAdapter[Any] = RECORD) -> Iterator[tuple[bytes, Any]]:
    *lines, _cut_off = file.read_bytes().split(b"\n")
    for number, text in enumerate(lines, 1):
        yield text + b"\n", read_as(kind, text, f"{file}, line {number}")
