"""Columns of tables that mean something else than they look like, and categories called none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import read_samples

import fedbn
from commanding import call
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.findings import check_federation
from fedbn.data.checks import examine_path
from fedbn.data.table_checks import check_dates
from fedbn.datasets.own_files import tables
from fedbn.errors import DataError
from fedbn.experiments.column_scales import scale_warning
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation

N = 40


def write(folder: Path, **sites: dict[str, list[object]]) -> str:
    """Write one CSV file a site; every site also gets an age and a label."""
    folder.mkdir(exist_ok=True)
    for number, (name, columns) in enumerate(sites.items()):
        draws = np.random.default_rng(number)
        rows = len(next(iter(columns.values()), range(N)))
        whole = {"age": draws.integers(20, 80, rows), **columns, "ill": np.arange(rows) % 2}
        lines = [
            ",".join(whole),
            *(",".join(map(str, row)) for row in zip(*whole.values(), strict=True)),
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


DATES = [f"2024-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(N)]


@pytest.mark.parametrize(
    "cells",
    [
        DATES,
        [f"{date} 10:30:00" for date in DATES],
        [f"{1 + n % 28}.{1 + n % 12}.2024" for n in range(N)],
        [f"{1 + n % 12}/{1 + n % 28}/24" for n in range(N)],
        [f"{1 + n % 28} Jan 2024" for n in range(N)],
        [f"{n % 24}:15" for n in range(N)],
        [*DATES[:-1], "unknown"],
    ],
)
def test_dates_are_refused_with_the_options(tmp_path, cells):
    path = write(tmp_path, a={"seen": cells}, b={"seen": cells})
    match = r"a\.csv: column 'seen' has dates or times .*days since.*data\.drop; data\.categorical"
    with pytest.raises(DataError, match=match):
        tables(path, label="ill")
    assert tables(path, label="ill", drop=["seen"]).input_shape == (1,)
    assert tables(path, label="ill", categorical=["seen"]).input_shape == (1 + len({*cells}),)


def test_a_frames_dates_are_refused_too():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"seen": pandas.to_datetime(DATES), "ill": np.arange(N) % 2})
    with pytest.raises(DataError, match="column 'seen' has dates or times"):
        fedbn.fit({"a": frame, "b": frame}, rounds=1, data__label="ill")


def test_codes_and_versions_are_no_dates():
    for cells in (["A1-2", "B3-4"], ["1.2.3", "1.3.0"], ["3 visits", "4 visits"], ["10:a", "9:b"]):
        check_dates("code", cells, [])


def test_categories_that_differ_in_case_are_named_with_their_sites_in_run_and_check(tmp_path):
    path = write(tmp_path, a={"sex": [*"mf"] * 20}, b={"sex": [*"MF"] * 20})
    made = tables(path, label="ill")
    assert made.input_shape == (5,)
    assert [text.partition("column ")[2].partition(" are read")[0] for text in made.remarks] == [
        "'sex': 'F' (site b) and 'f' (site a)",
        "'sex': 'M' (site b) and 'm' (site a)",
    ]
    found = examine_path(path, {"label": "ill"}, lambda changed: made)
    assert [f.severity for f in found if "'sex'" in f.text] == ["warning", "warning"]
    answer = call("run", "--data", path, "--set", "data.label=ill", "--dry-run")
    assert answer.code == 0
    assert "'M' (site b) and 'm' (site a) are read as two categories" in answer.err
    assert tables(path, label="ill", categorical=["sex"]).remarks == ()


def test_a_site_with_categories_of_its_own_is_named_in_run_and_check(tmp_path):
    path = write(tmp_path, a={"sex": [*"mf"] * 20}, b={"sex": ["male", "female"] * 20})
    said = "no other site has the categories of site a (f, m there, female, male elsewhere)"
    for command in (("run", "--data", path, "--dry-run"), ("data", "check", path)):
        answer = call(*command, "--set", "data.label=ill")
        assert answer.code == 0
        assert said in answer.out + answer.err
    assert tables(path, label="ill", categorical=["sex"]).remarks == ()


def test_sites_that_have_some_categories_in_common_are_not_warned_about(tmp_path):
    path = write(tmp_path, a={"scanner": [*"pq"] * 20}, b={"scanner": [*"qr"] * 20})
    assert tables(path, label="ill").remarks == ()


@pytest.mark.parametrize(
    ("a", "b"), [([0, 1], ["f", "m"]), (["yes", "no"], [1, 0]), (["True", "False"], [1, 0])]
)
def test_numbers_at_one_site_and_words_at_another_are_refused(tmp_path, a, b):
    path = write(tmp_path, a={"sex": a * 20}, b={"sex": b * 20})
    with pytest.raises(DataError, match=r"column 'sex' has values of two kinds: .* at a; .* at b"):
        tables(path, label="ill")
    assert tables(path, label="ill", categorical=["sex"]).input_shape == (5,)


def test_labels_that_are_numbers_at_one_site_and_words_at_another_are_refused(tmp_path):
    sites = {"a": [0, 1], "b": ["no", "yes"]}
    for name, labels in sites.items():
        text = "\n".join(f"{n},{labels[n % 2]}" for n in range(N))
        (tmp_path / f"{name}.csv").write_text(f"age,ill\n{text}\n")
    for command in ("run", "data check"):
        asked = ("run", "--data", tmp_path, "--dry-run") if command == "run" else (
            "data", "check", tmp_path, "--json"
        )  # fmt: skip
        answer = call(*asked, "--set", "data.label=ill")
        assert answer.code == 4
        assert "named in two ways: 0, 1 at a; no, yes at b" in answer.out + answer.err


def ids(begin, step=1):
    return [begin + step * n for n in range(N)]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("patient_id", np.random.default_rng(0).permutation(ids(1)).tolist()),
        ("nr", ids(1)),
        ("visit", ids(100, 3)),
        ("PatientID", np.random.default_rng(0).permutation(ids(1)).tolist()),
        ("patientid", np.random.default_rng(0).permutation(ids(1)).tolist()),
        ("CaseNo", np.random.default_rng(0).permutation(ids(1)).tolist()),
        ("chart", np.random.default_rng(0).permutation(ids(7_000_000, 131)).tolist()),
    ],
)
def test_whole_numbers_that_tell_rows_apart_are_warned_about(tmp_path, name, cells):
    path = write(tmp_path, a={name: cells}, b={name: [cell + N for cell in cells]})
    (said,) = tables(path, label="ill").remarks
    assert f"column {name!r} is a feature" in said
    assert "data.drop" in said
    assert tables(path, label="ill", drop=[name]).remarks == ()
    assert tables(path, label="ill", id=name).remarks == ()


@pytest.mark.parametrize(
    "cells",
    [
        np.random.default_rng(1).integers(20, 80, N).tolist(),  # ages
        np.random.default_rng(1).permutation(ids(150_000, 7013)).tolist(),  # platelets
        [n // 4 for n in range(N)],  # visits in order
        (np.random.default_rng(1).normal(size=N) * 100).round(3).tolist(),
    ],
)
def test_measured_numbers_are_no_ids(tmp_path, cells):
    path = write(tmp_path, a={"value": cells}, b={"value": cells})
    assert tables(path, label="ill").remarks == ()


PAIN = ["none", "typical", "none", "severe"] * 10


def test_none_is_a_category_where_a_contract_declares_it(tmp_path):
    path = write(tmp_path, a={"pain": PAIN}, b={"pain": PAIN})
    values = ["none", "typical", "severe"]
    contract = {
        "classes": ["0", "1"],
        "label": "ill",
        "columns": [{"name": "age"}, {"name": "pain", "values": values}],
    }
    section = DataSection.model_validate({"path": path, "name": "tables", "contract": contract})
    for client in load_federation(section).clients:
        whole = torch.cat([client.train.x, client.tests[client.name].x])
        assert whole[:, 1:].sum(0).tolist() == [20, 10, 10]


def test_data_check_says_how_none_becomes_a_category(tmp_path):
    path = write(tmp_path, a={"pain": PAIN}, b={"pain": PAIN})
    answer = call("data", "check", path, "--set", "label=ill")
    assert answer.code == 4
    assert "column 'pain': 20 cells without a value" in answer.out
    assert "data.categorical takes 'none' as a category" in answer.out
    asked = ("--set", "label=ill", "--set", "categorical=['pain']")
    assert call("data", "check", path, *asked).code == 0


def test_none_is_a_category_where_the_column_is_declared_categorical(tmp_path):
    path = write(tmp_path, a={"pain": PAIN}, b={"pain": PAIN})
    match = r"row 2: no value in column 'pain'; .*data\.categorical takes 'none' as a category"
    with pytest.raises(DataError, match=match):
        tables(path, label="ill")
    asked = ("--set", "data.label=ill", "--set", 'data.categorical=["pain"]')
    run = fedbn.fit(
        path, rounds=1, data__label="ill", data__categorical=["pain"], out=tmp_path / "run"
    )
    assert run.plan.federation.input_shape == (4,)
    again = read_samples(tmp_path / "a.csv", fedbn.open_run(tmp_path / "run").inputs)
    assert again.x[:, 1:].sum(0).tolist() == [20, 10, 10]
    (tmp_path / "run").rename(tmp_path.parent / "elsewhere")
    assert call("data", "check", path, *asked).code == 0


def test_a_class_called_none_is_a_class_where_a_contract_declares_it(tmp_path):
    (tmp_path / "a.csv").write_text(
        "age,grade\n" + "\n".join(f"{20 + n},{('none', 'high')[n % 2]}" for n in range(N))
    )
    contract = {"classes": ["high", "none"], "label": "grade", "columns": [{"name": "age"}]}
    section = {"path": str(tmp_path / "a.csv"), "name": "tables", "contract": contract}
    made = load_federation(DataSection.model_validate(section), "a")
    assert made.clients[0].train.y.unique().tolist() == [0, 1]


def scaled(scales, informative, seed=0):
    """Return a client whose label depends on some columns, which vary by these scales."""
    draws = torch.Generator().manual_seed(seed)
    z = torch.randn(120, len(scales), generator=draws)
    y = (z[:, informative].sum(dim=1) > 0).long()
    split = Split(z * torch.tensor(scales), y)
    return Client(f"c{seed}", f"c{seed}", split, {f"c{seed}": split})


def two(scales, informative):
    clients = tuple(scaled(scales, informative, seed) for seed in (0, 1))
    table = {"table": {"columns": [["dose", None], ["age", None], ["volume", None]]}}
    return Federation("f", clients, ("0", "1"), preparation=table)


def test_columns_that_a_larger_one_hides_are_warned_about():
    said = scale_warning(two([1.0, 2.0, 1000.0], [0, 1]))
    assert "volume varies more than 10 times as much as" in said
    assert "dose" in said
    assert "age" in said
    assert "mean 0 and standard deviation 1" in said
    data = two([1.0, 2.0, 1000.0], [0, 1])
    for model, heard in (("mlp", True), (None, True)):
        notes = []
        fedbn.fit(data, model, rounds=1, notes=notes.append)
        assert any("very different scale" in text for text in notes) is heard


def test_data_check_warns_of_scales_as_a_run_does(tmp_path):
    draws = np.random.default_rng(0)
    for site in "ab":
        x = draws.normal(size=(60, 2)) * [1, 50_000]
        rows = [f"{p:.3f},{q:.0f},{p > 0}" for p, q in x]
        (tmp_path / f"{site}.csv").write_text("\n".join(["dose,platelets,ill", *rows]) + "\n")
    for command in (("run", "--data", tmp_path, "--dry-run"), ("data", "check", tmp_path)):
        answer = call(*command, "--set", "data.label=ill")
        assert answer.code == 0
        said = "platelets varies more than 10 times as much as dose"
        assert (answer.out + answer.err).count(said) == 1


def test_columns_that_are_hidden_together_are_warned_about():
    scales = [*[1.0] * 8, 1000.0]  # each of eight columns explains less than a tenth
    said = scale_warning(two(scales, list(range(8))))
    assert "column 8 varies more than 10 times as much as" in said
    assert scale_warning(two(scales, [8])) == ""
    assert scale_warning(two([1.0] * 9, list(range(8)))) == ""
    large = [1.0, 1.0, 1000.0, 1000.0]  # half of what there is to know is visible
    assert scale_warning(two(large, [0, 1, 2, 3])) == ""


def test_scales_that_do_no_harm_are_not_warned_about():
    assert scale_warning(two([1.0, 2.0, 5.0], [0, 1])) == ""  # nearly alike
    assert scale_warning(two([1.0, 2.0, 1000.0], [2])) == ""  # the large column is the informative
    data = two([1.0, 2.0, 1000.0], [0, 1])
    pictures = [c.change(lambda s: replace(s, x=s.x.reshape(-1, 3, 1, 1))) for c in data.clients]
    assert scale_warning(replace(data, clients=tuple(pictures))) == ""
    assert check_federation(data) == []
