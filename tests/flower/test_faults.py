"""Kills and stops of real processes on the loopback; run by scripts/test-federation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import in_one_process

from fedbn.engines.flower import demo, serving
from fedbn.engines.flower.processes import environment
from fedbn.runs import metrics

pytestmark = pytest.mark.slow_federation
TOML = """
methods = ["{method}"]
seeds = [0]
[training]
rounds = {rounds}
local_steps = {steps}
[data]
name = "digits_mini"
[model]
name = "small_cnn"
"""


class Federation:
    """A server and its sites, in processes that end with the test."""

    def __init__(self, root: Path, stack: ExitStack):
        self.folder = demo.make(root / "fed")
        self.stack = stack
        self.sites = {}
        self.started = []
        self.start_server()
        for site in demo.SITES:
            self.start_site(site)

    def start_server(self) -> None:
        self.link = self.stack.enter_context(serving.server(self.folder, "127.0.0.1"))

    def start_site(self, site: str) -> None:
        self.sites[site] = demo.start_site(self.folder, site)
        self.stack.callback(self.sites[site].end)

    def experiment(self, rounds: int, steps: int = 3, method: str = "fedbn") -> tuple[Path, dict]:
        file = self.folder.path / f"{method}-{rounds}-{steps}.toml"
        file.write_text(TOML.format(method=method, rounds=rounds, steps=steps))
        training = {"rounds": rounds, "local_steps": steps}
        data, model = {"name": "digits_mini"}, {"name": "small_cnn"}
        raw = {"methods": [method], "seeds": [0], "training": training}
        return file, {**raw, "data": data, "model": model}

    def run(self, file: Path, name: str, *flags: str) -> subprocess.Popen:
        command = ["federation", "run", str(self.folder.path), str(file), "--name", name]
        process = subprocess.Popen(
            [sys.executable, "-m", "fedbn", *command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(self.folder.home),
        )
        self.started.append(process)
        self.stack.callback(ended, process)
        return process

    def rounds(self, name: str) -> list[dict]:
        files = list((self.folder.runs / name).rglob("rounds.jsonl"))
        return metrics.read(files[0]) if files else []

    def wait_for_round(self, name: str, number: int, process: subprocess.Popen) -> None:
        begun = time.monotonic()
        while not any(row["round"] >= number for row in self.rounds(name)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() - begun < 120
            time.sleep(0.05)

    def numbers(self, name: str) -> dict:
        return by_key(metrics.read(self.folder.runs / name / "metrics.jsonl"))


def ended(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def by_key(records) -> dict:
    return {(r["round"], r["client"], r["split"], r["metric"]): r["value"] for r in records}


def in_embedded(raw) -> dict:
    _, _, records = in_one_process(raw)
    return by_key([vars(record) for record in records])


def finished(process: subprocess.Popen, code: int = 0) -> str:
    text, _ = process.communicate(timeout=240)
    assert process.returncode == code, text
    return text


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with ExitStack() as stack:
        yield Federation(tmp_path_factory.mktemp("faults"), stack)


def test_the_server_app_is_killed_and_the_run_goes_on(federation: Federation) -> None:
    file, raw = federation.experiment(6)
    first = federation.run(file, "killed-app")
    federation.wait_for_round("killed-app", 2, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    text = finished(federation.run(file, "killed-app"))
    assert "going on after round" in text
    assert federation.numbers("killed-app") == in_embedded(raw)


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
    file, _ = federation.experiment(40)
    process = federation.run(file, "joined")
    federation.wait_for_round("joined", 1, process)
    serving.add_site(federation.folder, "faded")
    federation.start_site("faded")
    text = finished(process)
    assert "faded joins" in text
    sources = [row["sources"].get("faded") for row in federation.rounds("joined")]
    assert sources[-1] == "disk"
    assert next(source for source in sources if source) == "fresh"
