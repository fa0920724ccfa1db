"""docs/gain.md shows the tables that the stored parts give, and README the same numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from commanding import call

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tables of the stored parts; there is no data, so nothing is trained."""
    out = tmp_path_factory.mktemp("gain")
    shutil.copytree(ROOT / "docs/results/gain/parts", out / "parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBN_DATA", str(tmp_path_factory.mktemp("no-data")))
        answer = call("reproduce", "gain-decomposition", "--scale", "paper", "--out", out)
    assert answer.code == 0, answer.err
    return {file.stem: file.read_text(encoding="utf-8") for file in out.glob("gain-*.md")}


def rows(text: str) -> set[str]:
    return set(re.findall(r"^\|.*\|$", text, re.MULTILINE))


def test_the_page_shows_the_tables_of_the_stored_parts(tables: dict[str, str]) -> None:
    page = rows((ROOT / "docs/gain.md").read_text(encoding="utf-8"))
    assert len(page) > 60
    assert page <= rows("\n".join(tables.values()))


def test_the_readme_shows_the_same_gains(tables: dict[str, str]) -> None:
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {
        "the paper's digits, four real sets, 100 rounds": "real digits",
        "Office-Caltech10, small pictures, 100 rounds": "Office-Caltech10",
        "heart disease at four hospitals": "heart disease",
        "retinal vessels, Dice, 10 rounds": "retinal vessels (Dice)",
        "embedded digits (the picture above)": "embedded digits",
        "embedded digits, other class proportions": "labels 0.6",
    }
    lines = tables["gain-decomposition"].splitlines()
    for title, name in names.items():
        (row,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", said, re.MULTILINE)
        cells = re.findall(r"[+−]([\d.]+) \((\S+ to \S+)\)", row)
        at = next(i for i, line in enumerate(lines) if line.startswith(f"| {name} |"))
        means = [cell.strip() for cell in lines[at].split("|")]
        intervals = [cell.strip() for cell in lines[at + 1].split("|")]
        for column, (mean, interval) in zip((4, 7), cells, strict=True):
            assert means[column].lstrip("−").startswith(f"{mean} ("), (title, means[column])
            assert intervals[column] == interval, title
