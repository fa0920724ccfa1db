"""Data that means different things at different clients, or in different splits of one client."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedbn
from commanding import call
from fedbn.core.consistency import different_words
from fedbn.core.findings import check_federation
from fedbn.data.checks import examine
from fedbn.data.python_data import federation_of
from fedbn.errors import DataError

QUIET = {"rounds": 1, "notes": lambda text: None}


def pictures(seed: int = 0, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 pictures (n, 1, 8, 8) whose brightness is their class."""
    draws = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = draws.integers(0, 120, (n, 1, 8, 8)) + 120 * y[:, None, None, None]
    x[:, 0, 0, 0], x[:, 0, 0, 1] = 255, 0  # the whole range at every client
    return x.astype(np.uint8), y


def as_bytes(x):
    return x.astype(np.float32)


def as_unit(x):
    return x.astype(np.float32) / 255


def as_signed(x):
    return x.astype(np.float32) / 127.5 - 1


class Pictures(torch.utils.data.Dataset):
    def __init__(self, change, seed=0):
        (x, y), self.change = pictures(seed), change
        self.x, self.targets = x, y.tolist()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.from_numpy(self.change(self.x[index])), self.targets[index]


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (as_bytes, r"x\.round\(\)\.astype\('uint8'\)"),
        (as_unit, r"\(255 \* x\)\.round\(\)\.astype\('uint8'\)"),
        (as_signed, r"x\.astype\('float32'\) / 127\.5 - 1"),
    ],
)
def test_uint8_and_float_pixels_are_refused_with_the_conversion(change, remedy):
    (x, y), (other, labels) = pictures(0), pictures(1)
    with pytest.raises(DataError, match=r"uint8 at a; floats from .* at b\..*" + remedy):
        fedbn.fit({"a": (x, y), "b": (change(other), labels)}, **QUIET)


def test_uint8_training_data_with_float_test_data_is_refused():
    x, y = pictures()
    pair = ((x, y), (as_unit(x), y))
    with pytest.raises(DataError, match=r"uint8 at a \(train\), b; floats .* at a \(test\)"):
        fedbn.fit({"a": pair, "b": (x, y)}, **QUIET)


def test_datasets_of_two_pixel_types_are_refused_without_reading_them():
    data = {"a": Pictures(lambda x: x), "b": Pictures(as_unit, 1)}
    with pytest.raises(DataError, match="uint8 at a; floats from 0 to 1 at b"):
        fedbn.fit(data, **QUIET)


def test_npz_files_of_two_pixel_types_end_run_and_data_check_with_code_4(tmp_path):
    for name, change in (("a", lambda x: x), ("b", as_bytes)):
        x, y = pictures()
        np.savez(tmp_path / name, train_x=change(x), train_y=y, test_x=change(x[:6]), test_y=y[:6])
    for command in (
        ("run", "--data", tmp_path, "--dry-run"),
        ("data", "check", tmp_path, "--json"),
    ):
        answer = call(*command)
        assert answer.code == 4
        assert "uint8 at a; floats from 0 to 255 at b" in answer.out + answer.err


def test_a_darker_client_of_the_same_type_is_an_honest_feature_shift():
    (x, y), (other, labels) = pictures(0), pictures(1)
    dark = (other // 8).astype(np.uint8)
    assert check_federation(federation_of({"a": (x, y), "b": (dark, labels)})) == []
    for change in (as_unit, as_signed, as_bytes):
        made = federation_of({"a": (change(x), y), "b": (change(dark), labels)})
        assert check_federation(made) == []


def test_float_pictures_from_0_to_255_next_to_0_to_1_are_warned_about():
    (x, y), (other, labels) = pictures(0), pictures(1)
    made = federation_of({"a": (as_bytes(x), y), "b": (as_unit(other), labels)})
    (said,) = check_federation(made)
    assert said.startswith("pictures of two ranges: floats from 0 to 255 at a, floats up to 1 at b")
    assert said in [finding.text for finding in examine(made)]


def test_uint8_columns_of_a_table_are_numbers_and_not_pixels(tmp_path):
    table = np.random.default_rng(0).integers(0, 90, (20, 3)).astype(np.uint8)
    y = np.arange(20) % 2
    pairs = [((kind, y), (kind, y)) for kind in (table, table.astype(float))]
    made = federation_of({"a": pairs[0], "b": pairs[1]})
    assert made.clients[0].train.dtype == torch.float32
    assert torch.equal(made.clients[0].train.x, made.clients[1].train.x)
    assert check_federation(made) == []
    run = fedbn.fit({"a": (table, y), "b": (table + 9, y)}, **QUIET)
    expected = run.predict_proba(table.astype(float), "a")
    assert np.array_equal(run.predict_proba(table, "a"), expected)


def test_uint8_columns_of_a_frame_and_of_an_npz_file_are_numbers(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = np.random.default_rng(0).integers(0, 90, (20, 3)).astype(np.uint8)
    y = np.arange(20) % 2
    frame = pandas.DataFrame(table, columns=[*"pqr"])
    made = federation_of({"a": (frame, y)})
    assert made.clients[0].train.x.max() > 1
    np.savez(tmp_path / "a", train_x=table, train_y=y, test_x=table, test_y=y)
    from fedbn.datasets.own_files import arrays

    assert torch.equal(arrays(str(tmp_path)).clients[0].train.x, torch.from_numpy(table).float())


@pytest.mark.parametrize("change", [as_bytes, as_unit])
def test_new_pictures_in_another_range_than_the_runs_are_refused(change):
    x, y = pictures()
    run = fedbn.fit({"a": (x, y), "b": (x, y)}, **QUIET)
    expected = run.predict(x, "a")
    assert np.array_equal(run.predict(as_signed(x), "a"), expected)
    with pytest.raises(DataError, match=r"x: floats .* but the run was trained on"):
        run.predict(change(x), "a")
    with pytest.raises(DataError, match=r"x: floats .* but the run was trained on"):
        run.adapt(change(x), site="new")
    unit = fedbn.fit({"a": (as_unit(x), y), "b": (as_unit(x), y)}, **QUIET)
    with pytest.raises(DataError, match="floats from 0 to 255, but the run was trained on floats"):
        unit.predict(as_bytes(x), "a")


def test_names_of_one_form_are_alike_whatever_classes_a_client_lacks():
    assert different_words({"a": ["0", "1"], "b": ["1"], "c": ["2", "0"]}) == ""
    assert different_words({"a": ["ill", "well"], "b": ["well"]}) == ""
    assert different_words({"a": ["True", "False"], "b": ["0", "1"]}) == (
        "True, False at a; 0, 1 at b"
    )
