"""What a configuration may hold at all: TOML of a sane depth, and plain values."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from fedbn.errors import ConfigError

_DEPTH = 20
_DOTS = 200
_LIMIT = 2**63


def parsed(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: Saying what is wrong, with line and column.
        RecursionError: It is nested too deeply.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    # The parser's memory grows with the square of a dotted key's length.
    if any(part.count(".") > _DOTS for line in lines for part in re.split(r"[=,\[\]{}]", line)):
        raise RecursionError
    return tomllib.loads(text)


def check_values(value: Any, where: str, key: str = "", depth: int = 0) -> None:
    """Refuse what no key can hold: NaN, infinity, dates, text that no file can hold."""
    place = f"{where}: {key}"
    if depth > _DEPTH:
        raise ConfigError(f"{place[:200]} ...: nested too deeply")
    if isinstance(value, Mapping):
        for name, below in value.items():
            _check_text(str(name), f"{where}: key {name!r}")
            check_values(below, where, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for below in value:
            check_values(below, where, key, depth + 1)
    elif isinstance(value, str):
        _check_text(value, f"{place} = {value[:60]!r}")
    elif isinstance(value, int):
        if not -_LIMIT <= value < _LIMIT:
            raise ConfigError(f"{place}: legal are whole numbers from -2**63 to 2**63 - 1")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{place} = {value}: legal are finite numbers")
    elif value is not None:
        kind = type(value).__name__
        raise ConfigError(f"{place}: a {kind}; legal are numbers, text, true, false and lists")


def _check_text(text: str, place: str) -> None:
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ConfigError(f"{place}: legal is text in UTF-8 without NUL")
