"""What the records of a run come to, once for all sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from markupsafe import Markup

from fedbn.results.report.contents import RunContents
from fedbn.results.report.lines import Look, looks, sample
from fedbn.results.report.series import Curve, Duel, accuracy_curves, duel
from fedbn.results.style import colours
from fedbn.results.summary import MEAN, Row, Summary, summarize

MOST_LABELS = 10


@dataclass(frozen=True)
class Scores:
    """What the records of a run come to."""

    run: RunContents

    @cached_property
    def report(self) -> Literal["last", "best"]:
        """Which round counts."""
        best = value_of(self.run.config, "evaluation.report") == "best"
        return "best" if best else "last"

    @cached_property
    def summary(self) -> Summary:
        """The table."""
        choose = isinstance(value_of(self.run.config, "method.mu"), list)
        return summarize(self.run.records, self.report, choose_setting=choose)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows that can be drawn in one figure."""
        return self.summary.rows[:MOST_LABELS]

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each method is drawn."""
        labels = [row.label for row in self.rows]
        return looks(labels, colours(labels)) if labels else {}

    @cached_property
    def curves(self) -> dict[str, list[Curve]]:
        """Test accuracy over rounds."""
        found = accuracy_curves(self.run.records, self.rows)
        return {name: found[name] for name in (MEAN, *self.summary.columns) if name in found}

    @cached_property
    def duel(self) -> Duel | None:
        """FedBN against FedAvg."""
        return duel(self.run.records, self.summary, self.report)

    @property
    def legend(self) -> tuple[tuple[Markup, str], ...]:
        """A sample of each method's line, and its name."""
        return tuple((sample(look), name) for name, look in self.looks.items())


def value_of(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Find a dotted key in a configuration that may be incomplete.

    Examples:
        >>> value_of({"training": {"lr": 0.1}}, "training.lr")
        0.1
        >>> value_of({"training": 1}, "training.lr") is None
        True
    """
    found: Any = config
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found
