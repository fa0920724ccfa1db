"""The list of components names what is installed, and the hashes of a release."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("packaging")
SCRIPT = Path(__file__).parents[1] / "scripts" / "sbom.py"


def test_the_list_names_what_is_installed_and_hashes_a_release(tmp_path: Path) -> None:
    wheel = tmp_path / "fedbn.whl"
    wheel.write_bytes(b"a release")
    line = [sys.executable, str(SCRIPT), str(wheel)]
    made = json.loads(subprocess.run(line, capture_output=True, check=True, text=True).stdout)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    found = {part["name"]: part for part in made["components"]}
    assert found["torch"]["version"] == version("torch")
    assert found["torch"]["purl"] == f"pkg:pypi/torch@{version('torch')}"
    assert "pytest" not in found
    assert found["fedbn.whl"]["hashes"][0]["content"] == hashlib.sha256(b"a release").hexdigest()
    assert made["metadata"]["component"]["version"] == version("fedbn")
