"""The items that can be reproduced: experiment files with a table `[reproduce]`.

An item is a function `(request) -> Outcome`; what only one item knows stands in the table
`[reproduce.options]`, which is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbn.errors import ConfigError, unknown
from fedbn.experiments import configuration
from fedbn.experiments.configuration import read_toml
from fedbn.registry import UNKNOWN, Held
from fedbn.results import aggregate
from fedbn.results.aggregate import Records
from fedbn.results.paired_tests import paired, welch
from fedbn.text import counted

ALL = "all"
TRIALS = 5
"""Of the paper, behind each mean and deviation."""


@dataclass(frozen=True)
class Entry:
    """One item: a file's name, the first line of its header, the file, and what is in it.

    `paper` has the paper's settings: the same, or, for a user's changed copy, those of the item of
    its name; None for an experiment that is not in the paper.
    """

    name: str
    title: str
    file: Path
    raw: Mapping[str, Any]
    paper: Mapping[str, Any] | None

    @property
    def how(self) -> Mapping[str, Any]:
        """The table `[reproduce]`."""
        return dict(self.raw["reproduce"])

    @property
    def by(self) -> str:
        """The module that does it."""
        return str(self.how.get("by", "trained"))


def entries() -> list[Entry]:
    """Read all items that come with the package."""
    titles, home = configuration.experiments(), configuration.folder()
    read = {name: read_toml(home / f"{name}.toml") for name in titles}
    return [
        Entry(name, titles[name], home / f"{name}.toml", raw, raw)
        for name, raw in read.items()
        if "reproduce" in raw
    ]


def find(name: str) -> list[Entry]:
    """Find one item by its name or by a file of the user's own, or all of them."""
    known = entries()
    if name.endswith(".toml"):
        file = Path(name)
        raw = read_toml(file)
        if not isinstance(raw.get("reproduce"), Mapping):
            raise ConfigError(f"{file}: no table [reproduce]; `fedbn run` trains any experiment")
        paper = next((entry.raw for entry in known if entry.name == file.stem), None)
        return [Entry(file.stem, configuration.title(file), file, raw, paper)]
    chosen = [entry for entry in known if name in (entry.name, ALL)]
    if not chosen:
        raise ConfigError(unknown("item", name, [*(entry.name for entry in known), ALL]))
    return chosen


@dataclass(frozen=True)
class Request:
    """All that an item needs."""

    name: str  # the item, as `digits-methods`; its tables and figures begin with it
    scale: str  # `quick`, `paper`, or that of the run shown
    folder: Path  # where to put figures, and run folders below it; it exists
    # The raw configuration after scale and overrides. `experiment["reproduce"]` is the file's
    # `[reproduce]` table, with `options` for what only this item knows.
    experiment: Mapping[str, Any]
    # Trains a raw configuration, or goes on with it, in a run folder below `folder`, and returns
    # its records; shows progress, may raise `Interrupted`.
    train: Callable[[Mapping[str, Any], Path], Records]
    tell: Callable[[str], None]  # says one line to the user
    workers: int = 0  # cores to use, 0 for all
    label: str = ""  # what every picture and table must say of scale and data; may be empty
    changes: tuple[str, ...] = ()  # how the settings differ from the paper's, a phrase each
    # Whether numbers may stand beside the paper's: an item of it, on its data.
    comparable: bool = True
    # Whether epochs, network or other settings are not the paper's; fewer seeds cut nothing.
    cut: bool = False
    # The run folder that is shown, where one was given; None for what is trained here.
    source: Path | None = None
    held: Held = UNKNOWN  # where the names in the configuration come from
    # What is known of the data of the runs that are shown, by setting.
    inputs: Mapping[str, Any] | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """What only this item knows: the table `[reproduce.options]`."""
        return dict(self.experiment.get("reproduce", {}).get("options", {}))

    def trained(self) -> Records:
        """Train what the experiment says, in the folder `run`."""
        return self.train(self._plain(), Path("run"))

    def _plain(self) -> dict[str, Any]:
        return {key: value for key, value in self.experiment.items() if key != "reproduce"}

    def several(self) -> dict[str, Any]:
        """The experiment that an item trains in several ways, or attacks; no run can be shown."""
        if self.source is not None:
            raise ConfigError(f"{self.name}: it is made of more than one run can hold; no --from")
        return self._plain()

    def table(
        self,
        name: str,
        title: str,
        columns: Iterable[str],
        rows: Iterable[Row],
        note: str = "",
        head: tuple[str, ...] = ("method",),
    ) -> Table:
        """Make a table that says how many seeds there are, and what must be said of scale."""
        seeds = counted(len(self.experiment["seeds"]), "seed") + "."
        said = " ".join(filter(None, [seeds, note, self.label and f"{self.label}."]))
        return Table(name, f"{self.name}: {title}", tuple(columns), tuple(rows), said, head, 1)


