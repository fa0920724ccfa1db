"""From a name, a scale and overrides to the configuration that is run, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import fedbn.data
from fedbn import registry
from fedbn.data._digit_domains import digits_folder
from fedbn.data._digit_files import DOMAINS, find_source
from fedbn.errors import ConfigError
from fedbn.experiments.loading import checked, overridden
from fedbn.experiments.placing import Raw, changed, scaled
from fedbn.reproduction.departures import departures
from fedbn.reproduction.entries import Entry

ORIGINALS = "originals"
_OF_THE_FILE = ("reproduce", "quick")


@dataclass(frozen=True)
class Asked:
    """What is run.

    Attributes:
        raw: The configuration after scale, what is missing, and overrides.
        changes: How it differs from the paper's settings, a phrase each.
        lacking: Data sets that it needs and that are not there.
        comparable: Whether it trains on the paper's data, so that numbers may be compared.
    """

    raw: Raw
    changes: tuple[str, ...]
    lacking: tuple[str, ...]
    comparable: bool


def asked(entry: Entry, scale: str, flags: Mapping[str, Any], settings: Iterable[str]) -> Asked:
    """Apply the scale, then what takes the place of missing data, then the user's overrides.

    Data that is not there is replaced at quick scale only: at the paper's scale it is the point.
    """
    where, settings = str(entry.file), list(settings)
    for key in (setting.split("=")[0].strip() for setting in settings):
        if key.split(".")[0] in _OF_THE_FILE and not key.startswith("reproduce.options."):
            raise ConfigError(
                f"--set {key}: belongs to the item's file. Copy {where}, change it there, and run "
                f"`fedbn reproduce COPY.toml`"
            )
    checked(entry.raw, where)
    raw = scaled(dict(entry.raw), scale)
    without: Mapping[str, Any] = entry.how.get("without", {})
    for need in missing(overridden(raw, flags, settings, where)):
        if scale == "quick" and need in without:
            raw = changed(raw, without[need])
    if ORIGINALS in without and _data(raw) == "digits" and not originals_are_there():
        raw = changed(raw, without[ORIGINALS])
    final = overridden(raw, flags, settings, where)
    final.pop("quick", None)
    checked(final, where)
    return Asked(final, told(entry, final), tuple(missing(final)), comparable(entry, final))


def told(entry: Entry, used: Raw) -> tuple[str, ...]:
    """How a configuration differs from the paper's, a phrase each."""
    if entry.paper is None:
        return (f"settings of {entry.file.name}, not the paper's", *departures(entry.raw, used))
    return tuple(departures(entry.paper, used))


def comparable(entry: Entry, used: Raw) -> bool:
    """Tell whether numbers may stand beside the paper's: an item of it, on its data."""
    return entry.paper is not None and _data(used) == _data(entry.paper)


def missing(raw: Mapping[str, Any]) -> list[str]:
    """Name the data sets that a configuration needs and that are not there."""
    data = raw.get("data", {})
    needs = [*raw.get("reproduce", {}).get("needs", ())]
    if "path" not in data:
        needs.insert(0, _data(raw))
    return [name for name in dict.fromkeys(needs) if not is_there(name)]


def is_there(name: str) -> bool:
    """Tell whether a registered data set's files are there; a user's own is taken to be."""
    if name not in registry.names(fedbn.data):
        return True  # a user's own, or a name that is refused where it is used
    return fedbn.data.info_of(name).is_there()


def originals_are_there() -> bool:
    """Tell whether every digit data set is there whole, and not cut to equal size."""
    sources = [find_source(digits_folder(), domain) for domain in DOMAINS]
    return all(source is not None and not source.split for source in sources)


def _data(raw: Mapping[str, Any]) -> str:
    return str(raw.get("data", {}).get("name", "digits_mini"))
