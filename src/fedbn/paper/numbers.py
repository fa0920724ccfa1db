"""What was trained, and which of the paper's numbers (`paper.toml`) may stand beside it."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedbn.core.metric import first_metric
from fedbn.core.statistics_kinds import RUNNING
from fedbn.errors import ConfigError, unknown
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import named_jobs, settings
from fedbn.experiments.schema import Experiment, ReproduceSection
from fedbn.experiments.sources import load_federation
from fedbn.paper.items import Request
from fedbn.results import statistics_remarks
from fedbn.results.aggregate import (
    Cell,
    Curve,
    Key,
    Measure,
    Records,
    Report,
    Scores,
    ScoreTable,
    lacking,
)  # fmt: skip
from fedbn.runs.folder import RunFolder
from fedbn.runs.messages import grouped, read_warnings

_FILE = Path(__file__).with_name("paper.toml")
_PRINTED = re.compile(r"(\d+\.\d+)(?: \((\d+\.\d+)\))?")


class Number(NamedTuple):
    """A printed number, in per cent."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper; its numbers by method, setting (its parts) and domain.

    `other_order` tells that it is another table with its columns named in another order.
    """

    label: str
    title: str
    note: str
    other_order: bool
    numbers: Mapping[tuple[str, frozenset[str], str], Number]

    def find(self, method: str, domain: str, setting: str = "default") -> Number | None:
        """Look a number up; the parts of a setting may come in any order.

        Examples:
            >>> table("digits-batch-epochs").find("fedbn", "svhn", "local_epochs=1,batch_size=10")
            Number(mean=76.18, std=None)
        """
        return self.numbers.get((method, _parts(setting), domain))


@cache
def table(name: str) -> PaperTable:
    """Read one entry of the file."""
    found = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    if name not in found:
        raise ConfigError(f"reproduce.paper: {unknown('table', name, found)}")
    entry = found[name]
    note, other = entry.get("note", ""), entry.get("other_order", False)
    return PaperTable(entry["label"], entry["title"], note, other, dict(_numbers(entry)))


def _numbers(entry: Mapping[str, Any]) -> Iterator[tuple[tuple[str, frozenset[str], str], Number]]:
    for row in entry["rows"]:
        for column, printed in zip(entry["columns"], row["values"], strict=True):
            setting = row.get("setting", entry.get("setting", "default"))
            if "=" in column:
                setting = column
            match = _PRINTED.fullmatch(printed)
            assert match, printed
            number = Number(float(match[1]), float(match[2]) if match[2] else None)
            yield (row["method"], _parts(setting), row.get("domain", column)), number


def _parts(setting: str) -> frozenset[str]:
    return frozenset(setting.split(","))


@dataclass(frozen=True)
class Study:
    """A finished training and what may be said of it.

    `clients` has the numbers of finished jobs, a column a client; `table` the same, a column a
    domain; `scores` the final accuracy by row, domain and seed. `papers`, the
    paper's tables to compare with, are none where the data is another; domains in `stand_ins`
    are never compared.
    """

    experiment: Experiment
    how: ReproduceSection
    clients: ScoreTable
    table: ScoreTable
    scores: Mapping[Key, Scores]
    epochs: Mapping[str, int]
    papers: tuple[PaperTable, ...]
    stand_ins: tuple[str, ...]
    cut: bool
    data_remarks: tuple[str, ...]
    remarks: tuple[str, ...]

    def paper(self, key: Key, domain: str) -> Number | None:
        """The paper's number, where ours may be compared with it.

        The paper scores models with running statistics.
        """
        if domain in self.stand_ins or key.statistics != RUNNING:
            return None
        tables = self.papers if len(self.papers) == 1 else self.in_order
        found = (paper.find(key.method, domain, key.setting) for paper in tables)
        return next((number for number in found if number is not None), None)

    @property
    def in_order(self) -> tuple[PaperTable, ...]:
        """The paper's tables as they are printed."""
        return tuple(paper for paper in self.papers if not paper.other_order)

    @property
    def settings(self) -> list[str]:
        """The settings, in their order."""
        return list(dict.fromkeys(key.setting for key in self.scores))

    @property
    def cells(self) -> dict[Key, dict[str, Cell]]:
        """Mean and deviation of the scores, setting by setting: methods stand beside each other."""
        keys = sorted(self.scores, key=lambda key: self.settings.index(key.setting))
        return {
            key: {name: Cell.of(seeds.values()) for name, seeds in self.scores[key].items()}
            for key in keys
        }

    def curves(
        self, key: Key, column: str, label: str, measure: Measure | None = None
    ) -> list[Curve]:
        """A method's curve over epochs, under a name; none where it was not measured."""
        epochs = self.epochs.get(key.setting, 1)
        return [curve.over(epochs, label) for curve in self.table.curves(column, measure, [key])]


