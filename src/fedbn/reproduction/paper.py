"""The paper's numbers, from `paper.toml`, found by method, setting and domain."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedbn.errors import ConfigError, unknown

_FILE = Path(__file__).with_name("paper.toml")
_PRINTED = re.compile(r"(\d+\.\d+)(?: \((\d+\.\d+)\))?")


class Number(NamedTuple):
    """A printed number, in per cent."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        label: Its label in the paper's source.
        title: What it shows.
        note: What a reader must know of it; mostly empty.
        numbers: By method, setting (its parts) and domain.
    """

    label: str
    title: str
    note: str
    numbers: Mapping[tuple[str, frozenset[str], str], Number]

    def find(self, method: str, domain: str, setting: str = "default") -> Number | None:
        """Look a number up; the parts of a setting may come in any order.

        Examples:
            >>> table("digits-batch-epochs").find("fedbn", "svhn", "local_epochs=1,batch_size=10")
            Number(mean=76.18, std=None)
        """
        return self.numbers.get((method, _parts(setting), domain))


@cache
def table(name: str) -> PaperTable:
    """Read one entry of the file."""
    found = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    if name not in found:
        raise ConfigError(f"reproduce.paper: {unknown('table', name, found)}")
    entry = found[name]
    return PaperTable(entry["label"], entry["title"], entry.get("note", ""), dict(_numbers(entry)))


def _numbers(entry: Mapping[str, Any]) -> Iterator[tuple[tuple[str, frozenset[str], str], Number]]:
    for row in entry["rows"]:
        for column, printed in zip(entry["columns"], row["values"], strict=True):
            setting = row.get("setting", entry.get("setting", "default"))
            domain = row.get("domain", column)
            if "=" in column:
                setting = column
            yield (row["method"], _parts(setting), domain), _read(printed)


def _read(printed: str) -> Number:
    match = _PRINTED.fullmatch(printed)
    assert match, printed
    return Number(float(match[1]), float(match[2]) if match[2] else None)


def _parts(setting: str) -> frozenset[str]:
    return frozenset(setting.split(","))
