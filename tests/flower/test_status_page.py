"""The page to watch a run by: what stands on it, at the server and at a site, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, Bench

import chromium
from fedbn.errors import Interrupted
from fedbn.experiments.jobs import Event
from fedbn.flower import messages
from fedbn.flower.site import reply
from fedbn.flower.status_page import StatusPage

KEY = ("fedbn", "default", 0)


def record(client: str, round: int, metric: str, value: float | None, split: str = "train") -> dict:
    where = {"client": client, "domain": client, "split": split, "statistics": "running"}
    return {**where, "round": round, "metric": metric, "value": value}


def text_of(file: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", file.read_text().partition("</style>")[2]))


def heard(file: Path, rounds: int = 40, last: int = 12) -> StatusPage:
    page = StatusPage(file, "server: run heart")
    page.hear(Event("begin", KEY, 0, rounds))
    page.hear(Event("earlier", KEY, 0, rounds))
    for number in range(1, last + 1):
        records = [record(site, number, "training_loss", 1 / number) for site in ("nyu", "usm")]
        score = record("nyu", number - 1, "accuracy", 0.75, "test")
        records += [score, {**score, "value": 0.25, "statistics": "exact"}]
        page.hear(Event("round", KEY, number, rounds, records=records))
    page.hear(Event("note", KEY, text="round 12: ucla is left out: <script>alert(1)</script> " * 3))
    return page


def test_a_person_sees_rounds_sites_losses_refusals_and_what_is_left(tmp_path: Path) -> None:
    page = heard(tmp_path / "status.html")
    said = text_of(tmp_path / "status.html")
    assert re.search(r"round 12 of 40; about \d+ s left", said)
    row = r"nyu 12 0.08333 accuracy 75.0 % after round 11 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(row, said)
    assert "ucla is left out" in said
    whole = (tmp_path / "status.html").read_text()
    assert "<script" not in whole
    assert "http://" not in whole
    assert "https://" not in whole
    assert 'http-equiv="refresh"' in whole
    page.hear(Event("done", KEY, 40, 40))
    assert 'http-equiv="refresh"' not in (tmp_path / "status.html").read_text()
    assert "fedbn default seed 0 40 of 40 done" in text_of(tmp_path / "status.html")


def test_the_server_and_every_site_have_a_page_after_every_round(bench: Bench) -> None:
    grid = bench.grid()
    with pytest.raises(Interrupted):
        bench.run(grid, RAW, stop_after=1)
    server = bench.root / "runs" / "run" / "status.html"
    assert "round 1 of 2" in text_of(server)
    assert all(site in text_of(server) for site in ("plain", "photo"))
    own = bench.root / "sites" / "photo" / "run" / "status.html"
    assert "site photo: run run round 1 of 2" in text_of(own)
    assert "plain" not in text_of(own)
    bench.run(bench.grid(), RAW)
    for file in (server, own):
        assert "round 2 of 2; written" in text_of(file)


def test_a_site_shows_what_it_refused(bench: Bench) -> None:
    grid = bench.grid()
    bench.run(grid)
    site, message, _ = next(one for one in grid.log if messages.SHARED in one[1].content)
    order = messages.get(message.content, messages.Order, messages.SHARED)
    wrong = messages.put(order.model_copy(update={"round": 99}), **message.content.array_records)
    message.content = wrong
    reply(grid.sites[site], message, grid._state[site])
    assert "round 99 of 2" in text_of(bench.root / "sites" / site / "run" / "status.html")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(tmp_path: Path, width: int) -> None:
    heard(tmp_path / "status.html")
    with chromium.browser(tmp_path) as page:
        page.open(f"file://{tmp_path}/status.html", width, dark=width == 400)
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.complaints == []
        assert page.requests == [f"file://{tmp_path}/status.html"]
        page.picture(tmp_path / f"{width}.png")
