r"""Words for people: names of others shown safely in a line, Markdown or CSV; numbers said.

>>> table(["client", "score"], [["a|b", "1"]])
'| client | score |\n|---|---|\n| a\\|b | 1 |'
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~$&])")
_LINK = re.compile(r"(?i)(https?|ftp|mailto|www)([:.])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf)")


def one_line(text: object) -> str:
    """Put a text of several lines on one.

    Examples:
        >>> one_line("  a   b ")
        'a b'
    """
    return " ".join(str(text).split())


def shown(text: object) -> str:
    r"""Keep a text on one line, whatever names it quotes: signs that nobody sees are escaped.

    Examples:
        >>> shown("a\nb")
        'a\\nb'
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(text))


def short(text: str, most: int = 18) -> str:
    """Shorten a name: it loses its middle, because ends tell names apart.

    Examples:
        >>> short("St. Mary's Hospital, Radiology", 12), short("client-000001", 9)
        ('St. Ma…ology', 'clie…0001')
    """
    whole = shown(text)
    end = (most - 1) // 2
    return whole if len(whole) <= most else f"{whole[: most - 1 - end]}…{whole[len(whole) - end :]}"


def harmless(text: object) -> str:
    r"""Make a text one line that Markdown shows as it is.

    Examples:
        >>> harmless("<b>[x](http://y)")
        '\\<b\\>\\[x\\](http\\://y)'
    """
    return _LINK.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", shown(text)))


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Draw a table in Markdown; every cell is made harmless."""
    lines = [f"| {' | '.join(map(harmless, cells))} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def no_formula(cell: str) -> str:
    """Put an apostrophe before what a spreadsheet would run as a formula; numbers are none.

    Examples:
        >>> [no_formula(cell) for cell in ("=1+1", "-0.5", "-a", "b")]
        ["'=1+1", '-0.5', "'-a", 'b']
    """
    risky = cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if risky else cell


def csv_text(lines: Iterable[Iterable[str]]) -> str:
    r"""Write a table as CSV that is safe to open in a spreadsheet.

    Examples:
        >>> csv_text([["a, b", "=1+1"]])
        '"a, b",\'=1+1\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(no_formula, line) for line in lines)
    return text.getvalue()


def flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested tables by their dotted keys; an empty table is a leaf.

    Examples:
        >>> dict(flat({"training": {"lr": 0.1}, "data": {}}))
        {'training.lr': 0.1, 'data': {}}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def plain(value: Any) -> Any:
    """Make a value one that JSON knows: lists of arrays and tuples, None of what is not finite.

    Examples:
        >>> plain({"a": (1, float("nan"))})
        {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # an array, which is not imported here
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def bytes_said(count: float) -> str:
    """Say a number of bytes.

    Examples:
        >>> bytes_said(999), bytes_said(14_570), bytes_said(2_345_678_901)
        ('999 B', '14.6 kB', '2.35 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.3g} {units[0]}"


def points_said(points: float) -> str:
    """Say a difference of percentages, with its sign.

    Examples:
        >>> points_said(3.14159), points_said(-0.5), points_said(0.01)
        ('+3.1', '−0.5', '0.0')
    """
    text = f"{points:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def counted(count: int, thing: str, things: str = "") -> str:
    """Say how many.

    Examples:
        >>> counted(1, "client"), counted(1200, "client")
        ('1 client', '1,200 clients')
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Name the first of many, and say how many are left.

    Examples:
        >>> listed(["a", "b"]), listed(["a", "b", "c"], 2)
        ('a, b', 'a, b and 1 more')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def spread(things: Sequence[T], most: int) -> list[T]:
    """Keep at most so many, evenly spread, the first and the last among them.

    Examples:
        >>> spread(range(10), 4)
        [0, 3, 6, 9]
    """
    if len(things) <= most:
        return list(things)
    return [things[round(i * (len(things) - 1) / (most - 1))] for i in range(most)]
