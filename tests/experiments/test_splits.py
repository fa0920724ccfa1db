"""`splits.json.gz`: which samples of a client are for training, validation and testing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import fedbn
from commanding import call
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation
from fedbn.experiments.splits import described


def site(scale: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    return scale * x, (x[:, 0] > 0).astype("int64")


SITES = {"a": site(1.0), "b": site(50.0)}


def splits(folder: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress((folder / "splits.json.gz").read_bytes()))["settings"]


def numbers(text: str) -> list[int]:
    ends = ([int(n) for n in part.split("-")] for part in text.split(","))
    return [number for first, *last in ends for number in range(first, (last or [first])[0] + 1)]


def test_parts_are_the_samples_that_the_run_used(tmp_path: Path) -> None:
    result = fedbn.fit(SITES, "mlp", rounds=1, out=tmp_path / "out", evaluation__validation=0.25)
    (found,) = splits(tmp_path / "out")["default"].values()
    for client in result.plan.federation.clients:
        x, _ = SITES[client.name]
        rows = {
            name: numbers(found[client.name][name]["rows"]) for name, _ in client.named_splits()
        }
        for name, split in client.named_splits():
            assert np.array_equal(x[rows[name]], split.x.numpy())
        assert sorted(row for some in rows.values() for row in some) == list(range(40))


def test_the_seed_of_a_run_decides_the_validation_part_and_not_the_test_part(
    tmp_path: Path,
) -> None:
    asked: dict[str, Any] = {"rounds": 1, "seeds": [0, 1], "evaluation__validation": 0.25}
    fedbn.fit(SITES, "mlp", out=tmp_path / "one", **asked)
    one = splits(tmp_path / "one")["default"]
    assert one["seed 0"]["a"]["test"] == one["seed 1"]["a"]["test"]
    assert one["seed 0"]["a"]["valid"] != one["seed 1"]["a"]["valid"]
    fedbn.fit(SITES, "mlp", out=tmp_path / "other", data__split_seed=1, **asked)
    assert (
        splits(tmp_path / "other")["default"]["seed 0"]["a"]["test"] != one["seed 0"]["a"]["test"]
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits_mini", {"percent": 50, "test_limit": 40}),
        ("digits_mini", {"percent": 10, "clients_per_domain": 3}),
        ("shifted_digits", {"dial": "clients"}),
        ("shifted_digits", {"dial": "samples", "strength": 0.5}),
    ],
)
def test_samples_of_embedded_digits_are_named_by_their_originals(
    name: str, options: dict[str, Any]
) -> None:
    labels = load_digits().target
    federation = load_federation(DataSection.model_validate({"name": name, **options}))
    used: dict[int, str] = {}
    for client, parts in described(federation).items():
        own = {c.name: c for c in federation.clients}[client]
        for part, split in own.named_splits():
            rows = numbers(parts[part]["rows"])
            assert labels[rows].tolist() == split.y.tolist()
            where = f"{own.domain}, test" if part == "test" else f"{client}, train"
            assert all(used.setdefault(row, where) == where for row in rows)


def test_a_part_that_is_given_has_all_its_numbers(tmp_path: Path) -> None:
    x, y = SITES["a"]
    fedbn.fit({"a": ((x, y), (x[:7], y[:7]))}, "mlp", rounds=1, out=tmp_path / "out")
    (found,) = splits(tmp_path / "out")["default"].values()
    assert (found["a"]["train"]["rows"], found["a"]["test"]["rows"]) == ("0-39", "0-6")


def test_a_run_that_is_resumed_has_the_same_file(tmp_path: Path) -> None:
    fedbn.fit(SITES, "mlp", rounds=1, out=tmp_path / "out")
    file = tmp_path / "out" / "splits.json.gz"
    before = file.read_bytes()
    file.unlink()
    fedbn.fit(SITES, "mlp", rounds=1, out=tmp_path / "out", resume=True)
    assert file.read_bytes() == before


def test_pictures_are_named_by_their_files(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for client in "ab":
        for label in "xy":
            folder = tmp_path / "sites" / client / label
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    named = []
    for lazy in ("true", "false"):
        options = ("--set", "data.size=8", "--set", f"data.lazy={lazy}")
        asked = ("--method", "fedbn", "--rounds", 1, "--seed", 0, "--workers", 1, *options)
        out = tmp_path / f"out-{lazy}"
        answer = call("run", "--data", tmp_path / "sites", *asked, "--out", out)
        assert answer.code == 0, answer.err
        (found,) = splits(out)["default"].values()
        named.append(found)
    assert named[0] == named[1]
    parts = named[0]["a"]
    files = [*parts["train"]["files"], *parts["test"]["files"]]
    assert sorted(files) == [f"{label}/{number}.png" for label in "xy" for number in range(6)]
