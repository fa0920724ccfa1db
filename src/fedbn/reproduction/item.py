"""What an item of the paper is asked for and gives back: a function `(request) -> Outcome`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Scale = Literal["quick", "paper"]
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """All that an item needs.

    Attributes:
        name: The item, as `digits-methods`; its tables and figures begin with it.
        scale: `quick` or `paper`.
        folder: Where to put figures, and run folders below it; it exists.
        experiment: The raw configuration after scale and overrides. `experiment["reproduce"]` is
            the file's `[reproduce]` table, with `options` for what only this item knows.
        train: Trains a raw configuration, or goes on with it, in a run folder below `folder`, and
            returns its records; shows progress, may raise `Interrupted`.
        tell: Says one line to the user.
        workers: Cores to use, 0 for all.
        label: What every picture and table must say of scale and data; may be empty.
        changes: How the settings differ from the paper's, a phrase each.
        comparable: Whether numbers may stand beside the paper's: an item of it, on its data.
        source: The run folder that is shown, where one was given; None for what is trained here.
    """

    name: str
    scale: Scale
    folder: Path
    experiment: Mapping[str, Any]
    train: Callable[[Mapping[str, Any], Path], Records]
    tell: Callable[[str], None]
    workers: int = 0
    label: str = ""
    changes: tuple[str, ...] = ()
    comparable: bool = True
    source: Path | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """What only this item knows: the table `[reproduce.options]`."""
        found: Mapping[str, Any] = self.experiment.get("reproduce", {}).get("options", {})
        return found


@dataclass(frozen=True)
class Cell:
    """Ours and, where it may be compared, the paper's: mean and standard deviation over seeds.

    Examples:
        >>> Cell(70.5, 0.4, 71.04, 0.31).within
        True
    """

    ours: float
    std: float | None = None
    paper: float | None = None
    paper_std: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.ours - self.paper

    @property
    def within(self) -> bool | None:
        """Whether ours lies within two of the paper's standard deviations; None without one."""
        if self.difference is None or self.paper_std is None:
            return None
        return abs(self.difference) <= 2 * self.paper_std


@dataclass(frozen=True)
class Row:
    """One line of a table: its label, in as many parts as the table's `head`, and its cells."""

    label: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        name: The stem of its files, as `digits-methods`.
        title: One line: what it shows.
        columns: Names of the cells of a row.
        rows: Its lines.
        note: What must be said below it: data, scale, which table of the paper.
        head: What the parts of a row's label are.
        digits: Decimals to show.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    head: tuple[str, ...] = ("method",)
    digits: int = 2


@dataclass(frozen=True)
class Outcome:
    """What came out: tables (written by the caller), figures (written already) and remarks.

    Attributes:
        tables: Written as CSV, Markdown and LaTeX.
        figures: SVG and PNG files below the request's folder.
        remarks: Sentences for the user: what the numbers say, what must be known of the data.
    """

    tables: tuple[Table, ...] = field(default=())
    figures: tuple[Path, ...] = field(default=())
    remarks: tuple[str, ...] = field(default=())
