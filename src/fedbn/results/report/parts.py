"""What a page consists of, before it is HTML or Markdown: sections of tables, figures and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Cell:
    """A cell of a table; the best of its column is marked."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Figures:
    """Drawings side by side, with one legend."""

    panels: tuple[Markup, ...]
    legend: tuple[tuple[Markup, str], ...] = ()
    kind: str = "figures"


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
    kind: str = "tiles"


@dataclass(frozen=True)
class Pictures:
    """Examples of one domain."""

    title: str
    pictures: tuple[Markup, ...]
    kind: str = "pictures"


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
    kind: str = "code"


@dataclass(frozen=True)
class Beside:
    """A drawing and its numbers, side by side where the page is wide enough."""

    parts: tuple[Figures | Table, ...]
    kind: str = "beside"


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


def remark(text: str) -> Text:
    """Make a remark that stands out."""
    return Text(text, kind="remark")


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell | str]], folded: bool = False
) -> Table:
    """Make a table of cells and plain texts."""
    cells = [tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows]
    return Table(caption, tuple(header), tuple(cells), folded)
