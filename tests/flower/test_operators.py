"""What operators of a server and of sites rely on: names, counts, data, status and users."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower_bench import RAW, SITES, Bench
from typer.testing import CliRunner

from fedbn.cli.main import app
from fedbn.errors import ConfigError, DataError, TooFewClients
from fedbn.flower import credentials, server_app, site_app
from fedbn.flower.credentials import read_bundle, read_request
from fedbn.flower.federation_folder import write_unit
from fedbn.flower.internals_node import environment, free_port
from fedbn.flower.membership import Expected
from fedbn.flower.site import Site
from fedbn.flower.site_job import SiteOptions

KEYS = {name.encode(): name for name in SITES}


def request_of(folder: Path, site: str) -> credentials.Request:
    file = folder / f"{site}.request"
    file.write_bytes(credentials.make_request(site, credentials.make_key()))
    return read_request(file)


@pytest.mark.parametrize("other", ["NYU", "Nyu", "nYu"])
def test_a_name_that_differs_only_in_case_is_not_admitted(tmp_path: Path, other: str) -> None:
    folder = server_app.make(tmp_path / "fed", ["nyu"])
    with pytest.raises(ConfigError, match=f"site '{other}': its name differs from 'nyu' only in"):
        folder.admit(request_of(tmp_path, other))
    with pytest.raises(ConfigError, match="only in case"):
        folder.add_site(other)
    folder.revoke("nyu")
    with pytest.raises(ConfigError, match="only in case"):
        folder.admit(request_of(tmp_path, other))
    assert folder.read().sites == ()


def test_a_federation_is_not_made_with_names_that_differ_only_in_case(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only in case"):
        server_app.make(tmp_path / "fed", ["nyu", "NYU"])


def test_a_site_takes_part_with_several_data_sets(bench: Bench, tmp_path: Path) -> None:
    folder = server_app.make(tmp_path / "fed", SITES)
    expected = Expected(SITES, KEYS, 2, folder.agree)
    bench.run(bench.grid(), expected=expected)
    before = folder.agreed()
    assert {site: [*counts.values()] for site, counts in before.items()} == {
        "plain": [64],
        "photo": [64],
    }
    sites = [bench.site(name) for name in SITES]
    for site in sites:  # other data: another number of classes, and far fewer samples
        federation = site.__dict__["_federation"]
        clients = tuple(
            replace(c, train=c.train.take(slice_of(c.train, 20))) for c in federation.clients
        )
        classes = (*federation.classes, "further")
        site.__dict__["_federation"] = replace(federation, clients=clients, classes=classes)
    from flower_bench import FakeGrid

    bench.run(FakeGrid(sites), name="other", expected=expected)
    after = folder.agreed()
    assert {site: sorted(counts.values()) for site, counts in after.items()} == {
        "plain": [20, 64],
        "photo": [20, 64],
    }
    for site in sites:  # the same data with far fewer samples is refused as before
        federation = site.__dict__["_federation"]
        clients = tuple(
            replace(c, train=c.train.take(slice_of(c.train, 8))) for c in federation.clients
        )
        site.__dict__["_federation"] = replace(federation, clients=clients)
    raw = {**RAW, "training": {**RAW["training"], "batch_size": 4}}
    fewer = [bench.site(name) for name in SITES]
    for site, known in zip(fewer, sites, strict=True):
        site.__dict__["_federation"] = known.__dict__["_federation"]
    with pytest.raises(TooFewClients, match="8 training samples, 20 were agreed for this data"):
        bench.run(FakeGrid(fewer), raw, name="fewer", expected=expected)


def slice_of(split: object, count: int):
    import torch

    return torch.arange(count)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("missing_folder/", "missing_folder"),
        ("empty/", "empty"),
        ("broken.csv", "broken.csv"),
    ],
)
def test_join_with_unusable_data_ends_before_it_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.csv").write_text("")
    folder = server_app.make(tmp_path / "fed", ["plain"])
    monkeypatch.setattr(site_app, "reach", lambda *_: pytest.fail("it connects"))
    options = SiteOptions("plain", site_app.data_section(data), tmp_path / "runs")
    with pytest.raises(DataError, match=said) as error:
        site_app.join(read_bundle(folder.bundle("plain")), options, tmp_path / "home", wait=0)
    assert error.value.exit_code == 4


def test_a_table_whose_label_only_a_contract_names_is_usable(tmp_path: Path) -> None:
    rows = "".join(f"{n % 7},{n % 5},{n % 2}\n" for n in range(60))
    (tmp_path / "a.csv").write_text("age,chol,out\n" + rows)
    file = str(tmp_path / "a.csv")
    Site(SiteOptions("a", site_app.data_section(file))).check_data()
    wrong = site_app.data_section(file, ["data.label=other"])
    with pytest.raises(DataError, match="no column 'other'"):
        Site(SiteOptions("a", wrong)).check_data()


def status(folder: Path, *flags: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["federation", "status", str(folder), *flags])
    return done.exit_code, done.stdout


def test_status_says_by_its_exit_code_that_the_server_is_not_up(tmp_path: Path) -> None:
    folder = server_app.make(tmp_path / "fed", ["plain"])
    assert folder.agree("plain", 10, "d") is None
    code, text = status(folder.path, "--json")
    assert code == 1
    assert json.loads(text) == {
        "server": {"up": False, "port": folder.read().port},
        "sites": {"plain": {"connected": False, "samples": {"d": 10}}},
        "runs": [],
    }
    code, text = status(folder.path)
    assert code == 1
    assert "server: not up" in text
    assert "site plain: not connected, 10 training samples agreed" in text


@pytest.mark.parametrize(("online", "code"), [(10.0, 0), (-10.0, 5)])
def test_status_says_by_its_exit_code_whether_all_sites_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, online: float, code: int
) -> None:
    import time
    from types import SimpleNamespace

    from fedbn.flower.internals_server import Control

    folder = server_app.make(tmp_path / "fed", ["plain"])
    (key,) = folder.keys()
    node = SimpleNamespace(public_key=key, online_until=time.time() + online)
    monkeypatch.setattr(Control, "reachable", lambda self: True)
    monkeypatch.setattr(Control, "nodes", lambda self: [node])
    found, text = status(folder.path, "--json")
    assert found == code
    assert json.loads(text)["sites"]["plain"]["connected"] is (code == 0)


def test_a_user_without_a_name_can_write_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    write_unit(tmp_path / "a.service", "a", ["federation", "server"], tmp_path)
    assert f"User={os.getuid()}\n" in (tmp_path / "a.service").read_text()


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root takes another user")
def test_a_user_without_a_name_can_make_a_federation(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            pytest.skip(f"{folder} is closed to other users")
    code = "import sys; from fedbn.cli.main import main; sys.argv[0] = 'fedbn'; main()"
    words = ["federation", "init", str(place / "fed"), "--host", "a.example", "--sites", "nyu"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        user=54321,
        group=54321,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
    )
    if "Permission denied" in done.stderr and "site-packages" in done.stderr:
        pytest.skip("another user cannot read this installation")
    assert done.returncode == 0, done.stderr
    assert "User=54321\n" in (place / "fed" / "fedbn-server.service").read_text()


def test_join_ignores_the_proxies_of_the_environment(tmp_path: Path) -> None:
    """It says that no server answers; a proxy that nobody listens at would keep it waiting."""
    folder = server_app.make(tmp_path / "fed", ["plain"])
    proxies = {name: f"http://127.0.0.1:{free_port()}" for name in ("https_proxy", "ALL_PROXY")}
    done = subprocess.run(
        [sys.executable, "-m", "fedbn", "federation", "join", str(folder.bundle("plain")),
         "--data", "digits_mini", "--folder", str(tmp_path / "home"), "--wait", "0"],
        env={**environment(tmp_path), **proxies},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no server at 127.0.0.1" in done.stderr
