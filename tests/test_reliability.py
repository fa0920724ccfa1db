"""Every line of what must not break it is shown by a test, and the page says by which."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from reliability import LINES, TESTS, shown

pytest_plugins = ["pytester"]


def test_every_line_has_a_test_and_every_marker_a_line() -> None:
    marked = {line for test in shown() for line in test.lines}
    assert marked - LINES.keys() == set()
    assert LINES.keys() - marked == set()


def test_the_page_is_made_from_the_markers() -> None:
    made = runpy.run_path(str(TESTS.parent / "scripts" / "reliability_page.py"))["page"]()
    assert (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8") == made, (
        "run python scripts/reliability_page.py"
    )


@pytest.mark.parametrize(("second", "code"), [("pass", 0), ("pytest.skip('no such machine')", 1)])
def test_a_line_that_was_only_skipped_ends_the_suite(
    second: str, code: int, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest((Path(__file__).parent / "skipped_lines.py").read_text())
    pytester.makeini("[pytest]\nmarkers = shows: a line\n")
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.shows("F01")
        def test_one():
            pytest.skip("no network")

        @pytest.mark.shows("F01")
        def test_other():
            {second}
        """
    )
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == code
