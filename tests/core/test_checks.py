"""Data that cannot be trained on is refused, naming the client, the split and the sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.findings import check_federation, check_name, similar_classes
from fedbn.errors import DataError
from tiny import federation


def with_train(data: Federation, **changes: torch.Tensor) -> Federation:
    """Client b's training data, changed."""
    a, b = data.clients
    return replace(data, clients=(a, replace(b, train=replace(b.train, **changes))))


def with_value(value: float) -> Federation:
    data = federation(4, 4)
    x = data.clients[1].train.x.clone()
    x[2, 1] = value
    return with_train(data, x=x)


def with_name(*names: str) -> Federation:
    data = federation(*[4] * len(names))
    renamed = [replace(c, name=n) for c, n in zip(data.clients, names, strict=True)]
    return replace(data, clients=tuple(renamed))


def labels(*values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


DATA = federation(4, 4)
B = "data tiny, client b, train: "


@pytest.mark.shows("C07", "C08", "D01", "D02", "D05", "D06", "D08", "D09", "D10", "D30")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (replace(DATA, clients=()), "data tiny: no clients"),
        (replace(DATA, classes=("one",)), r"data tiny: 1 class\(es\); at least 2"),
        (with_train(DATA, x=torch.zeros(0, 3), y=labels()), B + "no samples"),
        (with_train(DATA, x=torch.zeros(3, 3)), B + "3 samples but 4 labels"),
        (
            with_train(DATA, x=torch.zeros(1, 3), y=labels(0)),
            "client b: 1 training sample; at least 2",
        ),
        (with_value(float("nan")), B + r"NaN in sample 2"),
        (with_value(float("inf")), B + "infinity in sample 2"),
        (with_train(DATA, y=labels(0, 1, 2, 1)), B + "label 2 of sample 2; expected 0 to 1"),
        (with_train(DATA, y=labels(0, -100, 0, 1)), B + "label -100 of sample 1"),
        (
            with_train(DATA, y=labels(0.0, 1, 0, 1, dtype=torch.float32)),
            B + r"labels are torch.float32 of shape \(4,\)",
        ),
        (
            with_train(DATA, y=torch.zeros(4, 2, dtype=torch.int64)),
            B + r"labels are torch.int64 of shape \(4, 2\); legal are .* one a sample",
        ),
        (with_train(DATA, x=torch.zeros(4, 5)), B + r"samples of shape \(5,\).*first.*\(3,\)"),
        (with_train(DATA, x=torch.zeros(4, 3).half()), B + "samples of torch.float16; legal are"),
        (with_name("a", "a"), "two clients are called 'a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_data_is_refused(data: Federation, text: str):
    with pytest.raises(DataError, match=text):
        check_federation(data)


def test_the_test_and_validation_data_are_looked_at_too():
    client = DATA.clients[0]
    bad = replace(client.train, y=labels(0, 1, 0, 7))
    for changed, split in (
        (replace(client, tests={"domain a": bad}), "client a, test:"),
        (replace(client, tests={"elsewhere": bad}), "client a, test elsewhere:"),
        (replace(client, valid=bad), "client a, valid:"),
    ):
        with pytest.raises(DataError, match=split):
            check_federation(replace(DATA, clients=(changed,)))


def test_a_nan_among_single_numbers_is_found():
    part = Split(torch.tensor([1.0, float("nan")]), labels(0, 1))
    client = Client("a", "a", part, {"a": part})
    with pytest.raises(DataError, match="NaN in sample 1"):
        check_federation(Federation("f", (client,), ("x", "y")))


def test_good_data_gives_no_warning():
    assert check_federation(federation(12, 12)) == []


def test_an_absent_class_is_only_a_warning():
    data = with_train(federation(12, 4), y=labels(0, 0, 0, 0))
    assert check_federation(data) == ["client b has no training sample of class right"]


def test_classes_that_are_one_number_are_pointed_out():
    said = similar_classes(["1", "01", "1.0", "10", "0", "00", "1.5", "１"])
    pairs = [text.partition(" differ")[0] for text in said]
    assert pairs == [f"classes '1' and {name!r}" for name in ("01", "1.0", "１")] + [
        "classes '0' and '00'"
    ]


def test_values_whose_sum_overflows_are_fine():
    check_federation(with_train(DATA, x=torch.full((4, 3), 3e38), y=labels(0, 1, 0, 1)))


@pytest.mark.shows("C14")
@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "..\\x", "a\nb", "a\x00", "a:b", "\ud800", "é" * 51, "*"]
)
def test_a_name_that_cannot_be_a_file_is_refused(name: str):
    with pytest.raises(DataError, match=r"client name .*: legal are 1 to 100 printable bytes"):
        check_name(name, "data x")


@pytest.mark.parametrize("name", ["a", "Site 12", "Köln", "病院", "-x", "a.b", "é" * 50])
def test_other_names_are_fine(name: str):
    check_name(name, "data x")
