"""Federations of real processes on the loopback, which end with the test that started them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flower_bench import digits, in_one_process

from fedbn.flower import server_app
from fedbn.flower.internals_node import Child, environment
from fedbn.flower.internals_server import Control
from fedbn.runs import metrics

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

# Single sites go away in these tests, and the others go on.
POLICY = server_app.DEMO_POLICY.model_copy(update={"min_sites": 1})


class Federation:
    """A server and its sites, in processes that end with the test."""

    def __init__(self, root: Path, stack: ExitStack, sites: tuple[str, ...] = server_app.SITES):
        self.folder = server_app.make(root / "fed")
        self.stack = stack
        self.sites: dict[str, Child] = {}
        self.start_server()
        for site in sites:
            self.start_site(site)

    def start_server(self) -> None:
        self.link = self.stack.enter_context(server_app.server(self.folder, "127.0.0.1"))

    def start_site(
        self,
        site: str,
        *flags: str,
        bundle: Path | None = None,
        data: str = "digits_mini",
        path: Path | None = None,
    ) -> Child:
        """Start a site; `path` is searched for modules first, in its process and its node's."""
        home = self.folder.path / "demo-sites" / site
        given = bundle or self.folder.bundle(site)
        home.mkdir(parents=True, exist_ok=True)
        (home / "policy.toml").write_text(POLICY.to_toml())
        arguments = ["federation", "join", str(given), "--data", data, "--folder", str(home)]
        with searching(path):
            started = Child("fedbn", [*arguments, *flags, "--parent"], home, home / "join.log")
        self.sites[site] = started
        self.stack.callback(started.end)
        return started

    def experiment(self, rounds: int, steps: int = 3, method: str = "fedbn") -> tuple[Path, dict]:
        file = self.folder.path / f"{method}-{rounds}-{steps}.toml"
        file.write_text(TOML.format(method=method, rounds=rounds, steps=steps))
        training = {"rounds": rounds, "local_steps": steps}
        data, model = {"name": "digits_mini"}, {"name": "small_cnn"}
        raw = {"methods": [method], "seeds": [0], "training": training}
        return file, {**raw, "data": data, "model": model}

    def run(self, file: Path, name: str, *flags: str) -> subprocess.Popen:
        return self.command("run", str(self.folder.path), str(file), "--name", name, *flags)

    def command(self, *arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedbn", "federation", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(self.folder.home),
        )
        self.stack.callback(ended, process)
        return process

    def wait_for_word(self, site: str, word: str, seconds: float = 120) -> None:
        begun = time.monotonic()
        while word not in self.sites[site].said():
            assert self.sites[site].status() is None, self.sites[site].said()
            assert time.monotonic() - begun < seconds, self.sites[site].said()
            time.sleep(0.05)

    def rounds(self, name: str) -> list[dict]:
        files = list((self.folder.runs / name).rglob("rounds.jsonl"))
        return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []

    def wait_for_round(self, name: str, number: int, process: subprocess.Popen) -> None:
        self.wait_for(lambda: any(r["round"] >= number for r in self.rounds(name)), process)

    def wait_for(
        self, ready: Callable[[], bool], process: subprocess.Popen, seconds: float = 600
    ) -> None:
        begun = time.monotonic()
        while not ready():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() - begun < seconds
            time.sleep(0.05)

    def wait_until_connected(self, *sites: str, seconds: float = 120) -> None:
        """Wait until the server has heard of sites."""
        keys, begun = self.folder.keys(), time.monotonic()
        with Control(self.folder) as control:
            while not {*sites} <= {
                keys.get(node.public_key)
                for node in control.nodes()
                if node.online_until > time.time()
            }:
                assert time.monotonic() - begun < seconds, [self.sites[s].said() for s in sites]
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
    _, _, records = in_one_process(raw, digits())
    return by_key([vars(record) for record in records])


def finished(process: subprocess.Popen, code: int = 0, seconds: float = 600) -> str:
    """Wait for a command to end; what it said is shown where it ends otherwise, or not at all."""
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        raise AssertionError(f"still running after {seconds:g} s: {text}") from None
    assert process.returncode == code, text
    return text


@contextmanager
def searching(folder: Path | None):
    """Let processes that are started meanwhile look for modules in a folder first."""
    before = os.environ.get("PYTHONPATH")
    found = [str(folder) if folder else "", before or ""]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
