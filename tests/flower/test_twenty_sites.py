"""Twenty sites that join at once, and one experiment after another on them; real processes."""

from __future__ import annotations

import json
import random
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from machines import Command, Machines, NoMachines
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.flower.internals_node import environment
from fedbn.flower.policy import Policy

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]
SITES = tuple(f"site{number:02}" for number in range(20))
EXPERIMENT = """
methods = ["{method}"]
seeds = [0]
[training]
rounds = 2
batch_size = 8
[model]
name = "mlp"
args = {{hidden = [4]}}
[data.contract]
classes = ["0", "1"]
label = "out"
[[data.contract.columns]]
name = "age"
"""


def site(root: Path, number: int) -> Path:
    """A site's folder, with a table and a policy in which no person has to approve."""
    home, draw = root / SITES[number], random.Random(number)
    (home / "kept").mkdir(parents=True)
    rows = [f"{draw.randint(20, 90)},{row % 2}" for row in range(60)]
    (home / "rows.csv").write_text("\n".join(["age,out", *rows]) + "\n")
    (home / "kept" / "policy.toml").write_text(Policy(approval=False).to_toml())
    return home


def started(machines: Machines, place: str, words: list[str], home: Path) -> Command:
    out = home.parent / f"{place} {words[0]} {time.monotonic_ns()}"
    return machines.start(place, ["federation", *words], home, out, environment(home / "flower"))


def test_twenty_sites_join_at_once_and_train_two_experiments(tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            machines = Machines(stack, ("server", *SITES))
        except NoMachines as error:
            warnings.warn(f"twenty sites were NOT tried: {error}", stacklevel=1)
            pytest.skip(f"no networks of their own for processes here: {error}")
        fed = tmp_path / "fed"
        words = ["federation", "init", str(fed), "--host", machines.addresses["server"]]
        done = CliRunner().invoke(app, [*words, "--sites", ",".join(SITES)])
        assert done.exit_code == 0, done.output
        server = started(machines, "server", ["server", str(fed)], tmp_path)
        joined = []
        for number, name in enumerate(SITES):
            home = site(tmp_path, number)
            bundle = str(fed / "bundles" / f"{name}.fedbn")
            words = ["join", bundle, "--data", "rows.csv", "--folder", "kept", "--wait", "600"]
            joined.append(started(machines, name, words, home))
        for method in ("fedbn", "fedavg"):
            file = tmp_path / f"{method}.toml"
            file.write_text(EXPERIMENT.format(method=method))
            while "ready at port" not in server.said():
                assert server.poll() is None, server.said()
                time.sleep(0.2)
            run = started(
                machines, "server", ["run", str(fed), str(file), "--wait", "900"], tmp_path
            )
            assert run.wait(1800) == 0, run.said()
            rounds = next((fed / "runs" / method).rglob("rounds.jsonl")).read_text()
            for line in rounds.splitlines():
                assert sorted(json.loads(line)["sources"]) == sorted(SITES)
        assert all(one.poll() is None for one in joined)
