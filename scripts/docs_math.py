"""A hook of mkdocs: formulas as MathML, which browsers show by themselves, without a network."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Put MathML in the place of each formula that arithmatex marked."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tag, formula = found.groups()
    shown = convert(html.unescape(formula), display="block" if tag == "div" else "inline")
    return f"<{tag}>{shown}</{tag}>"
