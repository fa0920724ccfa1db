"""The report in a real browser, at two widths, light and dark; run by scripts/test-report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Browser, browser, found
from commanding import call
from fedbn.report import page
from fedbn.report.document import html
from reporting import HOSTILE, contents, records

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(found() is None, reason="chromium is not installed"),
]
WIDTHS, SCHEMES = (1280, 400), ("light", "dark")
MANY = [f"Hospital {i}" for i in range(1000)]
# Figures that are not seen, or stick out of the page; folded ones are opened first.
UNSEEN = """(() => {
  document.querySelectorAll('details').forEach(one => one.open = true);
  const width = document.documentElement.clientWidth;
  const figures = [...document.querySelectorAll('svg[role=img], img')];
  const bad = figures.filter(one => {
    const box = one.getBoundingClientRect();
    return box.width < 20 || box.height < 20 || box.left < -0.5 || box.right > width + 0.5;
  });
  return [figures.length, bad.map(one => one.outerHTML.slice(0, 200))];
})()"""
# Texts of drawings that begin or end outside the page.
CUT = """[...document.querySelectorAll('svg[role=img] text')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.left < -0.5 || box.right > document.documentElement.clientWidth + 0.5;
}).map(one => one.textContent)"""
# The contrast of text with what lies behind it, by WCAG; the lowest of the page.
CONTRAST = """(() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255);
    const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = one => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = document.querySelectorAll('h1, h2, h3, h4, p, th, td, li, a, b, span, small, '
    + 'strong, summary, code, footer, figcaption, caption');
  return Math.min(...[...texts].map(one => {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort();
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of a real run, of hostile names, of a thousand clients, and of several runs."""
    folder = tmp_path_factory.mktemp("reports")
    run = Path(os.environ.get("FEDBN_REPORT_RUN") or folder / "run")
    if "FEDBN_REPORT_RUN" not in os.environ:
        length = ("--rounds", 2, "--seed", 0, "--seed", 1, "--out", run)
        assert call("run", "--method", "fedavg", "--method", "fedbn", *length).code == 0
    assert call("report", run, "--out", folder / "real.html").code == 0
    many = contents(MANY, records=records(MANY, seeds=[0], rounds=2))
    made = {
        "hostile": [contents(HOSTILE, path=HOSTILE[0], name=HOSTILE[0])],
        "many": [many],
        "several": [contents(), contents("abcd", name="second")],
        "empty": [contents(records=[], exchanges=(), facts=None)],
    }
    for name, runs in made.items():
        (folder / f"{name}.html").write_text(html(page(runs), "1"), encoding="utf-8")
    return {file.stem: file for file in folder.glob("*.html")}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["real", "hostile", "many", "several", "empty"])
def test_a_report_is_whole_in_a_browser(chromium, reports, name, width, scheme):
    chromium.open(reports[name].as_uri(), width, dark=scheme == "dark")
    figures, unseen = chromium.ask(UNSEEN)
    assert unseen == []
    assert figures > 12 or name == "empty"
    assert chromium.ask("document.documentElement.scrollWidth") == width
    assert chromium.ask(CUT) == []
    assert chromium.ask(CONTRAST) >= 4.5
    ground = chromium.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 27)"}[scheme]
    assert chromium.complaints == []
    asked = [url for url in chromium.requests if not url.startswith("data:")]
    assert asked == [reports[name].as_uri()]
    if shots := os.environ.get("FEDBN_REPORT_SHOTS"):
        Path(shots).mkdir(parents=True, exist_ok=True)
        chromium.picture(Path(shots) / f"{name}-{width}-{scheme}.png")


@pytest.mark.shows("W06")
def test_no_script_of_a_name_runs(chromium, reports):
    chromium.open(reports["hostile"].as_uri(), 1280, dark=False)
    assert not any(
        event.get("method") == "Page.javascriptDialogOpening" for event in chromium.events
    )
    assert chromium.ask("document.querySelectorAll('script').length") == 1
    assert chromium.ask("document.querySelectorAll('[onerror]').length") == 0


def test_printing_opens_what_is_folded_and_folds_it_again(chromium, reports, tmp_path):
    chromium.open(reports["real"].as_uri(), 1280, dark=False)
    folded = "document.querySelectorAll('details:not([open])').length"
    before = chromium.ask(folded)
    chromium.ask("window.dispatchEvent(new Event('beforeprint'))")
    assert (before > 0, chromium.ask(folded)) == (True, 0)
    chromium.ask("window.dispatchEvent(new Event('afterprint'))")
    assert chromium.ask(folded) == before
    chromium.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