def trained_study(request: Request) -> tuple[Request, Study]:
    """Train what is asked for; the request comes back with what every picture must say."""
    study = studied(request, request.trained())
    place = f"{study.how.place[:1].upper()}{study.how.place[1:]}. " if study.how.place else ""
    said = "; ".join([request.label or "The paper's settings", *study.data_remarks])
    return replace(request, label=place + said), study


def studied(request: Request, records: Records) -> Study:
    """Put together what a request's training gave."""
    experiment = checked(request.experiment, request.name, request.held)
    assert experiment.reproduce is not None
    done, unfinished = _finished(experiment, records)
    run = request.source or request.folder / "run"
    environment = RunFolder(run).read_environment()
    metric = first_metric(environment)
    facts = _data_facts(request.inputs or environment.get("inputs"), experiment)
    papers = tuple(table(name) for name in experiment.reproduce.paper)
    said = [*facts["remarks"]]
    if papers and not request.comparable:
        said.append("not the paper's data: no comparison with its numbers")
    clients, report = ScoreTable.of(done, metric), experiment.evaluation.report
    domains = clients.by_domain()
    return Study(
        experiment=experiment,
        how=experiment.reproduce,
        clients=clients,
        table=domains,
        scores=domains.scores(report),
        epochs={
            s.name: 1 if (training := s.experiment.training).local_steps else training.local_epochs
            for s in settings(experiment)
        },
        papers=papers if request.comparable else (),
        stand_ins=tuple(facts["stand_ins"]),
        cut=request.cut or bool(facts["stand_ins"]),  # whose weights are in everybody's
        data_remarks=tuple(dict.fromkeys(said)),
        remarks=(*unfinished, *lacking(clients, report), *_of_statistics(clients, report, run)),
    )


def _of_statistics(table: ScoreTable, report: Report, run: Path) -> Iterator[str]:
    """Say what is to be said of rows that are scored with other than running statistics."""
    warnings = grouped(read_warnings(RunFolder(run)))
    yield from statistics_remarks.reasons(table, report, warnings)
    yield from statistics_remarks.differences(
        [*table.histories], table.scores(report), table.metric
    )
    yield from statistics_remarks.same_training(table, report)
    yield from statistics_remarks.meanings(key.statistics for key in table.histories)


def _finished(experiment: Experiment, records: Records) -> tuple[Records, tuple[str, ...]]:
    """Leave out jobs that have not ended, and name them."""
    last: dict[tuple[str, str, int], int] = defaultdict(int)
    for record in records:
        key = (record["method"], record["setting"], record["seed"])
        last[key] = max(last[key], record["round"])
    short = {
        key: (last[key], setting.experiment.training.total_rounds)
        for key, (_, setting) in named_jobs(experiment).items()
        if last[key] < setting.experiment.training.total_rounds
    }
    done = [r for r in records if (r["method"], r["setting"], r["seed"]) not in short]
    if not done:
        raise ConfigError("no method, seed and setting of this run has ended yet: nothing to show")
    named = {f"{method} {setting} seed {n}": at for (method, setting, n), at in short.items()}
    begun = [f"{name}, round {now} of {rounds}" for name, (now, rounds) in named.items() if now]
    never = [name for name, (now, _) in named.items() if not now]
    said = [f"left out, not finished: {text}" for text in begun]
    return done, (*said, *([f"left out, not begun: {', '.join(never)}"] if never else []))


def _data_facts(recorded: Mapping[str, Any] | None, experiment: Experiment) -> dict[str, list[str]]:
    """What runs remember of their data; where they remember nothing, ask the data itself."""
    parts: Sequence[Mapping[str, Any]] = list(recorded.values()) if recorded else []
    if not parts or any("stand_ins" not in part for part in parts):
        federation = load_federation(settings(experiment)[0].experiment.data)
        parts = [{"remarks": federation.remarks, "stand_ins": federation.stand_ins}]
    return {
        name: list(dict.fromkeys(each for part in parts for each in part[name]))
        for name in ("remarks", "stand_ins")
    }
