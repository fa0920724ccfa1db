"""A log that an auditor can check: one JSON line an event, chained by hashes, signed by its owner.

Every line names the sha256 of the line before it, so a changed, removed or moved line is found.
Messages carry the sender's newest hash into the other's log: an end that was cut off is found by
comparing two logs.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from filelock import FileLock

from fedbn.errors import DamagedRun
from fedbn.flower.credentials import SIGNATURE, Key, read_key, signed
from fedbn.runs.metrics import append

_PIECE = 65_536


class AuditLog:
    """An owner's log: appended to only, signed by its key; without one nothing is written."""

    def __init__(self, file: Path | None = None, key: Key | None = None):
        self._file, self._key = file, key
        self.newest = _end(file)[0] if file else ""

    def write(self, event: str, **facts: Any) -> None:
        """Add an event."""
        if self._file is None or self._key is None:
            return
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._file.with_suffix(".lock")):  # a run and `revoke` write into one log
            before, torn = _end(self._file)
            if self._file.is_file() and not self._file.stat().st_size:
                facts["found_empty"] = True  # emptied by hand: a new log has no file yet
            if torn:  # by a power cut or a full disk; this line must not be glued to it
                os.truncate(self._file, self._file.stat().st_size - torn)
                facts["torn_bytes"] = torn
            said = {"time": time, "event": event, **facts, "before": before}
            line = _text({**said, "signature": self._key.sign(_text(said), SIGNATURE).hex()})
            append(self._file, line + b"\n")
        self.newest = _hash(line)


def log_of(home: Path) -> AuditLog:
    """A site's log, by its folder; none is written where there is no key yet."""
    key = home / "site.key"
    return AuditLog(home / "log.jsonl", read_key(key.read_bytes()) if key.is_file() else None)


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Give the events of a log, as they stand there."""
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise DamagedRun(f"{file}, line {number}: not a line of a log")
        yield said


def verify(file: Path, public: list[bytes]) -> list[str]:
    """Say what is wrong with a log, by line; any of its owner's keys may have signed."""
    owners: list[Any] = [serialization.load_pem_public_key(key) for key in public]
    wrong, before = list[str](), ""
    lines = file.read_bytes().splitlines()
    if not any(map(bytes.strip, lines)):
        wrong.append("no line: a log begins with its owner's first event, so this one was emptied")
    for number, line in enumerate(lines, 1):
        try:
            said = json.loads(line)
            signature, text = bytes.fromhex(said.pop("signature")), _text(said)
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            wrong.append(f"line {number}: not a line of a log ({error})")
        else:
            if said.get("before") != before:
                wrong.append(f"line {number}: does not follow the line before it")
            if said.get("found_empty"):
                wrong.append(f"line {number}: the log was empty when this line was written")
            if not any(signed(owner, signature, text) for owner in owners):
                wrong.append(f"line {number}: changed, or not signed by the log's owner")
        before = _hash(line)
    return wrong


def mentioned(file: Path) -> dict[str, set[str]]:
    """The newest hashes that others sent, by who: what their own logs must hold."""
    found: dict[str, set[str]] = {}
    for said in read(file):
        if said.get("theirs"):
            found.setdefault(str(said.get("site", "server")), set()).add(str(said["theirs"]))
    return found


def line_hashes(file: Path) -> set[str]:
    """The hash of every line."""
    return {_hash(line) for line in file.read_bytes().splitlines()}


def _end(file: Path) -> tuple[str, int]:
    """The hash of the last whole line and the bytes behind it, found from the end of a long log."""
    if not file.is_file():
        return "", 0
    with file.open("rb") as stream:
        begin = stream.seek(0, 2)
        found = b""
        while begin and found.count(b"\n") < 2:
            begin = max(begin - _PIECE, 0)
            stream.seek(begin)
            found = stream.read()
    *lines, torn = found.split(b"\n")
    return _hash(lines[-1]) if lines else "", len(torn)


def _text(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
