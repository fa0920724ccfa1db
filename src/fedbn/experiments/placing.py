"""Putting values into a configuration: one key, a table of changes, or a scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedbn.errors import ConfigError, unknown

Raw = dict[str, Any]
SCALES = ("quick", "paper")
_REPLACES = {"training.epochs": "training.rounds", "training.rounds": "training.epochs"}


def placed(raw: Mapping[str, Any], key: str, value: Any) -> Raw:
    """Copy a configuration with one dotted key set; rounds and epochs replace each other."""
    head, _, rest = key.partition(".")
    if (other := _REPLACES.get(key)) and isinstance(raw.get(head), Mapping):
        kept = {k: v for k, v in raw[head].items() if k != other.partition(".")[2]}
        raw = {**raw, head: kept}
    if not rest:
        return {**raw, head: value}
    below = raw.get(head, {})
    if not isinstance(below, Mapping):
        raise ConfigError(f"{key}: {head} = {below!r} is a value, not a section")
    return {**raw, head: placed(below, rest, value)}


def scaled(raw: Raw, scale: str) -> Raw:
    """Apply a file's `[quick]` table where that scale is asked for."""
    if scale not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', scale, SCALES)}")
    quick = raw.get("quick", {})
    if scale != "quick" or not isinstance(quick, Mapping):
        return raw
    return changed({key: value for key, value in raw.items() if key != "quick"}, quick)


def changed(raw: Raw, changes: Mapping[str, Any]) -> Raw:
    """Apply a table of changes, key by key.

    `sweep` is replaced as a whole; so is `[data]` or `[model]` where the change names another one,
    whose options are its own.

    Examples:
        >>> changed({"data": {"name": "digits", "percent": 1}}, {"data": {"name": "digits_mini"}})
        {'data': {'name': 'digits_mini'}}
    """
    for section, value in changes.items():
        if not isinstance(value, Mapping) or section == "sweep":
            raw = {**raw, section: value}
            continue
        below = raw.get(section, {})
        if section in ("data", "model") and "name" in value and isinstance(below, Mapping):
            raw = {**raw, section: {}}
        for key, each in _leaves(value, f"{section}."):
            raw = placed(raw, key, each)
    return raw


def _leaves(value: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield from _leaves(each, f"{above}{key}.")
        else:
            yield f"{above}{key}", each
