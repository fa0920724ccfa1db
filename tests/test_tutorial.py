"""The tutorial from top to bottom: its files written, its commands run, in its order."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from commanding import call

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The demo is this package's installation; a federation of real processes has tests of its own.
_NOT_HERE = (["scripts/demo"], ["fedbn", "federation", "demo"])


def steps() -> Iterator[tuple[str, str]]:
    """Each file as (its name, its text) and each command as ("", the command), in order."""
    for kind, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            yield text.splitlines()[0].removeprefix("# "), text
        else:
            yield from (("", line) for line in text.splitlines() if line.strip())


def test_the_tutorial_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = 0
    for name, text in steps():
        if name:
            Path(name).write_text(text, encoding="utf-8")
            runpy.run_path(name)
            continue
        words = shlex.split(text)
        if words not in _NOT_HERE:
            answer = call(*words[1:], cwd=tmp_path)
            assert answer.code == 0, f"{text}: {answer.err}"
            ran += 1
    assert ran >= 9
    assert "benign" in (tmp_path / "predictions.csv").read_text()
    assert (tmp_path / "runs/hospitals/report.html").is_file()
