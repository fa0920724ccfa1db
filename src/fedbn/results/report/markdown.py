"""The report as Markdown: the same sections and tables; what only a drawing shows is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedbn.markdown import harmless
from fedbn.results.report.page import Page
from fedbn.results.report.parts import Beside, Cell, Code, Part, Section, Table, Text, Tiles
from fedbn.results.report.svg import short


def markdown(page: Page, version: str) -> str:
    """Render a report."""
    several = len(page.chapters) > 1
    lines = [f"# {_name(page.title)}", _name(page.subtitle)]
    for chapter in page.chapters:
        if several:
            lines += [f"## {_name(chapter.title)}", _name(chapter.subtitle)]
        lines += [f"> {_name(note)}" for note in chapter.notes]
        for section in chapter.sections:
            lines += _section(section, "###" if several else "##")
    lines.append(f"Made by fedbn {version}. The HTML report has the drawings.")
    return "\n\n".join(line for line in lines if line) + "\n"


def _section(section: Section, level: str) -> Iterator[str]:
    texts = [text for part in section.parts for text in _part(part)]
    if texts:
        yield f"{level} {_name(section.title)}"
        yield _name(section.lead)
        yield from texts


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Beside):
        for one in part.parts:
            yield from _part(one)
    elif isinstance(part, Table):
        yield f"**{_name(part.caption)}**"
        yield _table(part)
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


def _table(part: Table) -> str:
    rows = [[_cell(cell) for cell in row] for row in part.rows]
    lines = [[_name(title) for title in part.header], *rows]
    drawn = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([drawn[0], "|" + "---|" * len(part.header), *drawn[1:]])


def _cell(cell: Cell) -> str:
    return f"**{_name(cell.text)}**" if cell.best else _name(cell.text)


def _name(text: str) -> str:
    return harmless(short(text, 500))
