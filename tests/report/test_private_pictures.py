"""Pictures of samples are in a figure or a report only where they are public or asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedbn
from commanding import call
from fedbn import registry
from fedbn.datasets import PUBLIC_PICTURES
from fedbn.report.reading import gather, has_public_pictures

PICTURE = "data:image/png"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites with pictures of two classes."""
    home = tmp_path_factory.mktemp("pictures")
    draws = np.random.default_rng(0)
    for site in "ab":
        for part, count in (("train", 6), ("test", 4)):
            for label in ("cat", "dog"):
                folder = home / "data" / site / part / label
                folder.mkdir(parents=True)
                for number in range(count):
                    pixels = draws.integers(0, 256, (16, 16, 3)).astype("uint8")
                    Image.fromarray(pixels).save(folder / f"{number}.png")
    return home / "data"


@pytest.fixture(scope="module")
def _own_run(pictures: Path) -> Path:
    run = pictures.parent / "run"
    answer = call(
        *("run", "--data", pictures, "--rounds", 1, "--seed", 0, "--method", "fedbn"),
        *("--workers", 1, "--out", run),
    )
    assert answer.code == 0, answer.err
    return run


@pytest.fixture
def own_run(_own_run: Path, tmp_path: Path) -> Path:
    """A run on one's own pictures; a copy that may be changed."""
    return Path(shutil.copytree(_own_run, tmp_path / "run"))


def test_a_report_on_own_pictures_has_none(own_run: Path) -> None:
    answer = call("report", own_run)
    text = (own_run / "report.html").read_text()
    assert answer.code == 0
    assert PICTURE not in text
    assert "may show persons (--with-samples)" in answer.err
    assert "may show persons" in text


def test_a_report_on_own_pictures_has_them_where_asked(own_run: Path) -> None:
    assert call("report", own_run, "--with-samples").code == 0
    assert PICTURE in (own_run / "report.html").read_text()


def test_pictures_from_python_are_private(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    x = draws.integers(0, 256, (12, 3, 16, 16)).astype("uint8")
    y = np.arange(12) % 2
    fedbn.fit({"a": (x, y), "b": (x, y)}, rounds=1, out=tmp_path / "run")
    assert not gather(tmp_path / "run").facts.galleries


@pytest.mark.parametrize("options", [{}, {"data__partition": "iid", "data__clients": 2}])
def test_a_report_on_a_public_data_set_has_pictures(
    tmp_path: Path, options: dict[str, object]
) -> None:
    fedbn.fit("digits_mini", method="fedbn", rounds=1, out=tmp_path / "run", **options)
    assert gather(tmp_path / "run").facts.galleries


@pytest.mark.parametrize(
    ("config", "public"),
    [
        ({"data": {"name": "digits_mini"}}, True),
        ({"data": {"name": "folders", "path": "/x"}}, False),
        ({"data": {"path": "/x"}}, False),
        ({"data": {"name": "my_module:data"}}, False),
        ({"data": {"name": "joined", "path": "/x"}}, False),
        ({"data": {"name": "(given in Python)"}}, False),
        ({"sweep": {"data": {"name": ["digits_mini", "my_module:data"]}}}, False),
        ({"data": {"name": "digits_mini"}, "sweep": {"data": {"path": ["/x"]}}}, False),
    ],
)
def test_whether_all_data_of_a_run_is_public(config: dict[str, object], public: bool) -> None:
    assert has_public_pictures(config) is public


def test_every_public_data_set_is_registered() -> None:
    import fedbn.datasets

    assert {*registry.names(fedbn.datasets)} > PUBLIC_PICTURES


def test_a_figure_of_own_data_has_no_pictures_unless_asked(pictures: Path, tmp_path: Path) -> None:
    asked = ("data", "show", pictures, "--out")
    without = call(*asked, tmp_path / "without.svg")
    assert call(*asked, tmp_path / "with.svg", "--with-samples").code == 0
    assert "--with-samples" in without.err
    # A picture is a bitmap in the SVG. The two matrices below are bitmaps in both.
    counts = {
        name: (tmp_path / f"{name}.svg").read_text().count("<image") for name in ("without", "with")
    }
    assert counts == {"without": 2, "with": 4}


def test_a_figure_of_a_public_data_set_has_pictures(tmp_path: Path) -> None:
    answer = call("data", "show", "shifted_digits", "--out", tmp_path / "public.svg")
    assert "--with-samples" not in answer.err
    assert "a  Examples" in (tmp_path / "public.svg").read_text()
