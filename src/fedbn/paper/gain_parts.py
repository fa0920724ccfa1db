"""What `gain_decomposition` stores: one part per seed of one division of one data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedbn.errors import DamagedRun
from fedbn.runs.folder import explained, write_atomically


@dataclass(frozen=True)
class Part:
    """One seed of one division of one data set, as it is stored.

    Scores are in the metric's unit, by weights and statistics; losses by method, statistics and
    round. Both have one number per client.
    """

    split: int
    seed: int
    metric: str
    clients: tuple[str, ...]
    train: tuple[int, ...]  # training samples of each client
    test: tuple[int, ...]  # test samples of each client
    settings: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, tuple[float, ...]]]
    losses: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]]


def read(file: Path) -> list[Part]:
    """Read the parts that are stored in a file."""
    if not file.exists():
        return []
    with explained(file):
        lines = file.read_text(encoding="utf-8").splitlines()
    try:
        return [_part(json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise DamagedRun(
            f"{file}: expected one part per line ({error}); remove the file"
        ) from error


def _part(values: dict[str, Any]) -> Part:
    for key in ("clients", "train", "test"):
        values[key] = tuple(values[key])
    return Part(**values)


def write(file: Path, parts: Iterable[Part]) -> None:
    """Write parts into a file, in the order of their division and seed."""
    ordered = sorted(parts, key=lambda part: (part.split, part.seed))
    lines = [json.dumps(asdict(part), separators=(",", ":")) + "\n" for part in ordered]
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "".join(lines).encode())
