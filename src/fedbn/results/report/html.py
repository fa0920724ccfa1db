"""The report as one HTML file that asks nobody for anything.

Names, paths and values are escaped wherever they stand, and the page's own policy forbids
everything but its inline style, its one script (by its hash) and pictures inside the file.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fedbn.results.report.page import Page
from fedbn.results.report.svg import short

_LONGEST = 200


def html(page: Page, version: str) -> str:
    """Render a report."""
    script = _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["name"] = lambda text: short(text, _LONGEST)
    environment.filters["lines"] = _lines
    return environment.get_template("report.html").render(
        page=page,
        version=version,
        style=Markup(_file("report.css")),
        script=Markup(script),
        digest=digest,
    )


def _lines(text: str) -> str:
    """Keep the lines of a listing, and what cannot be shown out of them."""
    return "\n".join(short(line, 10_000) for line in text.splitlines())


def _file(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
