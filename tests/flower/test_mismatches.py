"""A site with another model, class list or package version never trains; real processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_processes import Federation, finished, searching

from fedbn.flower.messages import digest

pytestmark = [
    pytest.mark.slow_federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]
TOML = """
methods = ["fedbn"]
seeds = [0]
[training]
rounds = 1
local_steps = 1
batch_size = "full"
[model]
name = "sites_own:net"
"""
MODEL = """
from torch import nn
def net():
    return nn.Sequential(nn.Linear(3, {width}), nn.BatchNorm1d({width}), nn.Linear({width}, 2))
"""
VERSION = "import fedbn\nfedbn.__version__ = '0.0.1'\n"


class Mixed(Federation):
    """A site `plain` that fits, and a site `photo` that may not."""

    def __init__(self, root: Path, stack: ExitStack):
        super().__init__(root, stack, ())
        self.root = root
        self.file = root / "mine.toml"
        self.file.write_text(TOML)
        self.here = self.modules("here", width=4)
        self.join("plain", self.here)

    def modules(self, name: str, width: int, more: str = "") -> Path:
        folder = self.root / name
        folder.mkdir()
        (folder / "sites_own.py").write_text(MODEL.format(width=width))
        if more:
            (folder / "sitecustomize.py").write_text(more)
        return folder

    def join(self, site: str, modules: Path, classes: tuple[str, ...] = ("ill", "well")) -> None:
        data = self.root / f"{site}-{'-'.join(classes)}"
        data.mkdir(exist_ok=True)
        x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
        parts = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
        np.savez(data / f"{site}.npz", classes=np.array(classes), **parts)
        self.start_site(site, "--trust", "sites_own", data=str(data), path=modules)
        self.wait_for_word(site, "works for")

    def asked(self, code: int, *arguments: str) -> str:
        with searching(self.here):
            return finished(self.command(*arguments, "--trust", "sites_own"), code)

    def checked(self, code: int) -> str:
        return self.asked(code, "check", str(self.folder.path), "--experiment", str(self.file))

    def tried(self, code: int, name: str) -> str:
        arguments = [str(self.folder.path), str(self.file), "--name", name, "--wait", "60"]
        return self.asked(code, "run", *arguments)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with ExitStack() as stack:
        yield Mixed(tmp_path_factory.mktemp("mismatches"), stack)


def refused(federation: Mixed, name: str) -> str:
    """What check and run say of the site that is there; it is sent home afterwards."""
    federation.wait_until_connected("plain", "photo")
    checked, tried = federation.checked(1), federation.tried(5, name)
    federation.sites["photo"].end()
    assert federation.rounds(name) == []
    said = next(line for line in checked.splitlines() if "photo" in line and "WRONG" in line)
    reason = said.removeprefix("WRONG  photo: ")
    assert f"missing: photo: {reason}" in tried
    return reason


@pytest.mark.shows("F53")
def test_another_class_order_is_refused_with_both_hashes(federation: Mixed) -> None:
    federation.join("photo", federation.here, ("well", "ill"))
    there, here = digest(["well", "ill"]), digest(["ill", "well"])
    assert refused(federation, "classes") == (
        f"another class list: {there} there, {here} at plain (class 0 is 'well' there, 'ill' here)"
    )


@pytest.mark.shows("F52")
def test_another_model_is_refused_with_both_hashes(federation: Mixed) -> None:
    federation.join("photo", federation.modules("wider", width=5))
    words = refused(federation, "model").split()
    assert words[:2] == ["another", "model:"]
    assert words[3:] == ["there,", words[4], "at", "plain"]
    assert len(words[2]) == len(words[4]) == 16
    assert words[2] != words[4]


@pytest.mark.shows("F54")
def test_another_version_is_refused_with_both_versions(federation: Mixed) -> None:
    federation.join("photo", federation.modules("older", width=4, more=VERSION))
    assert refused(federation, "version").startswith("fedbn 0.0.1 here, fedbn ")


def test_a_site_that_fits_passes_the_check_and_trains(federation: Mixed) -> None:
    federation.join("photo", federation.here)
    federation.wait_until_connected("plain", "photo")
    text = federation.checked(0)
    hashes = {line.split("model ")[1][:16] for line in text.splitlines() if ": model " in line}
    assert len(hashes) == 1
    federation.tried(0, "fits")
    assert len(federation.rounds("fits")) == 1
