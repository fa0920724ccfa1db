"""The Flower app folder under plain `flwr run`, and under Flower's simulation; real processes."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import SITES, digits, in_one_process
from flower_processes import POLICY, by_key

from fedbn.flower.internals_node import environment, free_port, listens
from fedbn.flower.internals_server import APP
from fedbn.runs import metrics

pytestmark = pytest.mark.slow_federation
SETTINGS = (
    "methods=['fedbn'];seeds=[0];training.rounds=2;training.local_steps=3;data.name='digits_mini'"
)
RAW = {
    "methods": ["fedbn"],
    "seeds": [0],
    "training": {"rounds": 2, "local_steps": 3},
    "data": {"name": "digits_mini"},
}
CONFIG = """
[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


class Flower:
    """Flower's own commands in a home of their own."""

    def __init__(self, home: Path):
        self.home, self.port = home, free_port()
        home.mkdir()
        (home / "config.toml").write_text(CONFIG.format(port=self.port))

    @contextmanager
    def running(self, command: str, *flags: str) -> Iterator[None]:
        """Run a command until the block ends; it and what it started end together."""
        log = self.home / f"{command}-{free_port()}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [script(command), "--insecure", *flags],
                env=environment(self.home),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @contextmanager
    def server(self, *flags: str) -> Iterator[None]:
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        fixed = [*where, "--disable-runtime-dependency-installation"]
        with self.running("flower-superlink", *fixed, *flags):
            begun = time.monotonic()
            while not listens("127.0.0.1", self.port):
                assert time.monotonic() - begun < 120
                time.sleep(0.05)
            yield

    def run(self, config: str, *flags: str) -> str:
        """Run the app to its end and give what it said."""
        done = subprocess.run(
            [script("flwr"), "run", str(APP), "here", "--stream", "--run-config", config, *flags],
            env=environment(self.home),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=1800,  # a process a message, on a machine that does other things too
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def wanted(names: tuple[str, ...]) -> dict:
    """The embedded engine's numbers; without keys, sites are summed in the order of their names."""
    clients = tuple(c for name in sorted(names) for c in digits().clients if c.name == name)
    _, _, records = in_one_process(RAW, replace(digits(), clients=clients), sorted(names))
    return by_key([vars(record) for record in records])


def found(run: Path) -> dict:
    assert (run / "metrics.jsonl").is_file()
    return by_key(metrics.read(run / "metrics.jsonl"))


def test_plain_flwr_run_gives_the_same_numbers(tmp_path) -> None:
    flower, run = Flower(tmp_path / "home"), tmp_path / "run"
    rules = tmp_path / "policy.toml"
    rules.write_text(POLICY.to_toml())
    with flower.server():
        flags = ["--superlink", f"127.0.0.1:{flower.port}", "--port"]
        nodes = [
            f'site="{site}" data="digits_mini" state-dir="{tmp_path / site}" policy="{rules}"'
            for site in SITES
        ]
        one, two = ([*flags, str(free_port()), "--node-config", node] for node in nodes)
        with flower.running("flower-supernode", *one), flower.running("flower-supernode", *two):
            flower.run(f'set="{SETTINGS}" out="{run}"')
    assert found(run) == wanted(SITES)
    assert list((tmp_path / "photo").rglob("*.safetensors"))


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Flower's simulation needs ray: pip install 'flwr[simulation]'",
)
@pytest.mark.parametrize("state", ["memory", "disk"])
def test_flowers_simulation_gives_the_same_numbers(tmp_path, state: str) -> None:
    flower, run = Flower(tmp_path / "home"), tmp_path / "run"
    folder = f'state-dir="{tmp_path / "sites"}"' if state == "disk" else ""
    config = f'set="{SETTINGS}" out="{run}" data="digits_mini" sites=3 {folder}'
    with flower.server("--simulation"):
        said = flower.run(config, "--federation-config", "num-supernodes=3")
    names = tuple(client.name for client in digits().clients[:3])
    assert found(run) == wanted(names), said
    assert any((tmp_path / "sites").rglob("*.safetensors")) == (state == "disk")
