"""Records on disk: one JSON object a line, appended as rounds end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedbn.core.rounds import Record
from fedbn.errors import DamagedRun
from fedbn.runs.files import explained, write_atomically


def line(record: Record) -> str:
    """Render a record as its line."""
    return json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n"


def append(file: Path, text: str) -> None:
    """Add lines at the end of a file and wait until they are on disk."""
    with explained(file), file.open("a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def keep_until(file: Path, round: int) -> None:
    """Drop the records of later rounds, and a last line that a crash cut off."""
    if not file.exists():
        return
    kept = [text for text, record in _lines(file) if record["round"] <= round]
    write_atomically(file, "".join(kept).encode())


def read(file: Path) -> list[dict[str, Any]]:
    """Read all whole records of a file."""
    return [record for _, record in _lines(file)] if file.exists() else []


def read_from(file: Path, offset: int) -> bytes:
    """Read what was appended behind an offset."""
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read()


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines(keepends=True)
    for number, each in enumerate(lines, 1):
        try:
            yield each, json.loads(each)
        except ValueError as error:
            if number == len(lines):
                return
            raise DamagedRun(f"{file}, line {number}: not a record") from error
