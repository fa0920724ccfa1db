"""A run as one page to hand on: HTML that needs nothing beside itself, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedbn.report import model_sections, result_sections
from fedbn.report.contents import RunContents, Scores, value_of
from fedbn.report.document import Chapter, Page
from fedbn.report.result_sections import comparison
from fedbn.text import counted


def page(runs: Sequence[RunContents]) -> Page:
    """Lay a report out: one chapter a run, and one that compares them where there are several."""
    found = [Scores(run) for run in runs]
    names = [run.name or run.path for run in runs]
    if len(set(names)) < len(names):
        names = [run.path for run in runs]
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
        result_sections.results(found),
        result_sections.learning(found),
        result_sections.gains(found),
        result_sections.convergence(found),
        model_sections.exchange(run),
        model_sections.statistics(run),
        model_sections.confusions(run),
        model_sections.examples(run),
        model_sections.again(run),
    )
    notes = (*run.notes, *(run.facts.remarks if run.facts else ()))
    return Chapter(key, name, _subtitle(found), sections, notes)


def _subtitle(found: Scores) -> str:
    config, summary = found.run.config, found.summary
    data = value_of(config, "data.path") or value_of(config, "data.name") or "data"
    model = value_of(config, "model.name") or "model"
    clients = max(0, len(summary.columns) - 1)
    counts = {"client": clients, "round": found.table.rounds, "seed": len(summary.seeds)}
    return " · ".join([str(data), str(model), *(counted(n, what) for what, n in counts.items())])
