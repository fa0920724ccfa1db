"""Messages count samples as the user does: rows of the file, places in the array that was given."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedbn
from commanding import call
from fedbn.core.federation import Client, Federation, Origin, Split
from fedbn.core.findings import check_federation
from fedbn.data.checks import examine
from fedbn.data.python_data import federation_of
from fedbn.datasets.own_files import tables
from fedbn.errors import DataError

N = 40
Y = np.arange(N) % 2


@pytest.mark.parametrize("bad", [0, 17, 39])
def test_nan_is_named_by_its_place_in_the_array_that_was_given(bad):
    x = np.random.default_rng(0).normal(size=(N, 3))
    x[bad, 1] = np.nan
    good = np.random.default_rng(1).normal(size=(N, 3))
    with pytest.raises(DataError, match=rf"client b, (train|test): NaN in sample {bad}$"):
        fedbn.fit({"a": (good, Y), "b": (x, Y)}, rounds=1)
    y = np.random.default_rng(0).normal(size=N)
    y[bad] = np.inf
    with pytest.raises(DataError, match=rf"targets: infinity in sample {bad}$"):
        fedbn.fit({"a": (good, y)}, rounds=1)


def test_a_label_is_named_by_its_place_in_the_array_that_was_given():
    y = np.arange(N) % 3
    data = {"a": (np.zeros((N, 3)), y)}
    made = federation_of(data, classes=["x", "y"])
    with pytest.raises(
        DataError, match=r"label 2 of sample (\d+) and \d+ more samples; expected"
    ) as found:
        check_federation(made)
    assert y[int(str(found.value).partition("sample ")[2].partition(" ")[0])] == 2


def test_rows_of_tables_are_those_of_the_file(tmp_path):
    """The header is row 1, and rows of another site lie between."""
    draws = np.random.default_rng(0)
    cells = [[f"{value:.6f}" for value in row] for row in draws.normal(size=(N, 70))]
    cells[30] = cells[21]
    names = [f"c{at}" for at in range(70)]
    lines = [",".join([*names, "site", "ill"])]
    lines += [",".join([*row, "xy"[at % 2], str(at // 2 % 2)]) for at, row in enumerate(cells)]
    file = tmp_path / "all.csv"
    file.write_text("\n".join(lines))
    made = tables(str(file), label="ill", site="site")
    (said,) = (f.text for f in examine(made) if "also in" in f.text)
    assert {f"row 32 of {file}", f"row 23 of {file}"} == set(
        said.partition(": ")[2].removesuffix(" there").split(" here is ")
    )
    asked = ("--set", "data.label=ill", "--set", "data.site=site", "--json")
    assert f"row 32 of {file}" in call("data", "check", file, *asked).out


def test_an_unknown_class_of_a_new_table_is_named_by_its_row(tmp_path):
    text = "\n".join(["age,ill", *(f"{20 + at},{'ny'[at % 2]}" for at in range(N))])
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(text)
    run = fedbn.fit(str(tmp_path), rounds=1, data__label="ill")
    from loading import read_samples

    (tmp_path / "a.csv").write_text(text.replace("23,y", "23,maybe"))
    with pytest.raises(DataError, match=r"a\.csv, column 'ill', row 5: unknown class 'maybe'"):
        read_samples(tmp_path / "a.csv", run.inputs)


def test_origins_follow_samples_into_every_part():
    x = torch.arange(6.0)[:, None]
    whole = Split(x, torch.arange(6) % 2, origin=Origin(torch.arange(2, 8), "a.csv"))
    part = whole.take(torch.tensor([5, 1])).take(torch.tensor([1]))
    assert part.sample_name(0) == "row 3 of a.csv"
    assert whole.take(torch.tensor([0])).joined([part], None).sample_name(1) == "sample 1"
    both = Federation("f", (Client("a", "a", whole, {"a": whole}),), ("0", "1"))
    plain = Federation("f", (Client("a", "a", Split(x, whole.y), {"a": whole}),), ("0", "1"))
    assert both.fingerprint() == plain.fingerprint()
