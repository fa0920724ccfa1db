"""The table `[reproduce.options]`: what only one item knows, checked in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedbn.errors import ConfigError, unknown

_TABLE = "reproduce.options"


def options_of(
    given: Mapping[str, Any], defaults: Mapping[str, Any], counts: Iterable[str] = ()
) -> dict[str, Any]:
    """Fill up what was given with an item's defaults.

    Args:
        given: What is in the table.
        defaults: All keys that the item knows.
        counts: Those that are whole numbers from 1.

    Raises:
        ConfigError: At an unknown key, or a count that is none.
    """
    for key in given:
        if key not in defaults:
            legal = [f"{_TABLE}.{name}" for name in defaults]
            raise ConfigError(unknown("key", f"{_TABLE}.{key}", legal))
    found = {**defaults, **given}
    for key in counts:
        if isinstance(found[key], bool) or not isinstance(found[key], int) or found[key] < 1:
            raise refused(key, found[key], "legal are whole numbers from 1")
    return found


def refused(key: str, value: Any, why: str) -> ConfigError:
    """The error for an option's value."""
    return ConfigError(f"{_TABLE}.{key} = {value!r}: {why}")
