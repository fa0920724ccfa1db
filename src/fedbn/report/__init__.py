"""A run as one page to hand on: HTML that needs nothing beside itself, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedbn.report import model_sections, result_sections
from fedbn.report.contents import RunContents
from fedbn.report.document import Chapter, Page
from fedbn.results.aggregate import MEANS
from fedbn.text import counted

_MOST_WARNINGS = 20  # above the results; all of them are in the last section


def page(runs: Sequence[RunContents]) -> Page:
    """Lay a report out: one chapter a run, and one that compares them where there are several."""
    names = [run.name or run.path for run in runs]
    if len(set(names)) < len(names):
        names = [run.path for run in runs]
    named = zip(runs, names, strict=True)
    chapters = [_chapter(run, f"r{i}", name) for i, (run, name) in enumerate(named, 1)]
    if len(runs) == 1:
        return Page(chapters[0].title, chapters[0].subtitle, (*chapters,))
    first = Chapter("all", "Comparison", "", (result_sections.comparison(names, runs),))
    title = f"{counted(len(runs), 'run')} compared"
    return Page(title, ", ".join(names[:8]), (first, *chapters))


def _chapter(run: RunContents, key: str, name: str) -> Chapter:
    sections = (
        result_sections.results(run),
        result_sections.learning(run),
        result_sections.gains(run),
        result_sections.convergence(run),
        model_sections.exchange(run),
        model_sections.statistics(run),
        model_sections.confusions(run),
        model_sections.examples(run),
        model_sections.again(run),
    )
    remarks = run.facts.remarks if run.facts else ()
    notes = tuple(dict.fromkeys([*run.notes, *remarks, *run.warnings[:_MOST_WARNINGS]]))
    if (more := len(run.warnings) - _MOST_WARNINGS) > 0:
        notes += (f"{counted(more, 'more warning')}: see the section on the configuration",)
    said, summary = run.settings, run.summary
    data = said.get("data.path") or said.get("data.name") or "data"
    model = said.get("model.name") or "model"
    clients = sum(name not in MEANS for name in summary.columns)
    counts = {"client": clients, "round": run.table.rounds, "seed": len(summary.seeds)}
    words = [str(data), str(model), *(counted(n, what) for what, n in counts.items())]
    return Chapter(key, name, " · ".join(words), sections, notes)