@dataclass(frozen=True)
class Cell:
    """Ours and, where it may be compared, the paper's: mean and standard deviation over seeds.

    `interval` is a simultaneous 95 % interval of ours, where the table is about differences; `cut`
    tells that epochs, data or network are not the paper's, so that there is none of the difference.

    Examples:
        >>> low, high = Cell(70.5, 0.4, 71.04, 0.31, seeds=5).apart
        >>> f"{low:.2f} to {high:.2f}"
        '-1.07 to -0.01'
    """

    ours: float
    std: float | None = None
    paper: float | None = None
    paper_std: float | None = None
    seeds: int = 1
    interval: tuple[float, float] | None = None
    cut: bool = False

    @classmethod
    def of(cls, values: Collection[float], paper: float | None = None) -> Cell:
        """Ours from one value a seed, and the paper's mean where it is known."""
        ours = aggregate.Cell.of(values)
        return cls(ours.mean, ours.std, paper, seeds=ours.seeds)

    @classmethod
    def gained(
        cls,
        new: Mapping[int, float],
        old: Mapping[int, float],
        family: int = 1,
        paper: float | None = None,
    ) -> Cell:
        """What one gains over another, seed by seed; its interval holds for `family` such cells."""
        gaps = [value - old[seed] for seed, value in new.items() if seed in old]
        test = paired(gaps, family)
        if len(gaps) < 2 or test.low is None or test.high is None:
            return cls.of(gaps, paper)
        return replace(cls.of(gaps, paper), interval=(test.low, test.high))

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.ours - self.paper

    @property
    def apart(self) -> tuple[float, float] | None:
        """The 95 % interval of ours minus the paper's, with both spreads; None without them."""
        if self.cut or self.std is None or self.paper is None or self.paper_std is None:
            return None
        ours = aggregate.Cell(self.ours, self.std, self.seeds)
        return welch(ours, aggregate.Cell(self.paper, self.paper_std, TRIALS))


@dataclass(frozen=True)
class Row:
    """One line of a table: its label, in as many parts as the table's `head`, and its cells."""

    label: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """A table of results; its files begin with `name`.

    `head` says what the parts of a row's label are, `note` what must be said below it: data, scale,
    which table of the paper. Intervals have signs, unless they are of ratios.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    head: tuple[str, ...] = ("method",)
    digits: int = 2
    signed: bool = True


@dataclass(frozen=True)
class Outcome:
    """What came out: tables (written by the caller), figures (written already) and remarks."""

    tables: tuple[Table, ...] = field(default=())
    figures: tuple[Path, ...] = field(default=())
    remarks: tuple[str, ...] = field(default=())


_TABLE = "reproduce.options"


def options_of(
    given: Mapping[str, Any], defaults: Mapping[str, Any], counts: Iterable[str] = ()
) -> dict[str, Any]:
    """Fill up what was given with an item's defaults, which have all its keys; check the counts."""
    for key in given:
        if key not in defaults:
            legal = [f"{_TABLE}.{name}" for name in defaults]
            raise ConfigError(unknown("key", f"{_TABLE}.{key}", legal))
    found = {**defaults, **given}
    for key in counts:
        if isinstance(found[key], bool) or not isinstance(found[key], int) or found[key] < 1:
            raise refused(key, found[key], "legal are whole numbers from 1")
    return found


def refused(key: str, value: Any, why: str) -> ConfigError:
    """The error for an option's value."""
    return ConfigError(f"{_TABLE}.{key} = {value!r}: {why}")
