"""What a check of data finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One thing found in data.

    Attributes:
        severity: `error` would stop a run, `warning` may spoil its result, `note` is good to know.
        site: Whose data; empty where it concerns several.
        file: Which file, or which split of data in memory; empty where it concerns several.
        text: What is the matter, on one line.
    """

    severity: Severity
    site: str
    file: str
    text: str


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Put errors first; otherwise the order stays."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])
