"""pandas DataFrames: read as tables are, by client or by a column of sites."""

from __future__ import annotations

import numpy as np
import pytest
from loading import read_samples

import fedbn
from fedbn.data.arrays import tensor_of
from fedbn.data.python_data import federation_of
from fedbn.errors import ConfigError, DataError

pandas = pytest.importorskip("pandas")
N = 30


def frame(shift=0.0):
    draws = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "age": draws.integers(20, 80, N),
            "dose": draws.normal(shift, 1, N).round(3),
            "smoker": draws.random(N) < 0.5,
            "ward": pandas.Categorical(["east", "west", "north"] * (N // 3)),
            "patient": [f"p{n // 3}" for n in range(N)],
            "outcome": ["well", "ill"] * (N // 2),
        }
    )


def test_frames_by_client_are_encoded_as_files_are(tmp_path):
    frames = {"a": frame(), "b": frame(2.0)}
    made = federation_of(frames, label="outcome", drop=["patient"])
    assert made.classes == ("ill", "well")
    assert made.clients[0].train.shape == (1 + 1 + 2 + 3,)
    for name, each in frames.items():
        each.to_csv(tmp_path / f"{name}.csv", index=False)
    read = fedbn.fit(str(tmp_path), "mlp", rounds=1, data__label="outcome", data__drop=["patient"])
    given = fedbn.fit(frames, "mlp", rounds=1, data__label="outcome", data__drop=["patient"])
    assert read.records == given.records


def test_one_frame_with_a_column_of_sites_and_one_of_patients():
    whole = frame().assign(hospital=["x", "y"] * (N // 2))
    made = federation_of(whole, label="outcome", site="hospital", group="patient", test_share=0.3)
    assert [client.name for client in made.clients] == ["x", "y"]
    for client in made.clients:
        test = client.tests[client.name]
        assert not set(client.train.groups.tolist()) & set(test.groups.tolist())
    dealt = fedbn.fit(
        frame(), rounds=1, data__label="outcome", data__drop=["patient"], data__partition="iid",
        data__clients=2, notes=lambda text: None,
    )  # fmt: skip
    assert len(dealt.models) == 2


def test_a_frame_and_a_series_are_arrays_too():
    numbers = frame()[["age", "dose"]]
    made = federation_of({name: (numbers, frame()["outcome"]) for name in "ab"})
    assert made.clients[0].train.shape == (2,)


def double(data):
    return pandas.concat([data, data[["age"]]], axis=1)


@pytest.mark.shows("S05", "S06")
@pytest.mark.parametrize(
    ("change", "options", "error", "match"),
    [
        (double, {}, DataError, "client a: two columns are called 'age'"),
        (lambda f: f.assign(dose=np.nan), {}, DataError, "column 'dose' has no values"),
        (lambda f: f.assign(dose=f.dose.where(f.index > 3)), {}, DataError, "row 0: no value in"),
        (lambda f: f[:0], {}, DataError, "client a: a DataFrame without rows"),
        (lambda f: f, {"label": None}, ConfigError, r"data\.label is needed"),
        (lambda f: f, {"label": "outcme"}, DataError, r"no column 'outcme' \(data\.label\)"),
        (lambda f: f, {"group": "ptient"}, DataError, r"no column 'ptient' \(data\.group\)"),
        (
            lambda f: f.assign(patient=None),
            {"group": "patient"},
            DataError,
            "no value in 'patient'",
        ),
        (lambda f: (f, 3), {}, ConfigError, "name columns, which DataFrames have"),
    ],
)
def test_what_is_wrong_with_a_frame_is_one_line(change, options, error, match):
    given = {"label": "outcome", "drop": ["patient"], **options}
    with pytest.raises(error, match=match):
        federation_of({"a": change(frame())}, **given)


@pytest.mark.shows("S17")
def test_frames_beside_something_else_are_refused():
    with pytest.raises(DataError, match="client b: a tuple, but others are DataFrames"):
        federation_of({"a": frame(), "b": ([[1.0]], [0])}, label="outcome")


def test_labels_of_one_frame_that_an_empty_cell_made_floats_are_the_classes_of_the_others():
    whole = frame().assign(outcome=[0, 1] * (N // 2))
    gap = whole.assign(outcome=whole.outcome.where(whole.index > 0)).dropna()
    assert gap.outcome.dtype == float
    made = federation_of({"a": whole, "b": gap}, label="outcome", drop=["patient"])
    assert made.classes == ("0", "1")
    odd = whole.assign(dose=["?", *whole.dose[1:]])
    (said,) = federation_of({"a": odd, "b": whole}, label="outcome", drop=["patient"]).remarks
    assert said.startswith("data, client a, row 0, column 'dose': '?' is not a number")


def test_a_patients_prediction_does_not_depend_on_the_rows_beside(caplog):
    whole = frame().assign(hospital=["x", "y"] * (N // 2))
    whole["dose"] = whole.dose.where(whole.index % 7 != 3)
    asked = {"data__label": "outcome", "data__site": "hospital", "data__missing": "mean"}
    run = fedbn.fit(whole, rounds=1, data__drop=["patient"], **asked)
    caplog.clear()
    patient = whole.head(1).assign(dose=np.nan)
    alone = run.predict_proba(patient, "x")
    for dose in (-90.0, 90.0):
        both = pandas.concat([patient, patient.assign(dose=dose)])
        assert np.allclose(run.predict_proba(both, "x")[0], alone[0], atol=1e-6)
    assert not caplog.records
    adapted = run.adapt(both, site="z")  # whose means nobody knows
    assert len(adapted.predict(both, "z")) == 2
    assert {record.message for record in caplog.records} == {
        "x: 1 empty cells filled with the mean of these rows"  # then they are known
    }


def test_whole_numbers_are_the_classes_that_a_table_calls_so():
    """Grades 1 to 3: those of 1 and 2 are no places from 0."""
    grades = np.arange(N) % 3 + 1
    whole = frame().assign(outcome=grades, dose=grades * 5.0, hospital=["x", "y"] * (N // 2))
    asked = {"data__label": "outcome", "data__site": "hospital", "data__drop": ["patient"]}
    run = fedbn.fit(whole, rounds=1, **asked)
    for client in "xy":
        low = whole[(whole.outcome < 3) & (whole.hospital == client)]
        named = run.score(low, low.outcome.astype(str).tolist(), client)
        assert run.score(low, low.outcome, client) == named
    assert run.targets_of([1, 3, 2], 3).tolist() == [0, 2, 1]
    with pytest.raises(DataError, match=r"unknown class '0'.*1, 2, 3"):
        run.targets_of([0, 1], 2)


def test_truth_values_are_the_classes_of_a_run_that_learned_them():
    whole = frame().assign(outcome=frame().outcome == "ill", hospital=["x"] * 15 + ["y"] * 15)
    asked = {"data__label": "outcome", "data__site": "hospital", "data__drop": ["patient"]}
    run = fedbn.fit(whole, rounds=1, **asked)
    assert run.targets_of(whole.outcome[:2], 2).tolist() == [0, 1]
    assert run.targets_of([1, 0], 2).tolist() == [1, 0]


def test_columns_of_a_frame_beside_its_labels_are_found_by_name(tmp_path):
    numbers, y = frame()[["age", "dose"]], frame().outcome
    run = fedbn.fit({"a": (numbers, y), "b": (numbers + 1, y)}, rounds=1, out=tmp_path / "run")
    expected = run.predict_proba(numbers, "a")
    run = fedbn.open_run(tmp_path / "run")
    other = frame()[["patient", "dose", "age"]]
    assert np.array_equal(run.predict_proba(other, "a"), expected)
    assert np.array_equal(run.predict_proba(other[["age", "dose"]].to_numpy(), "a"), expected)
    other.to_csv(tmp_path / "other.csv")
    found = read_samples(tmp_path / "other.csv", run.inputs)
    assert np.array_equal(run.predict_proba(found.x, "a"), expected)
    with pytest.raises(
        DataError, match=r"x: no column 'age' \(the run was trained on it\); it has"
    ):
        run.predict(other[["dose"]], "a")


def test_rows_of_several_sites_are_no_clients_in_python_either():
    whole = frame().assign(hospital=["x"] * 15 + ["y"] * 15)
    asked = {"data__label": "outcome", "data__site": "hospital", "data__drop": ["patient"]}
    run = fedbn.fit(whole, rounds=1, **asked)
    assert len(run.predict(whole[whole.hospital == "x"], "x")) == 15
    with pytest.raises(DataError, match=r"x: a table of sites \(column 'hospital': x, y\)"):
        run.predict(whole, "x")
    assert len(run.predict(whole.drop(columns="hospital"), "x")) == N
    pooled = fedbn.fit(whole, method="centralized", rounds=1, **asked)
    assert len(pooled.predict(whole, "all")) == N


def test_arrays_that_cannot_be_written_to_are_copied():
    x = np.zeros((3, 2), "float32")
    assert tensor_of(x, "x").data_ptr() == x.ctypes.data
    x.flags.writeable = False  # torch warns of a tensor that shares such memory
    assert tensor_of(x, "x").data_ptr() != x.ctypes.data
