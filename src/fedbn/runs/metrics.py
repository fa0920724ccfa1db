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


def append(file: Path, content: bytes) -> None:
    """Add lines at the end of a file and wait until they are on disk."""
    with explained(file), file.open("ab") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def keep_until(file: Path, round: int) -> None:
    """Drop the records of later rounds, and a last line that a crash cut off.

    Raises:
        DamagedRun: Records of a round before are not there, though its checkpoint came after them.
    """
    lines = list(_lines(file)) if file.exists() else []
    missing = set(range(1, round + 1)) - {record["round"] for _, record in lines}
    if missing:
        raise DamagedRun(f"{file}: the records of round {min(missing)} are missing")
    if file.exists():
        kept = [text for text, record in lines if record["round"] <= round]
        write_atomically(file, "".join(kept).encode())


def read(file: Path) -> list[dict[str, Any]]:
    """Read all whole records of a file."""
    return [record for _, record in _lines(file)] if file.exists() else []


def read_from(file: Path, offset: int) -> bytes:
    """Read the whole lines that were appended behind an offset."""
    with file.open("rb") as stream:
        stream.seek(offset)
        content = stream.read()
    return content[: content.rfind(b"\n") + 1]


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    *lines, _cut_off = file.read_bytes().split(b"\n")
    for number, each in enumerate(lines, 1):
        try:
            text = each.decode()
            record = json.loads(text)
            yield f"{text}\n", {**record, "round": int(record["round"])}
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRun(f"{file}, line {number}: not a record") from error
