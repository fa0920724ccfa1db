"""A page: sections of tables, figures and texts, as HTML and as Markdown.

The HTML asks nobody for anything: names, paths and values are escaped wherever they stand, and the
page's own policy forbids everything but its inline style, its one script (by its hash) and pictures
inside the file. In Markdown, what only a drawing shows is left out.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fedbn.results.result_table import Shown
from fedbn.text import harmless, short


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Shown, ...], ...]
    folded: bool = False


@dataclass(frozen=True)
class Figures:
    """Drawings side by side, with one legend."""

    panels: tuple[Markup, ...]
    legend: tuple[tuple[Markup, str], ...] = ()


@dataclass(frozen=True)
class Tile:
    """One number to remember."""

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Tiles:
    """The numbers to remember."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Pictures:
    """Examples of one domain."""

    title: str
    pictures: tuple[Markup, ...]


@dataclass(frozen=True)
class Text:
    """A sentence or two; a remark stands out."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    caption: str
    text: str
    language: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Beside:
    """A drawing and its numbers, side by side where the page is wide enough."""

    parts: tuple[Figures | Table, ...]


Part = Table | Figures | Tiles | Pictures | Text | Code | Beside


@dataclass(frozen=True)
class Section:
    """A heading, a sentence on how to read what follows, and that."""

    key: str
    title: str
    lead: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Chapter:
    """One run, or the comparison of several."""

    key: str
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[Shown | str]], folded: bool = False
) -> Table:
    """Make a table of cells and plain texts."""
    cells = [tuple(c if isinstance(c, Shown) else Shown(c) for c in row) for row in rows]
    return Table(caption, tuple(header), tuple(cells), folded)


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    chapters: tuple[Chapter, ...]


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
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["name"] = lambda text: short(text, _LONGEST)
    environment.filters["lines"] = lambda text: "\n".join(
        short(t, 10_000) for t in text.splitlines()
    )
    style = Markup(_file("report.css"))
    return environment.get_template("report.html").render(
        page=page, version=version, style=style, script=Markup(script), digest=digest
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def markdown(page: Page, version: str) -> str:
    """Render a report."""
    several = len(page.chapters) > 1
    lines = [f"# {_name(page.title)}", _name(page.subtitle)]
    for chapter in page.chapters:
        if several:
            lines += [f"## {_name(chapter.title)}", _name(chapter.subtitle)]
        lines += [f"> {_name(note)}" for note in chapter.notes]
        for section in chapter.sections:
            if texts := [text for part in section.parts for text in _part(part)]:
                title = f"{'###' if several else '##'} {_name(section.title)}"
                lines += [title, _name(section.lead), *texts]
    lines.append(f"Made by fedbn {version}. The HTML report has the drawings.")
    return "\n\n".join(line for line in lines if line) + "\n"


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Beside):
        for one in part.parts:
            yield from _part(one)
    elif isinstance(part, Table):
        rows = [[f"**{_name(c.text)}**" if c.best else _name(c.text) for c in r] for r in part.rows]
        lines = [[_name(title) for title in part.header], *rows]
        drawn = [f"| {' | '.join(line)} |" for line in lines]
        yield f"**{_name(part.caption)}**"
        yield "\n".join([drawn[0], "|" + "---|" * len(part.header), *drawn[1:]])
    elif isinstance(part, Tiles):
        yield "\n".join(
            f"- **{_name(t.value)}** {_name(t.label)} ({_name(t.detail)})" for t in part.tiles
        )
    elif isinstance(part, Text):
        yield _name(part.text)
    elif isinstance(part, Code):
        longest = max(map(len, re.findall("`+", part.text)), default=0)
        fence = "`" * max(3, longest + 1)
        yield f"**{_name(part.caption)}**"
        yield f"{fence}{part.language}\n{part.text.rstrip()}\n{fence}"


def _name(text: str) -> str:
    return harmless(short(text, 500))
