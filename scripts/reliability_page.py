"""Make docs/reliability.md: every fault and bad input, the test that shows it, where it runs."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from reliability import CI, GROUPS, LINES, OWN_LINES, Shown, shown  # noqa: E402

TOP = """# Reliability

What this software is held to: faults and bad inputs, each with a test that shows it. After a fault
completed rounds are still there, the client, tensor or file is named, and the exit code is a
documented one. Bad input gets one line: what is wrong, where, and what is legal; exit code 3
(configuration) or 4 (data), no traceback, nothing written. {first} lines are what every version is
held to; {own} more, from rules and tasks on, are of what came later.

Made by `python scripts/reliability_page.py` from the tests' markers (`@pytest.mark.shows("F07")`).
`scripts/test` is what CI runs, and it fails where a line was only skipped; the long suites have
scripts of their own. Beside these lines, files and messages are spoilt at random
(`tests/test_fuzzing.py`): weights, checkpoints, manifests, configurations, contracts, policies,
bundles, requests, logs, orders, npz, CSV, pictures, masks. Each gets an error of ours or is read:
no traceback, no hang, no gigabyte.
"""


def page() -> str:
    """The whole page as Markdown."""
    tests = list(shown())
    text = TOP.format(first=len(LINES) - len(OWN_LINES), own=len(OWN_LINES))
    for letter, title in GROUPS.items():
        text += f"\n## {title}\n\n| | what | shown by | in |\n|---|---|---|---|\n"
        for line, what in LINES.items():
            if line.startswith(letter):
                text += _row(line, what, [test for test in tests if line in test.lines])
    return text


def _row(line: str, what: str, tests: list[Shown]) -> str:
    quick = [test for test in tests if test.suite == CI] or tests
    names = "<br>".join(f"`{Path(t.file).stem}::{t.name.removeprefix('test_')}`" for t in quick)
    suites = ", ".join(sorted({f"`{test.suite}`" for test in tests}))
    return f"| {line} | {what} | {names} | {suites} |\n"


if __name__ == "__main__":
    (ROOT / "docs" / "reliability.md").write_text(page(), encoding="utf-8")
