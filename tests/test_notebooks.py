"""The notebooks run, and print what is shown in them (their numbers may differ by machine)."""

from __future__ import annotations

import copy
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
execute = runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))["executed"]


def shown(notebook: dict) -> list[str]:
    """What the cells print, without digits."""
    found = json.dumps([cell.get("outputs") for cell in notebook["cells"]], indent=1)
    return re.sub(r"\d+", "0", found).replace("-0", "0").splitlines()


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_prints_what_it_shows(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    committed = json.loads(file.read_text(encoding="utf-8"))
    assert all(cell["outputs"] for cell in committed["cells"] if cell.get("execution_count") == 1)
    again = execute(copy.deepcopy(committed))
    assert shown(again) == shown(committed), "run python scripts/notebooks.py"


def test_both_are_linked() -> None:
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("index.md", "tutorial.md"))
    assert len(NOTEBOOKS) == 2
    assert all(f"notebooks/{file.name}" in pages for file in NOTEBOOKS)
