"""What targets mean: one reading over all clients, or an error that names both readings."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import fedbn
from commanding import call
from fedbn.core.federation import Targets, all_targets
from fedbn.data.python_data import federation_of
from fedbn.data.targets import RawTargets, meaning_of
from fedbn.datasets.own_files import arrays
from fedbn.errors import DataError

QUIET = {"rounds": 1, "notes": lambda text: None}
N = 20
X = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")
BINARY = np.arange(N) % 2
GRADES = np.arange(N) % 3
ONE_HOT = np.eye(3)[GRADES]


class Samples(torch.utils.data.Dataset):
    """A Dataset of some targets, which it may tell or keep to itself."""

    def __init__(self, y, tells=True):
        self.y, self.reads = y, 0
        if tells:
            self.targets = y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        self.reads += 1
        return X[index], self.y[index]


KINDS = {
    "arrays": lambda y: (X, y),
    "tensors": lambda y: (torch.from_numpy(X), torch.from_numpy(np.asarray(y))),
    "dataset with targets": Samples,
    "dataset without targets": lambda y: Samples(y, tells=False),
}


def given(kind, **clients):
    return {name: KINDS[kind](y) for name, y in clients.items()}


@pytest.fixture(params=[*KINDS])
def kind(request):
    return request.param


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_float_labels_0_and_1_become_classes_with_one_message(kind, shape):
    y = BINARY.astype("float32").reshape(shape)
    made = federation_of(given(kind, a=y, b=1 - y))
    assert (made.targets, made.classes) == (Targets.CLASS, ("0", "1"))
    said = [text for text in made.remarks if "floats 0.0 and 1.0" in text]
    assert len(said) == 1
    assert "task.name = 'regression'" in said[0]
    for client in made.clients:
        for split in client.splits:
            assert split.target.dtype == torch.int64
            assert torch.equal(all_targets(split), all_targets(split, read=True))


def test_the_named_task_decides_what_float_labels_are(kind):
    data = given(kind, a=BINARY.astype("float32"), b=BINARY.astype("float32"))
    for task, targets in (("classification", Targets.CLASS), ("regression", Targets.NUMBERS)):
        run = fedbn.fit(data, "mlp", task=task, **QUIET)
        assert run.federation.targets is targets
        assert not any("floats 0.0 and 1.0" in text for text in run.federation.remarks)
    assert fedbn.fit(data, "mlp", **QUIET).federation.targets is Targets.CLASS


def test_one_client_may_have_only_one_of_the_two_floats():
    made = federation_of(given("arrays", a=np.zeros(N), b=BINARY.astype(float)))
    assert made.classes == ("0", "1")


def test_floats_that_are_no_classes_stay_numbers(kind):
    y = X[:, 0] * 3
    made = federation_of(given(kind, a=y, b=y + 0.25))
    assert (made.targets, made.remarks[1:]) == (Targets.NUMBERS, ())


def test_a_dataset_of_measured_numbers_is_not_read_for_its_labels():
    data = Samples(X[:, 0], tells=False)
    federation_of({"a": data})
    assert data.reads <= 10  # one index, with seven seeds among them


def test_whole_floats_are_refused_with_both_readings(kind):
    match = r"floats, but all are whole numbers \(0, 1, 2\)\. .*y\.astype\(int\).*'regression'"
    data = given(kind, a=GRADES.astype("float64"), b=GRADES.astype("float64"))
    with pytest.raises(DataError, match=match):
        fedbn.fit(data, "mlp", **QUIET)
    classes = fedbn.fit(data, "mlp", task="classification", **QUIET).federation
    assert (classes.targets, classes.classes) == (Targets.CLASS, ("0", "1", "2"))
    numbers = fedbn.fit(data, "mlp", task="regression", **QUIET).federation
    assert (numbers.targets, numbers.classes) == (Targets.NUMBERS, ("0",))


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (2.0 * BINARY - 1, r"2 different values \(-1, 1\): classes, or numbers.*\(y > 0\)"),
        (BINARY + 0.5, r"2 different values \(0\.5, 1\.5\): classes, or numbers.*\(y > 1\)"),
        (GRADES - 1.0, r"3 different values \(-1, 0, 1\): classes, or numbers"),
    ],
)
def test_floats_of_few_values_are_refused_with_both_readings(y, match):
    with pytest.raises(DataError, match=match + r".*task\.name = 'regression'"):
        fedbn.fit(given("arrays", a=y, b=y), "mlp", **QUIET)
    numbers = fedbn.fit(given("arrays", a=y, b=y), "mlp", task="regression", **QUIET)
    assert numbers.federation.targets is Targets.NUMBERS


def test_data_check_takes_the_task_that_its_messages_name(tmp_path):
    for name in "ab":
        np.savez(tmp_path / name, train_x=X, train_y=GRADES * 1.0, test_x=X, test_y=GRADES * 1.0)
    answer = call("data", "check", tmp_path)
    assert answer.code == 4
    assert "task.name = 'classification'" in answer.out
    for task in ("classification", "regression"):
        assert call("data", "check", tmp_path, "--set", f"task.name={task}").code == 0
    shown = call("data", "show", tmp_path, "--set", "task.name=classification", "--json")
    assert json.loads(shown.out)["classes"] == ["0", "1", "2"]


def test_many_whole_floats_are_measured_numbers():
    ages = np.arange(40.0, 40.0 + N)
    assert federation_of({"a": (X, ages), "b": (X, ages)}).targets is Targets.NUMBERS


@pytest.mark.parametrize("dtype", [int, float, bool])
def test_one_hot_labels_are_refused_with_both_readings(kind, dtype):
    y = ONE_HOT.astype(dtype)
    data = given(kind, a=y, b=y)
    match = r"exactly one 1.*y\.argmax\(axis=1\).*task\.name = 'multilabel'"
    with pytest.raises(DataError, match=match):
        fedbn.fit(data, "mlp", **QUIET)
    classes = fedbn.fit(data, "mlp", task="classification", **QUIET).federation
    for client in classes.clients:
        assert torch.equal(all_targets(client.train), all_targets(client.train, read=True))
    assert (classes.targets, classes.classes) == (Targets.CLASS, ("0", "1", "2"))
    labels = fedbn.fit(data, "mlp", task="multilabel", **QUIET).federation
    assert labels.targets is Targets.LABELS


def test_several_labels_as_numbers_are_refused_with_both_readings():
    y = np.random.default_rng(1).integers(0, 2, (N, 3))
    for dtype in (int, float):
        with pytest.raises(DataError, match=r"labels, or numbers.*astype\(bool\).*'regression'"):
            federation_of({"a": (X, y.astype(dtype))})
        made = federation_of({"a": (X, y.astype(dtype))}, task="multilabel")
        assert torch.equal(
            made.clients[0].train.y.sum(0) + made.clients[0].tests["a"].y.sum(0),
            torch.from_numpy(y.sum(0)),
        )
    assert federation_of({"a": (X, y > 0)}).targets is Targets.LABELS


def test_labels_from_1_are_refused_with_both_readings(kind):
    match = r"1, 2, 3, and 0 does not occur\. .*give y - 1; .*data\.classes.*'regression'"
    with pytest.raises(DataError, match=match):
        federation_of(given(kind, a=GRADES + 1, b=GRADES + 1))
    named = federation_of(given(kind, a=GRADES + 1, b=GRADES + 1), classes=[*"wxyz"])
    assert named.classes == ("w", "x", "y", "z")
    counted = federation_of(given(kind, a=GRADES + 1, b=GRADES + 1), task="regression")
    assert counted.targets is Targets.NUMBERS


def test_labels_with_gaps_are_refused_with_the_renumbering(kind):
    y = np.array([0, 7, 900])[GRADES]
    match = r"0, 7, 900: 898 of .* do not occur\. .*numpy\.searchsorted\(\[0, 7, 900\], y\).*'regr"
    with pytest.raises(DataError, match=match):
        federation_of(given(kind, a=y, b=y))
    assert federation_of(given(kind, a=np.searchsorted([0, 7, 900], y))).classes == ("0", "1", "2")


def test_a_class_that_one_client_lacks_is_no_gap(kind):
    made = federation_of(given(kind, a=2 * BINARY, b=BINARY, c=np.ones(N, int)))
    assert made.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        (BINARY > 0, BINARY, r"True and False .*at client a; whole numbers \(0, 1\) at client b"),
        (np.array(["well", "ill"])[BINARY], BINARY, "texts .ill, well. at client a; whole numbers"),
        (np.array(["well", "ill"])[BINARY], BINARY > 0, "texts .* at client a; True and False"),
        (BINARY, BINARY + 0.5, r"whole numbers .* at client a; floats \(0.5, 1.5\) at client b"),
        (BINARY, ONE_HOT, "whole numbers .* at client a; rows of floats"),
        (
            np.array(["0", "1"])[BINARY],
            BINARY,
            r"texts \(0, 1\) at client a; whole numbers \(0, 1\)",
        ),
        (np.array(["False", "True"])[BINARY], BINARY > 0, r"texts .* at client a; True and False"),
    ],
)
def test_types_that_differ_between_clients_are_refused(a, b, match):
    with pytest.raises(DataError, match=match):
        federation_of({"a": (X, a), "b": (X, b)})
    with pytest.raises(DataError, match="of different types"):
        federation_of({"a": (X, a), "b": ((X, a), (X, b))})


def test_types_that_can_only_mean_one_thing_are_unified():
    floats = federation_of({"a": (X, BINARY.astype(float)), "b": (X, BINARY)})
    assert floats.classes == ("0", "1")
    assert floats.clients[0].train.y.dtype == torch.int64
    assert federation_of({"a": (X, BINARY > 0), "b": (X, BINARY < 1)}).classes == ("False", "True")


def test_a_column_of_labels_is_explained():
    y = BINARY[:, None]
    match = r"shape \(20, 1\), one column.*y\[:, 0\] for classes; for regression .* floats"
    with pytest.raises(DataError, match=match):
        federation_of({"a": (X, y)})
    assert federation_of({"a": (X, y)}, task="classification").classes == ("0", "1")
    assert federation_of({"a": (X, X[:, :1])}).targets is Targets.NUMBERS
    from fedbn.core.federation import Client, Federation, Split
    from fedbn.core.findings import check_federation

    split = Split(torch.from_numpy(X), torch.from_numpy(y))
    with pytest.raises(DataError, match=r"shape \(20, 1\), one column.*y\[:, 0\]"):
        check_federation(Federation("f", (Client("a", "a", split, {"a": split}),), ("0", "1")))


def masks(*values):
    return np.array(values, dtype=np.uint8)[np.arange(N * 16).reshape(N, 4, 4) % len(values)]


PICTURES = np.random.default_rng(0).normal(size=(N, 1, 4, 4)).astype("float32")


def test_masks_0_and_1_next_to_0_and_255_are_refused_with_the_clients():
    data = {"a": (PICTURES, masks(0, 1)), "b": (PICTURES, masks(0, 255))}
    match = r"mask values .* 0, 1, 255 \(0, 1 at client a; 0, 255 at client b\).*y > 0"
    with pytest.raises(DataError, match=match):
        fedbn.fit(data, **QUIET)
    with pytest.raises(DataError, match=r"mask values of all clients are 0, 255\. .*y > 0"):
        federation_of({"b": data["b"]})
    made = federation_of({"a": data["a"], "b": (PICTURES, masks(0, 2))})
    assert (made.targets, made.classes) == (Targets.MASK, ("0", "1", "2"))


def test_masks_of_floats_or_truth_values_are_refused_with_the_conversion():
    for kind in (float, bool):
        with pytest.raises(DataError, match=r"masks of .*y\.astype\('uint8'\)"):
            federation_of({"a": (PICTURES, masks(0, 1).astype(kind))})


def write(folder, **labels):
    for name, y in labels.items():
        np.savez(folder / name, train_x=X, train_y=y, test_x=X, test_y=y)
    return str(folder)


def test_npz_files_follow_the_same_rules(tmp_path):
    write(tmp_path, a=BINARY.astype(float), b=BINARY[:, None])
    made = arrays(str(tmp_path))
    assert made.classes == ("0", "1")
    assert len(made.remarks) == 1
    write(tmp_path, b=BINARY > 0)
    with pytest.raises(DataError, match=r"floats .* True and False"):
        arrays(str(tmp_path))
    write(tmp_path, a=GRADES + 1, b=GRADES + 1)
    with pytest.raises(DataError, match="0 does not occur"):
        arrays(str(tmp_path))
    for command in (("run", "--data", tmp_path, "--dry-run"), ("data", "check", tmp_path)):
        assert call(*command).code == 4
    write(tmp_path, a=GRADES.astype(float), b=GRADES.astype(float))
    assert arrays(str(tmp_path), task="classification").classes == ("0", "1", "2")
    assert arrays(str(tmp_path), task="regression").targets is Targets.NUMBERS
    asked = ("run", "--data", tmp_path, "--dry-run", "--set")
    assert call(*asked, "task.name=regression").code == 0
    assert call("data", "check", tmp_path, "--set", "task=regression").code == 0


def test_new_labels_of_a_trained_model_follow_the_same_rules():
    run = fedbn.fit({"a": (X, BINARY.astype(float)), "b": (X, BINARY)}, "mlp", **QUIET)
    expected = run.score(X, BINARY, "a")
    assert run.score(X, BINARY.astype(float), "a") == expected
    with pytest.raises(DataError, match=r"one column; give y\[:, 0\]"):
        run.score(X, BINARY[:, None], "a")
    with pytest.raises(DataError, match=r"one-hot rows; give y\.argmax\(axis=1\)"):
        run.score(X, np.eye(2)[BINARY], "a")


def test_negative_labels_and_fractions_name_the_sample():
    y = BINARY.copy()
    y[3] = -1
    with pytest.raises(DataError, match="label -1 of sample 3"):
        federation_of({"a": (X, y)})
    with pytest.raises(DataError, match=r"label 0\.5 of sample 0 is not a whole number"):
        federation_of({"a": (X, BINARY + 0.5)}, task="classification")


def test_no_targets_at_all_are_classes():
    empty = RawTargets("client a", np.zeros(0, int))
    assert meaning_of([empty]).names == ("0", "1")
