"""Units for systemd: what `init` writes is what systemd reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.flower.federation_folder import write_unit


def verified(unit: Path) -> str:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_init_writes_a_unit_that_keeps_the_server_up(tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    done = CliRunner().invoke(app, ["federation", "init", str(fed), "--host", "server.example"])
    assert done.exit_code == 0, done.output
    unit = fed / "fedbn-server.service"
    text = unit.read_text()
    assert f"ExecStart={sys.executable} -P -m fedbn federation server {fed}\n" in text
    assert f"ReadWritePaths={fed}\n" in text
    assert verified(unit) == ""


def test_words_reach_the_command_as_they_were_typed(tmp_path: Path) -> None:
    unit = tmp_path / "fedbn-site-nyu.service"
    words = ["--set", 'data.label="a $b"', "100%", "back\\slash"]
    write_unit(unit, "fedbn site nyu", words, tmp_path)
    (line,) = [one for one in unit.read_text().splitlines() if one.startswith("ExecStart=")]
    assert line.endswith(r' --set "data.label=\"a $$b\"" "100%%" "back\\slash"')
    assert verified(unit) == ""
    broken = tmp_path / "fedbn-site-usm.service"
    broken.write_text(unit.read_text().replace("Restart=on-failure", "Restart=perhaps"))
    assert "perhaps" in verified(broken)
