"""Checks that the data of all clients means the same thing, over every client and every split.

Values that differ between clients because they were stored differently look like a feature shift to
a model. `fedbn.core.findings` runs these checks wherever a federation is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Literal

import torch

from fedbn.core.federation import AnySplit, Client, Federation, Split, Targets

_BYTES = 255
_BYTE_LIKE = 100  # whole floats above this value, up to 255, are pixels that were converted
_UNIT = 1.01  # scaled floats may exceed 1 by rounding


@dataclass(frozen=True)
class Inconsistency:
    """A difference between clients that no feature shift explains."""

    severity: Literal["error", "warning"]
    text: str


def inconsistencies(federation: Federation) -> Iterator[Inconsistency]:
    """Report values that are stored in different ways at different clients or splits.

    Args:
        federation: All clients. One client alone is checked for differences between its splits.

    Yields:
        One finding for each kind of difference.
    """
    yield from _pixel_types(federation.clients)
    yield from _pixel_ranges(federation.clients)
    yield from _class_names(federation)


def _pixel_types(clients: Sequence[Client]) -> Iterator[Inconsistency]:
    """Report `uint8` samples next to floats: only `uint8` is scaled to [−1, 1]."""
    splits = [(client, name, split) for client in clients for name, split in client.named_splits()]
    known = [each for each in splits if len(each[2])]
    pixels = [each for each in known if each[2].dtype == torch.uint8]
    floats = [each for each in known if each[2].dtype.is_floating_point]
    if not pixels or not floats:
        return
    extents = [split.extent() for _, _, split in floats]
    low, high = min(least for least, _ in extents), max(most for _, most in extents)
    span = f" from {low:.4g} to {high:.4g}" if isfinite(high - low) else ""
    yield Inconsistency(
        "error",
        f"samples of two types: uint8 at {_places(pixels, clients)}; floats{span} at "
        f"{_places(floats, clients)}. uint8 is scaled to −1 to 1, floats are not scaled, so equal "
        f"pictures would differ. Give all clients and splits one type: {_remedy(low, high)}",
    )


def _remedy(low: float, high: float) -> str:
    """Return the conversion that makes floats of a range and `uint8` pixels the same."""
    if low < 0 and high <= _UNIT:
        return "x.astype('float32') / 127.5 - 1 turns uint8 into floats from −1 to 1"
    if low >= 0 and high <= _UNIT:
        return "(255 * x).round().astype('uint8') turns floats from 0 to 1 into uint8"
    if low >= 0 and high <= _BYTES:
        return "x.round().astype('uint8') turns floats from 0 to 255 into uint8"
    return "convert the uint8 samples to floats of the same range as the others"


def _places(
    found: Sequence[tuple[Client, str, AnySplit]], clients: Sequence[Client], most: int = 4
) -> str:
    """Name clients, with the split where only some of a client's splits are meant."""
    names = []
    for client in clients:
        own = [name for one, name, _ in found if one is client]
        every = sum(len(split) > 0 for split in client.splits)
        names += [client.name] if len(own) == every else [f"{client.name} ({n})" for n in own]
    return _listed(names, most)


def _pixel_ranges(clients: Sequence[Client]) -> Iterator[Inconsistency]:
    """Report float pictures from 0 to 255 next to float pictures from 0 (or −1) to 1."""
    pictures = {
        client.name: split.x
        for client in clients
        if isinstance(split := client.train, Split)
        and split.x.dim() == 4
        and split.x.is_floating_point()
        and split.x.numel()
    }
    if len(pictures) < 2:
        return
    ends = {name: tuple(map(float, x.aminmax())) for name, x in pictures.items()}
    units = [name for name, (low, high) in ends.items() if low >= -_UNIT and high <= _UNIT]
    whole = [
        name
        for name, (low, high) in ends.items()
        if low >= 0 and _BYTE_LIKE < high <= _BYTES and bool((pictures[name] % 1 == 0).all())
    ]
    if units and whole:
        yield Inconsistency(
            "warning",
            f"pictures of two ranges: floats from 0 to 255 at {_listed(whole)}, floats up to 1 at "
            f"{_listed(units)}; bring all clients to one range, for example x / 255",
        )


def _class_names(federation: Federation) -> Iterator[Inconsistency]:
    """Report clients that call classes by numbers where others call them by words."""
    if federation.targets is not Targets.CLASS:
        return
    used = {c.name: names for c in federation.clients if (names := _used(c, federation.classes))}
    if text := different_words(used):
        yield Inconsistency(
            "error",
            f"the classes are named in two ways: {text}. Name them alike at every client (all "
            "names, or all numbers)",
        )


def _used(client: Client, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes that a client's targets have, where these are known."""
    found: set[int] = set()
    for split in client.splits:
        if split.y is None or not len(split):
            return ()
        found |= set(split.y.unique().tolist())
    return tuple(classes[place] for place in sorted(found) if 0 <= place < len(classes))


def different_words(names: Mapping[str, Sequence[str]]) -> str:
    """Describe clients whose names are numbers or truth values next to clients that have words.

    Args:
        names: The distinct names that each client has.

    Returns:
        A text such as "0, 1 at a; ill, well at b"; empty where the names are of one form. A single
        name of another form is a class of its own.

    Examples:
        >>> different_words({"a": ["0", "1"], "b": ["ill", "well"]})
        '0, 1 at a; ill, well at b'
        >>> different_words({"a": ["0", "1"], "b": ["other"]})
        ''
    """
    forms: dict[str, dict[str, Sequence[str]]] = {}
    for client, own in names.items():
        if own and len(kinds := {_form(name) for name in own}) == 1:
            forms.setdefault(kinds.pop(), {})[client] = own
    forms = {form: own for form, own in forms.items() if len({*chain(*own.values())}) > 1}
    if len(forms) < 2:
        return ""
    described = []
    for clients in forms.values():
        values = dict.fromkeys(name for own in clients.values() for name in own)
        described.append(f"{_listed([*values], 3)} at {_listed([*clients], 3)}")
    return "; ".join(described)


def _form(name: str) -> str:
    """Return whether a name is a truth value, a number or a word."""
    if name.strip().casefold() in ("true", "false"):
        return "truth value"
    try:
        float(name)
    except ValueError:
        return "word"
    return "number"


def _listed(names: Sequence[str], most: int = 4) -> str:
    """Name the first of many, and count the rest."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
