"""Kills and stops of real processes on the loopback; run by scripts/test-federation."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_processes import Federation, finished, in_embedded

pytestmark = pytest.mark.slow_federation


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with ExitStack() as stack:
        yield Federation(tmp_path_factory.mktemp("faults"), stack)


@pytest.mark.shows("F40")
def test_the_server_app_is_killed_and_the_run_goes_on(federation: Federation) -> None:
    file, raw = federation.experiment(6)
    first = federation.run(file, "killed-app")
    federation.wait_for_round("killed-app", 2, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    text = finished(federation.run(file, "killed-app"))
    assert "going on after round" in text
    assert federation.numbers("killed-app") == in_embedded(raw)


@pytest.mark.shows("F38")
def test_a_site_is_killed_and_comes_back_with_its_batchnorm(federation: Federation) -> None:
    file, raw = federation.experiment(12)
    process = federation.run(file, "killed-site")
    federation.wait_for_round("killed-site", 2, process)
    os.kill(federation.sites["photo"].pid, signal.SIGKILL)
    federation.start_site("photo")
    finished(process)
    rows = federation.rounds("killed-site")
    assert [row["round"] for row in rows] == list(range(1, 13))
    sources = [row["sources"].get("photo") for row in rows]
    assert sources == ["fresh", *["disk"] * 11]
    assert federation.numbers("killed-site") == in_embedded(raw)


@pytest.mark.shows("F39")
def test_the_link_is_killed_and_restarted_under_a_run(federation: Federation) -> None:
    file, raw = federation.experiment(8)
    process = federation.run(file, "killed-link")
    federation.wait_for_round("killed-link", 2, process)
    os.kill(federation.link.pid, signal.SIGKILL)
    while federation.link.status() is None:
        time.sleep(0.02)
    federation.start_server()
    finished(process)
    assert federation.numbers("killed-link") == in_embedded(raw)


@pytest.mark.shows("F21", "F22")
def test_a_site_that_hangs_is_left_out_and_its_late_answer_discarded(federation) -> None:
    file, _ = federation.experiment(5)
    process = federation.run(file, "hanging", "--deadline", "4")
    federation.wait_for_round("hanging", 1, process)
    os.kill(federation.sites["photo"].pid, signal.SIGSTOP)
    try:
        federation.wait_for_round("hanging", 3, process)
    finally:
        os.kill(federation.sites["photo"].pid, signal.SIGCONT)
    text = finished(process)
    assert "photo is left out: no answer within 4 s; a later one is discarded" in text
    rows = federation.rounds("hanging")
    assert any("photo" in row["left_out"] for row in rows)


def test_ctrl_c_saves_the_round_and_the_same_command_continues(federation: Federation) -> None:
    file, raw = federation.experiment(7)
    process = federation.run(file, "interrupted")
    federation.wait_for_round("interrupted", 1, process)
    process.send_signal(signal.SIGINT)
    text = finished(process, 130)
    assert "the same command continues it" in text
    finished(federation.run(file, "interrupted"))
    assert federation.numbers("interrupted") == in_embedded(raw)


def test_a_missing_site_ends_with_exit_code_5_and_its_name(federation: Federation) -> None:
    federation.sites["photo"].end()
    file, _ = federation.experiment(2)
    text = finished(federation.run(file, "missing", "--wait", "2"), 5)
    assert "missing: photo: not connected" in text
    federation.start_site("photo")


def test_a_new_site_joins_a_run_under_way(federation: Federation) -> None:
    file, _ = federation.experiment(1000)
    process = federation.run(file, "joined")
    federation.wait_for_round("joined", 1, process)

    def rows() -> list[dict]:
        return federation.rounds("joined")

    said = finished(federation.command("add-site", str(federation.folder.path), "faded"))
    assert f"{federation.folder.bundle('faded')}: hand this to faded" in said
    federation.start_site("faded")
    federation.wait_for(lambda: rows()[-1]["sources"].get("faded") == "disk", process)
    process.send_signal(signal.SIGINT)
    text = finished(process, 130)
    assert "faded joins; it starts from the shared part and has its own BatchNorm" in text
    sources = [row["sources"].get("faded") for row in rows()]
    came = sources.index("fresh")
    assert came > 0
    assert sources[:came] == [None] * came
    assert set(sources[came + 1 :]) == {"disk"}
    assert not any(row["left_out"] for row in rows())
