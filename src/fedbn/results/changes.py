"""What differs between two configurations or environments, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """A key and its two values; None where one side does not have it."""

    key: str
    a: Any
    b: Any

    @property
    def words(self) -> tuple[str, str, str]:
        """The key and both values as one reads them; long hashes are cut."""
        return self.key, _word(self.a), _word(self.b)


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    """List the keys whose values differ.

    Examples:
        >>> changes({"t": {"lr": 0.1, "rounds": 2}}, {"t": {"lr": 0.2, "rounds": 2}})
        (Change(key='t.lr', a=0.1, b=0.2),)
    """
    first, second = dict(_flat(a)), dict(_flat(b))
    keys = sorted(first.keys() | second.keys())
    found = (Change(key, first.get(key), second.get(key)) for key in keys)
    return tuple(change for change in found if change.a != change.b)


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _word(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        hashed = len(value) == 64 and set(value) <= set("0123456789abcdef")
        return f"{value[:12]}…" if hashed else value
    return json.dumps(value, ensure_ascii=False, default=str)
