"""Data that worker processes share: read once, the same tensors, nobody's but one's own changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from commanding import bits, call
from fedbn.core.federation import Client, Federation, Split
from fedbn.experiments.shared_data import share, shared
from tiny import federation

OWN = """
from pathlib import Path
from tiny import federation

def sites():
    with Path(__file__).with_name("readings").open("a") as file:
        file.write("read\\n")
    return federation(12, 9)
"""


@pytest.fixture
def rich() -> Federation:
    """Clients with groups, masks, a validation set, labels of none, and one test set for two."""
    pixels = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    masks = Split(pixels, pixels[:, 0], groups=torch.tensor([4, 4]))
    none = Split(torch.zeros(0, 3), torch.zeros(0, 2, dtype=torch.bool))
    half = Split(torch.randn(5, 3, dtype=torch.float16)[::2], torch.tensor([0, 1, 1]))
    clients = (
        Client("a", "one", masks, {"one": half}, none),
        Client("b", "two", half, {"two": half}),
    )
    told = {"group_scope": "global", "levels": {"a": [[0.0], [1.0]]}}
    return Federation("rich", clients, ("x", "y"), remarks=("made up",), preparation=told)


@pytest.fixture
def closing() -> Iterator[list[int]]:
    """Descriptors to close."""
    found: list[int] = []
    yield found
    for descriptor in found:
        os.close(descriptor)


def test_what_is_mapped_is_what_was_shared(rich: Federation, closing: list[int]) -> None:
    other = federation(4)
    descriptor = share({"B=1": rich, "B=2": rich, "B=3": other})
    assert descriptor is not None
    closing.append(descriptor)
    found = shared(descriptor)
    assert list(found) == ["B=1", "B=2", "B=3"]
    assert found["B=1"] is found["B=2"]
    for mine, theirs in ((found["B=1"], rich), (found["B=3"], other)):
        assert (mine.name, mine.classes) == (theirs.name, theirs.classes)
        assert mine.preparation == theirs.preparation
        assert mine.fingerprint() == theirs.fingerprint()
        assert [c.domain for c in mine.clients] == [c.domain for c in theirs.clients]
        assert [len(c.splits) for c in mine.clients] == [len(c.splits) for c in theirs.clients]
    a, b = found["B=1"].clients
    assert a.tests["one"].source is b.train.source  # one test set stays one
    assert a.train.groups is not None


def test_a_change_stays_with_who_makes_it(closing: list[int]) -> None:
    descriptor = share({"default": federation(4)})
    assert descriptor is not None
    closing.append(descriptor)
    first, second = shared(descriptor)["default"], shared(descriptor)["default"]
    assert isinstance(first.clients[0].train, Split)
    first.clients[0].train.x.zero_()
    assert second.fingerprint() == federation(4).fingerprint() != first.fingerprint()


def test_augmented_and_mapped_data_is_left_to_each_process(
    tmp_path: Path, closing: list[int]
) -> None:
    one = federation(4)
    client = one.clients[0]
    assert isinstance(client.train, Split)
    augmented = replace(client, train=replace(client.train, augment=lambda x, generator: x))
    np.save(tmp_path / "x.npy", client.train.x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    in_file = replace(client, train=replace(client.train, x=torch.from_numpy(mapped)))
    assert share({"default": replace(one, clients=(augmented,))}) is None
    assert share({"default": replace(one, clients=(in_file,))}) is None
    descriptor = share({"a": replace(one, clients=(in_file,)), "b": one})
    assert descriptor is not None
    closing.append(descriptor)
    assert list(shared(descriptor)) == ["b"]


def test_workers_read_no_data_again(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "tiny.py").write_text((Path(__file__).parents[1] / "tiny.py").read_text())
    asked = ("run", "--set", "data.name=own:sites", "--model", "mlp", "--rounds", 2, "--seed", 0)
    asked += ("--method", "fedavg", "--method", "fedbn", "--set", "evaluation.validation=0.3")
    for workers in (1, 2):
        answer = call(*asked, "--workers", workers, "--out", tmp_path / str(workers), cwd=tmp_path)
        assert answer.code == 0, answer.err
    assert "2 side by side" in answer.err
    assert (tmp_path / "readings").read_text() == 2 * "read\n"  # once a run
    assert bits(tmp_path / "1") == bits(tmp_path / "2")


def test_workers_hold_out_the_same_patients_where_ids_are_global(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n * n % 11},{'ab'[n % 2]},p{n // 3},{n % 2}" for n in range(90)]
    (tmp_path / "all.csv").write_text("\n".join(["age,dose,site,patient,ill", *rows]) + "\n")
    options = {"label": "ill", "site": "site", "group": "patient", "group_scope": "global"}
    asked = ["run", "--data", tmp_path / "all.csv", "--model", "mlp", "--rounds", 2, "--seed", 0]
    asked += ["--method", "fedavg", "--method", "fedbn", "--set", "evaluation.validation=0.4"]
    asked += [word for key, one in options.items() for word in ("--set", f"data.{key}={one}")]
    for workers in (1, 2):
        answer = call(*asked, "--workers", workers, "--out", tmp_path / str(workers))
        assert answer.code == 0, answer.err
    assert "2 side by side" in answer.err
    assert bits(tmp_path / "1") == bits(tmp_path / "2")
