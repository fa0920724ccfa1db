"""The whole report: chapters of sections, the same for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbn.results.report import insides, origin, outcomes, progress, sharing
from fedbn.results.report.contents import RunContents
from fedbn.results.report.parts import Chapter
from fedbn.results.report.scores import Scores, value_of
from fedbn.results.report.several import comparison
from fedbn.results.report.words import counted


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    chapters: tuple[Chapter, ...]


def page(runs: Sequence[RunContents]) -> Page:
    """Lay a report out: one chapter a run, and one that compares them where there are several."""
    found = [Scores(run) for run in runs]
    names = _names(runs)
    chapters = [
        _chapter(s, f"r{i}", n) for i, (s, n) in enumerate(zip(found, names, strict=True), 1)
    ]
    if len(runs) == 1:
        only = chapters[0]
        return Page(f"{only.title}", only.subtitle, (only,))
    first = Chapter("all", "Comparison", "", (comparison(names, found),))
    title = f"{counted(len(runs), 'run')} compared"
    return Page(title, ", ".join(names[:8]), (first, *chapters))


def _chapter(found: Scores, key: str, name: str) -> Chapter:
    run = found.run
    sections = (
        outcomes.results(found),
        progress.learning(found),
        progress.gains(found),
        progress.convergence(found),
        sharing.exchange(run),
        insides.statistics(run),
        insides.confusions(run),
        insides.examples(run),
        origin.again(run),
    )
    return Chapter(key, name, _subtitle(found), sections, _notes(run))


def _notes(run: RunContents) -> tuple[str, ...]:
    remarks = run.facts.remarks if run.facts else ()
    return (*run.notes, *remarks)


def _subtitle(found: Scores) -> str:
    config, summary = found.run.config, found.summary
    data = value_of(config, "data.path") or value_of(config, "data.name") or "data"
    model = value_of(config, "model.name") or "model"
    last = max((r["round"] for r in found.run.records), default=0)
    clients = max(0, len(summary.columns) - 1)
    parts = [str(data), str(model), counted(clients, "client"), counted(last, "round")]
    return " · ".join([*parts, counted(len(summary.seeds), "seed")])


def _names(runs: Sequence[RunContents]) -> list[str]:
    """Short names of the folders; whole paths where two would be the same."""
    short = [run.name or run.path for run in runs]
    return short if len(set(short)) == len(short) else [run.path for run in runs]
