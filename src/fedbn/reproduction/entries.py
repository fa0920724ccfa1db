"""The items that can be reproduced: experiment files with a table `[reproduce]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbn.errors import ConfigError, unknown
from fedbn.experiments import catalogue
from fedbn.experiments.loading import read_toml

ALL = "all"


@dataclass(frozen=True)
class Entry:
    """One item.

    Attributes:
        name: The file's name.
        title: The first line of its header: what it shows.
        file: The file.
        raw: What is in it.
        paper: The paper's settings: the same, or, for a user's changed copy, those of the item of
            its name; None for an experiment that is not in the paper.
    """

    name: str
    title: str
    file: Path
    raw: Mapping[str, Any]
    paper: Mapping[str, Any] | None

    @property
    def how(self) -> Mapping[str, Any]:
        """The table `[reproduce]`."""
        found: Mapping[str, Any] = self.raw["reproduce"]
        return found

    @property
    def by(self) -> str:
        """The module that does it."""
        return str(self.how.get("by", "trained"))


def entries() -> list[Entry]:
    """Read all items that come with the package."""
    found = []
    for name, title in catalogue.experiments().items():
        raw = read_toml(catalogue.folder() / f"{name}.toml")
        if "reproduce" in raw:
            found.append(Entry(name, title, catalogue.folder() / f"{name}.toml", raw, raw))
    return found


def find(name: str) -> list[Entry]:
    """Find one item by its name or by a file of the user's own, or all of them."""
    known = entries()
    if name.endswith(".toml"):
        return [_own(Path(name), {entry.name: entry.raw for entry in known})]
    if name == ALL:
        return known
    chosen = [entry for entry in known if entry.name == name]
    if not chosen:
        raise ConfigError(unknown("item", name, [*(entry.name for entry in known), ALL]))
    return chosen


def _own(file: Path, known: Mapping[str, Mapping[str, Any]]) -> Entry:
    raw = read_toml(file)
    if not isinstance(raw.get("reproduce"), Mapping):
        raise ConfigError(f"{file}: no table [reproduce]; `fedbn run` trains any experiment")
    return Entry(file.stem, catalogue.title(file), file, raw, known.get(file.stem))
