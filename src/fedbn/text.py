r"""Markdown from words of others: names of clients, paths and values never become markup.

>>> table(["client", "score"], [["a|b", "1"]])
'| client | score |\n|---|---|\n| a\\|b | 1 |'

Numbers as a reader wants them, the same in HTML and Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~$&])")
_LINK = re.compile(r"(?i)(https?|ftp|mailto|www)([:.])")


def one_line(text: object) -> str:
    """Put a text of several lines on one.

    Examples:
        >>> one_line("  a   b ")
        'a b'
    """
    return " ".join(str(text).split())


def printable(text: object) -> str:
    r"""Keep a text on one line, whatever names it quotes: signs that nobody sees are escaped.

    Examples:
        >>> printable("a\nb")
        'a\\nb'
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(text))


def harmless(text: object) -> str:
    r"""Make a text one line that Markdown shows as it is.

    Examples:
        >>> harmless("<b>[x](http://y)")
        '\\<b\\>\\[x\\](http\\://y)'
    """
    return _LINK.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", printable(text)))


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Draw a table; every cell is made harmless."""
    lines = [_row(header), "|" + "---|" * len(header), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(harmless(cell) for cell in cells)} |"


T = TypeVar("T")


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


def spread(things: Sequence[T], most: int) -> list[T]:
    """Keep at most so many, evenly spread, the first and the last among them.

    Examples:
        >>> spread(range(10), 4)
        [0, 3, 6, 9]
    """
    if len(things) <= most:
        return list(things)
    return [things[round(i * (len(things) - 1) / (most - 1))] for i in range(most)]
