r"""Markdown from words of others: names of clients, paths and values never become markup.

>>> table(["client", "score"], [["a|b", "1"]])
'| client | score |\n|---|---|\n| a\\|b | 1 |'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~$&])")
_LINK = re.compile(r"(?i)(https?|ftp|mailto|www)([:.])")


def harmless(text: object) -> str:
    r"""Make a text one line that Markdown shows as it is.

    Examples:
        >>> harmless("<b>[x](http://y)")
        '\\<b\\>\\[x\\](http\\://y)'
    """
    line = "".join(sign if sign.isprintable() else "?" for sign in str(text))
    return _LINK.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", line))


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Draw a table; every cell is made harmless."""
    lines = [_row(header), "|" + "---|" * len(header), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(harmless(cell) for cell in cells)} |"
