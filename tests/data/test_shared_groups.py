"""Patients whose ids occur at several sites: warned about, or on one side of every division."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedbn
from commanding import call
from fedbn.core.federation import Federation
from fedbn.core.randomness import divided_across, with_validation
from fedbn.data.python_data import federation_of
from fedbn.datasets.own_files import folders, masks, tables
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import alone

HOMES = {"a": range(20), "b": range(10, 30), "c": range(25, 45)}
"""The patients of each site: some are at two."""
WARNING = "ids are in training at one client and in test at another, the first"


def sides(made: Federation) -> dict[str, dict[int, set[str]]]:
    """Return, for each part, the numbers of the patients at all sites that are in it."""
    found: dict[str, dict[int, set[str]]] = {}
    for client in made.clients:
        for name, split in client.named_splits():
            assert split.groups is not None
            for group in split.groups.tolist():
                found.setdefault(name, {}).setdefault(group, set()).add(client.name)
    return found


def check_apart(made: Federation) -> None:
    parts = sides(made)
    assert not parts["train"].keys() & parts["test"].keys()
    both = [homes for part in parts.values() for homes in part.values() if len(homes) > 1]
    assert len(both) >= 10
    for client in made.clients:
        whole = len(client.train) + len(client.tests[client.name])
        assert 0.1 <= len(client.tests[client.name]) / whole <= 0.35


def rows(patients, seed):
    """Three samples of each patient; a patient has one class."""
    draws = np.random.default_rng(seed)
    whose = np.repeat([f"p{n:02}" for n in patients], 3)
    y = np.repeat([n % 2 for n in patients], 3)
    return draws.normal(size=(len(whose), 3)).astype("float32"), y, whose


def as_arrays():
    return {name: rows(own, at) for at, (name, own) in enumerate(HOMES.items())}


def as_tables(folder: Path) -> str:
    for name, (x, y, whose) in as_arrays().items():
        lines = [f"{v[0]:.4f},{p},{c}" for v, p, c in zip(x, whose, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["dose,patient,ill", *lines]))
    return str(folder)


def as_pictures(folder: Path) -> str:
    for at, (site, own) in enumerate(HOMES.items()):
        draws = np.random.default_rng(at)
        for n in own:
            home = folder / site / ("well", "ill")[n % 2]
            home.mkdir(parents=True, exist_ok=True)
            for number in range(2):
                pixels = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(home / f"p{n:02}_{number}.png")
    return str(folder)


def as_masks(folder: Path) -> str:
    for site, own in HOMES.items():
        for part in ("images", "masks"):
            (folder / site / part).mkdir(parents=True)
        for n in own:
            for number in range(2):
                bright = np.zeros((8, 8), np.uint8)
                bright[n % 5 : n % 5 + 3, number : number + 3] = 255
                for part in ("images", "masks"):
                    Image.fromarray(bright).save(folder / site / part / f"p{n:02}_{number}.png")
    return str(folder)


PATTERN = r"^(p\d+)_"
READERS = {
    "arrays": lambda folder, scope: federation_of(as_arrays(), group_scope=scope),
    "tables": lambda folder, scope: tables(
        as_tables(folder), label="ill", group="patient", group_scope=scope
    ),
    "pictures": lambda folder, scope: folders(
        as_pictures(folder), group=PATTERN, group_scope=scope
    ),
    "masks": lambda folder, scope: masks(as_masks(folder), group=PATTERN, group_scope=scope),
}


@pytest.mark.parametrize("kind", [*READERS])
def test_ids_at_two_sites_are_warned_about_until_their_scope_is_said(tmp_path, kind):
    homes = {scope: tmp_path / str(scope) for scope in (None, "site", "global")}
    for home in homes.values():
        home.mkdir()
    open_, own, joint = (READERS[kind](home, scope) for scope, home in homes.items())
    said = [text for text in open_.remarks if WARNING in text]
    assert len(said) == 1
    assert "data.group_scope = 'global'" in said[0]
    for made in (own, joint):
        assert not any(WARNING in text for text in made.remarks)
    assert open_.fingerprint() == own.fingerprint()
    check_apart(joint)


@pytest.mark.parametrize("kind", [*READERS])
def test_a_global_patient_is_on_one_side_of_a_validation_split_too(tmp_path, kind):
    (tmp_path / "sites").mkdir()
    made = with_validation(READERS[kind](tmp_path / "sites", "global"), 0.25, 0)
    parts = sides(made)
    assert not parts["train"].keys() & parts["valid"].keys()
    assert not parts["train"].keys() & parts["test"].keys()
    assert not parts["valid"].keys() & parts["test"].keys()
    assert all(client.valid is not None and len(client.valid) for client in made.clients)


def test_without_common_ids_a_global_scope_divides_as_each_site_does():
    apart = {name: rows(range(20 * at, 20 * at + 20), at) for at, name in enumerate("ab")}
    own, joint = (federation_of(apart, group_scope=scope) for scope in ("site", "global"))
    assert federation_of(apart).remarks == ()
    for one, other in zip(own.clients, joint.clients, strict=True):
        assert torch.equal(one.train.x, other.train.x)
        assert torch.equal(one.tests[one.name].x, other.tests[one.name].x)


def test_frames_take_the_scope_too():
    pandas = pytest.importorskip("pandas")
    frames = {
        name: pandas.DataFrame(x, columns=[*"pqr"]).assign(ill=y, patient=whose)
        for name, (x, y, whose) in as_arrays().items()
    }
    check_apart(federation_of(frames, label="ill", group="patient", group_scope="global"))


def test_data_divided_by_hand_must_agree_with_a_global_scope():
    (x, y, whose), other = rows(range(10), 0), rows(range(10, 20), 1)
    data = {"a": ((x, y, whose), other), "b": (other, (x, y, whose))}
    assert any(WARNING in text for text in federation_of(data).remarks)
    with pytest.raises(DataError, match="'p10' is in training at b and in test at a"):
        federation_of(data, group_scope="global")


def test_a_global_scope_needs_ids_and_all_sites(tmp_path):
    (tmp_path / "tables").mkdir()
    path = as_tables(tmp_path / "tables")
    with pytest.raises(ConfigError, match=r"needs data\.group, the column of ids"):
        tables(path, label="ill", drop=["patient"], group_scope="global")
    with pytest.raises(ConfigError, match="needs groups at every client"):
        federation_of({"a": rows(range(9), 0)[:2]}, group_scope="global")
    given = {"path": path, "label": "ill", "group": "patient", "group_scope": "global"}
    with pytest.raises(ConfigError, match="one site has its own alone"):
        alone(DataSection.model_validate(given), "a")
    with pytest.raises(ConfigError, match="exclude each other"):
        fedbn.fit(
            as_arrays(), rounds=1, data__group_scope="global", data__partition="iid",
            data__clients=2,
        )  # fmt: skip


def test_run_and_data_check_say_it_and_take_the_option(tmp_path):
    path = as_tables(tmp_path)
    asked = ("--set", "data.label=ill", "--set", "data.group=patient")
    assert WARNING in call("run", "--data", path, "--dry-run", *asked).err
    assert WARNING in call("data", "check", path, "--json", *asked).out
    said = call("run", "--data", path, "--dry-run", *asked, "--set", "data.group_scope=global")
    assert (said.code, WARNING in said.err) == (0, False)


def test_a_division_across_clients_depends_on_the_seed_alone():
    parts = {
        name: (torch.from_numpy(y), torch.tensor([int(p[1:]) for p in whose]))
        for name, (_, y, whose) in as_arrays().items()
    }
    first, again, other = (divided_across(parts, 0.3, seed, "test split") for seed in (0, 0, 1))
    assert all(torch.equal(first[name][1], again[name][1]) for name in parts)
    assert any(not torch.equal(first[name][1], other[name][1]) for name in parts)
