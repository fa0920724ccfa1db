"""A plugin: a line that only skipped tests show was not shown, and the suite says so."""

from __future__ import annotations

import pytest

_ran: dict[str, set[str]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test's lines travel with its report, from workers too."""
    for item in items:
        for mark in item.iter_markers("shows"):
            item.user_properties.append(("shows", mark.args))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember how the tests of each line ended."""
    if report.when == "call" or report.skipped:
        for name, lines in report.user_properties:
            if name == "shows":
                for line in lines:
                    _ran.setdefault(line, set()).add(report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with an error where a line was skipped by all its tests that ran."""
    if only_skipped() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name such lines."""
    if only_skipped():
        terminalreporter.write_line(
            f"only skipped, so not shown: {', '.join(only_skipped())}", red=True
        )


def only_skipped() -> list[str]:
    """Lines all of whose tests were skipped."""
    return sorted(line for line, outcomes in _ran.items() if outcomes == {"skipped"})
