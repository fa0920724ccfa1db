"""What a person reads before approving an experiment: all of it, and what changed.

The text comes from the server. Every character that a terminal would act on is escaped, and every
line fits into 80 columns, whoever wrote the names in it.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from fedbn.flower.approvals import Asked
from fedbn.text import shown

_WIDTH = 80
_KEYS = 36  # columns for the key, if it is that short
_MOST = 400  # characters of a value, unless all are asked for
_AROUND = 20  # characters before the first that differs
_WORD_LENGTH = 24  # a longer word is cut at the end of a line
_PLAIN = re.compile(r"[\w ]+")
_WORD = re.compile(r"(?!(true|false|null)$)[a-zA-Z_][^\"]*")
# The order of reading; what is not named here follows.
_FIRST = (
    "methods", "rules", "method", "seeds", "training.rounds", "training.local_epochs",
    "training.local_steps", "training.batch_size", "training.last_batch", "training.optimizer",
    "training.optimizer_args", "training.lr", "training.lr of the first round",
    "training.lr of the last round", "training.lowest lr", "training.highest lr",
    "training.schedule", "training", "model", "contract", "data", "task", "evaluation",
)  # fmt: skip


def values_of(asked: Asked) -> dict[str, str]:
    """Return every value of an experiment as text, by its key, in the order of reading."""
    found = dict(_flat(asked.experiment, ""))
    return dict(sorted(found.items(), key=lambda one: (_place(one[0]), one[0])))


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested tables; a list of named tables is one by its names."""
    named = isinstance(value, list) and all(isinstance(one, Mapping) for one in value)
    if named and value and len({str(one.get("name")) for one in value}) == len(value):
        yield f"{key} (in order)", _text([one.get("name") for one in value])
        value = {str(one.pop("name", None)): one for one in map(dict, value)}
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _flat(below, f"{key}.{_name(name)}" if key else _name(name))
    else:
        yield key, _text(value)


def _name(name: str) -> str:
    """Quote a name that could be taken for a longer key, so that no two values have one key."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _text(value: Any) -> str:
    """Write a value so that no two values look alike: a word is quoted if it reads as another."""
    if value is None:
        return "none"
    if isinstance(value, str) and _WORD.fullmatch(value) and value != "none":
        return value
    return json.dumps(value, ensure_ascii=False)


def _place(key: str) -> int:
    places = [n for n, first in enumerate(_FIRST) if key == first or key.startswith(f"{first}.")]
    return max(places, key=lambda n: len(_FIRST[n]), default=len(_FIRST))


def table(asked: Asked, full: bool = False) -> Iterator[str]:
    """Yield the lines of a table of everything that is approved."""
    for key, value in values_of(asked).items():
        yield from _row(key, _cut(value, full))


def differences(asked: Asked, before: Asked | None, full: bool = False) -> Iterator[str]:
    """Yield the lines that say what changed since the experiment that was approved last."""
    if before is None:
        yield "No experiment was approved here before: all of it is new."
        return
    new, old = values_of(asked), values_of(before)
    changed = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    since = f"Changed since {before.hash[:16]}, approved {before.approved}:"
    yield from _wrapped(since, "", "    ")
    for key in changed or ():
        if key not in old:
            yield from _wrapped(f"new      {_excerpt(key)}", "  ", "    ")
            yield from _wrapped(_cut(new[key], full), "    + ", "      ")
        elif key not in new:
            yield from _wrapped(f"gone     {_excerpt(key)}", "  ", "    ")
            yield from _wrapped(_cut(old[key], full), "    - ", "      ")
        else:
            first, second = (
                _from(value, old[key], new[key], full) for value in (old[key], new[key])
            )
            line = f"  changed  {shown(_excerpt(key))}: {shown(first)} → {shown(second)}"
            if columns(line) <= _WIDTH:
                yield line
                continue
            yield from _wrapped(f"changed  {_excerpt(key)}", "  ", "    ")
            yield from _wrapped(first, "    - ", "      ")
            yield from _wrapped(second, "    + ", "      ")
    if not changed:
        yield "  nothing"


def _row(key: str, value: str) -> Iterator[str]:
    name = shown(_excerpt(key))
    if columns(name) > _KEYS:
        yield from _wrapped(_excerpt(key), "  ", "    ")
        yield from _wrapped(value, " " * (_KEYS + 4), " " * (_KEYS + 4))
    else:
        lead = f"  {name}{' ' * (_KEYS + 2 - columns(name))}"
        yield from _wrapped(value, lead, " " * (_KEYS + 4))


def _cut(value: str, full: bool) -> str:
    """Shorten a long value, and say so: nothing is left out unseen."""
    if full or len(value) <= _MOST:
        return value
    return f"{value[:_MOST]}… ({_rest(value)})"


def _from(value: str, old: str, new: str, full: bool) -> str:
    """Shorten a long value to where it begins to differ."""
    if full or max(len(old), len(new)) <= _MOST:
        return value
    pairs = enumerate(zip(old, new, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))
    start = max(0, same - _AROUND)
    lead = "…" if start else ""
    return f"{lead}{value[start : start + _MOST]}… (from character {start:,}; {_rest(value)})"


def _rest(value: str) -> str:
    digest = hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{len(value):,} characters, sha256 {digest}; --full shows all"


def _excerpt(key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:8]
    return key if len(key) <= _MOST else f"{key[:_MOST]}… (sha256 {digest})"


def columns(text: str) -> int:
    """Return at most how many columns a text takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _wrapped(text: str, lead: str, indent: str) -> Iterator[str]:
    """Yield a text that nobody trusts in lines that fit, each sign of it visible."""
    line, start = lead, len(lead)
    for sign in shown(text):
        if columns(line + sign) > _WIDTH:
            space = line.rfind(" ", max(start, len(line) - _WORD_LENGTH)) + 1
            rest = line[space:] if space else ""
            yield line[:space] if space else line
            line, start = indent + rest, len(indent)
        line += sign
    yield line
