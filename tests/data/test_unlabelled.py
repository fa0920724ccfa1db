"""Further samples for a trained model: what is read, labelled or not, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import read_samples
from PIL import Image

from fedbn.data.images import read_pictures
from fedbn.data.preparation import prepared
from fedbn.datasets.own_files import tables
from fedbn.errors import DataError
from fedbn.experiments.environment import facts_of

PICTURES: dict[str, Any] = {
    "classes": ["cat", "dog"],
    "input_shape": [3, 8, 8],
    "dtype": "uint8",
    "range": [0, 255],
    "preparation": {},
}
VECTORS = {**PICTURES, "input_shape": [2], "dtype": "float32", "range": [-3, 3]}


def draw(folder: Path, *names: str, size: tuple[int, int] = (12, 10)) -> Path:
    for number, name in enumerate(names):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file)
    return folder


def test_a_flat_folder_is_unlabelled_and_read_like_training_pictures(tmp_path: Path):
    draw(tmp_path, "b.png", "a.png")
    found = read_samples(tmp_path, PICTURES)
    assert found.names == ("a.png", "b.png")
    assert found.y is None
    assert np.array_equal(found.x, read_pictures([tmp_path / "a.png", tmp_path / "b.png"], 8))


def test_sixteen_bit_pictures_are_read_with_the_depth_of_the_run(tmp_path: Path):
    Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64)).save(tmp_path / "a.png")
    told = {**PICTURES, "input_shape": [3, 64, 64], "dtype": "float32", "range": [-0.2, 1]}
    found = read_samples(tmp_path, {**told, "preparation": {"depth": 4095}})
    assert np.array_equal(found.x, read_pictures([tmp_path / "a.png"], 64, depth=4095))
    grey = read_samples(tmp_path, {**PICTURES, "input_shape": [1, 64, 64]})
    assert np.array_equal(grey.x[:, 0], read_pictures([tmp_path / "a.png"], 64)[:, 2])
    assert found.notes == ()
    assert "16-bit pictures, which the run does not know" in grey.notes[0]


def test_class_folders_label_and_one_picture_is_a_folder_of_one(tmp_path: Path):
    draw(tmp_path, "dog/1.png", "cat/2.png", "cat/deep/3.png")
    found = read_samples(tmp_path, PICTURES)
    assert found.names == ("cat/2.png", "cat/deep/3.png", "dog/1.png")
    assert found.y is not None
    assert found.y.tolist() == [0, 0, 1]
    one = read_samples(tmp_path / "dog" / "1.png", PICTURES)
    assert (one.names, len(one)) == (("1.png",), 1)
    assert np.array_equal(one.x[0], found.x[2])


def test_of_a_divided_folder_the_part_asked_for_is_read(tmp_path: Path):
    draw(tmp_path, "train/cat/1.png", "test/dog/2.png")
    for part, name in (("train", "cat/1.png"), ("test", "dog/2.png")):
        found = read_samples(tmp_path, PICTURES, part)
        assert (found.names, found.part) == ((name,), part)
        assert "part" in found.notes[0]


def test_other_folders_are_no_classes_and_that_is_said(tmp_path: Path):
    found = read_samples(draw(tmp_path, "monday/1.png", "tuesday/2.png"), PICTURES)
    assert found.y is None
    assert "read as unlabelled" in found.notes[0]


def test_folders_by_the_names_that_copies_of_a_benchmark_use(tmp_path: Path):
    told = {**PICTURES, "preparation": {"aliases": {"kitty": "cat"}}}
    found = read_samples(draw(tmp_path, "001.Kitty/1.png", "dog/2.png"), told)
    assert found.y is not None
    assert found.y.tolist() == [0, 1]


def test_grey_and_oblong_samples(tmp_path: Path):
    draw(tmp_path, "a.png")
    assert read_samples(tmp_path, {**PICTURES, "input_shape": [1, 8, 8]}).x.shape == (1, 1, 8, 8)
    assert read_samples(tmp_path, {**PICTURES, "input_shape": [3, 4, 6]}).x.shape == (1, 3, 4, 6)
    assert read_samples(tmp_path, {**PICTURES, "input_shape": [1, 4, 6]}).x.shape == (1, 1, 4, 6)


@pytest.mark.parametrize(
    ("files", "told", "text"),
    [
        ([], PICTURES, "no pictures in it"),
        (["cat/1.png", "dgo/2.png"], PICTURES, "unknown class 'dgo': did you mean 'dog'"),
        (["cat/1.png", "2.png"], PICTURES, "both beside and inside"),
        (["x/cat/1.png", "y/cat/1.png"], PICTURES, r"a folder of sites \(x, y\)"),
        (["1.png"], VECTORS, r"trained on samples of shape \(2,\)"),
        (["1.png"], {**PICTURES, "dtype": "float32", "range": [0, 1]}, "floats from 0 to 1"),
        (["1.txt"], PICTURES, "no pictures in it"),
    ],
)
def test_folders_that_do_not_fit_say_why(
    tmp_path: Path, files: list[str], told: dict[str, Any], text: str
):
    draw(tmp_path, *(f for f in files if f.endswith("png")))
    for other in (f for f in files if f.endswith("txt")):
        (tmp_path / other).write_text("x")
    with pytest.raises(DataError, match=text):
        read_samples(tmp_path, told)


def npz(folder: Path, **content: Any) -> Path:
    np.savez(folder / "site.npz", **content)
    return folder / "site.npz"


X = np.arange(6, dtype="float32").reshape(3, 2)


def test_arrays_with_and_without_labels(tmp_path: Path):
    bare = read_samples(npz(tmp_path, x=X), VECTORS)
    assert (bare.y, bare.names, bare.part) == (None, ("0", "1", "2"), "")
    both = read_samples(npz(tmp_path, train_x=X, test_x=X[:2], test_y=[1, 0]), VECTORS)
    assert both.y is not None
    assert (both.y.tolist(), both.part) == ([1, 0], "test")
    assert read_samples(tmp_path, VECTORS, "train").y is None


def test_labels_in_an_npz_are_matched_by_name_where_there_are_names(tmp_path: Path):
    other_order = read_samples(npz(tmp_path, x=X, y=[0, 1, 1], classes=["dog", "cat"]), VECTORS)
    assert other_order.y is not None
    assert other_order.y.tolist() == [1, 0, 0]
    as_text = read_samples(npz(tmp_path, x=X, y=["dog", "cat", "dog"]), VECTORS)
    assert as_text.y is not None
    assert as_text.y.tolist() == [1, 0, 1]


def test_samples_in_an_npz_that_have_the_runs_shape_keep_it(tmp_path: Path):
    """Signals of two channels are no grey pictures, and (16, 16, 3) may be what the run has."""
    for shape in ((2, 30), (16, 16, 3)):
        x = np.arange(4 * np.prod(shape), dtype="float32").reshape(4, *shape)
        found = read_samples(npz(tmp_path, x=x), {**VECTORS, "input_shape": list(shape)})
        assert np.array_equal(found.x.numpy(), x)


@pytest.mark.parametrize(
    ("more", "y", "places"),
    [({}, [1, 2, 1], [0, 1, 0]), ({"classes": ["2", "1"]}, [1, 0, 1], [0, 1, 0])],
)
def test_whole_numbers_in_an_npz_are_names_where_the_run_learned_such(
    tmp_path: Path, more: dict[str, Any], y: list[int], places: list[int]
):
    known = {"columns": [["p", None], ["q", None]], "label": "grade", "missing": "error"}
    told = {**VECTORS, "classes": ["1", "2", "3"], "preparation": {"table": known}}
    found = read_samples(npz(tmp_path, x=X, y=y, **more), told)
    assert found.y is not None
    assert found.y.tolist() == places


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"x": X[:, :1]}, r"samples of shape \(1,\); the run was trained on \(2,\)"),
        ({"x": X[:0]}, "no samples"),
        ({"z": X}, "it has z"),
        ({"x": X, "y": [0, 1, 2]}, "label 2 of sample 2: the run knows 0 to 1"),
        ({"x": X, "y": [0, 1, 0], "classes": ["cat", "cow"]}, "unknown class 'cow'"),
        ({"x": X, "y": [0, 1]}, "for 3 samples"),
    ],
)
def test_arrays_that_do_not_fit_say_why(tmp_path: Path, content: dict[str, Any], text: str):
    with pytest.raises(DataError, match=text):
        read_samples(npz(tmp_path, **content), VECTORS)


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """What a run on tables remembers: a number, a colour of two, and a label."""
    folder = tmp_path / "training"
    folder.mkdir()
    rows = "".join(
        f"{n},{'red' if n % 3 else 'blue'},{'ill' if n % 2 else 'well'}\n" for n in range(12)
    )
    for site in "ab":
        (folder / f"{site}.csv").write_text(f"age,colour,state\n{rows}")
    return facts_of(tables(str(folder), label="state"))


def table(folder: Path, text: str) -> Path:
    (folder / "new.csv").write_text(text)
    return folder / "new.csv"


def test_rows_are_encoded_like_the_training_tables(tmp_path: Path, told: dict[str, Any]):
    found = read_samples(table(tmp_path, "colour,other,age\nred,x,5\nblue,y,6\n"), told)
    assert found.x.tolist() == [[5, 0, 1], [6, 1, 0]]
    assert (found.names, found.y) == (("row 2", "row 3"), None)
    labelled = read_samples(table(tmp_path, "age,colour,state\n5,red,well\n6,red,ill\n"), told)
    assert labelled.y is not None
    assert labelled.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age\n5\n", "no column 'colour'"),
        ("age,colour\n5,green\n", "'green' is new; the run was trained on blue, red"),
        ("age,colour\nold,red\n", "'old' is not a number"),
        ("age,colour\n,red\n", "no value in column 'age'"),
        ("age,colour\n1e99,red\n", "not finite"),
        ("age,colour,state\n5,red,dead\n", "unknown class 'dead'"),
        ("age,colour,state\n5,red,ill\n6,red,\n", "row 3: no value in 'state'"),
    ],
)
def test_rows_that_do_not_fit_say_why(tmp_path: Path, told: dict[str, Any], text: str, says: str):
    with pytest.raises(DataError, match=says):
        read_samples(table(tmp_path, text), told)


def test_empty_cells_become_the_mean_where_the_run_was_trained_so(
    tmp_path: Path, told: dict[str, Any]
):
    told["preparation"]["table"]["missing"] = "mean"
    found = read_samples(table(tmp_path, "age,colour\n4,red\n,red\n8,\n"), told)
    assert found.x.tolist() == [[4, 0, 1], [6, 0, 1], [8, 0, 0]]
    assert found.notes == ("2 empty cells filled with the mean of these rows",)


def test_an_empty_cell_becomes_the_mean_of_the_clients_training_rows(tmp_path: Path):
    """Where a training row was filled with the mean, the mean of all is still the same."""
    home = tmp_path / "training"
    home.mkdir()
    for site, first in (("a", 2), ("b", 50)):
        ages = [str(first + n) if n else "" for n in range(12)]
        lines = "".join(f"{age},{n % 2},{'xy'[n % 2]}\n" for n, age in enumerate(ages))
        (home / f"{site}.csv").write_text(f"age,ill,ward\n{lines}")
    made = prepared(tables(str(home), label="ill", missing="mean"))
    inputs = json.loads(json.dumps(facts_of(made)))
    for client, first in (("a", 2), ("b", 50)):
        mean = made.clients[client == "b"].train.x[:, 0].mean()
        assert first < mean < first + 12
        for text in ("age,ward\n,x\n", "age,ward\n,x\n900,y\n"):
            found = read_samples(table(tmp_path, text), inputs, client=client)
            assert torch.allclose(found.x[0, 0], mean)
            assert found.notes == ("1 empty cells filled with the mean of training rows",)
    new = read_samples(table(tmp_path, "age,ward\n,x\n900,y\n"), inputs, client="c")
    assert new.x[0, 0] == 900
    assert new.notes == ("1 empty cells filled with the mean of these rows",)
    with pytest.raises(DataError, match="column 'age' has no value in a row to take a mean of"):
        read_samples(table(tmp_path, "age,ward\n,x\n"), inputs)


def test_a_table_for_a_run_on_vectors(tmp_path: Path):
    found = read_samples(table(tmp_path, "p,q,label\n1,2,dog\n"), VECTORS)
    assert found.y is not None
    assert (found.x.tolist(), found.y.tolist()) == ([[1, 2]], [1])
    with pytest.raises(DataError, match="3 columns of features"):
        read_samples(table(tmp_path, "p,q,r\n1,2,3\n"), VECTORS)


@pytest.fixture
def patients(tmp_path: Path) -> dict[str, Any]:
    """What a run on one table of two sites remembers, four rows a patient."""
    rows = "".join(f"{n % 7},{'ab'[n // 12]},{n // 4},{n % 2}\n" for n in range(24))
    (tmp_path / "all.csv").write_text(f"age,site,patient,ill\n{rows}")
    return facts_of(
        tables(str(tmp_path / "all.csv"), label="ill", site="site", group="patient", test_share=0.4)
    )


def test_rows_of_one_patient_have_one_number(tmp_path: Path, patients: dict[str, Any]):
    text = "age,patient,ill\n1,x,0\n2, y,1\n3,x ,1\n"
    found = read_samples(table(tmp_path, text), patients)
    assert found.groups is not None
    assert found.groups.tolist() == [0, 1, 0]
    for lacking in ("age,ill\n1,0\n", "age,patient\n1,x\n2,\n"):
        assert read_samples(table(tmp_path, lacking), patients).groups is None


def test_a_table_of_several_sites_is_refused_as_a_folder_of_them_is(
    tmp_path: Path, patients: dict[str, Any]
):
    one = table(tmp_path, "age,site\n1,c\n2, c\n3,\n")
    assert len(read_samples(one, patients)) == 3
    with pytest.raises(DataError) as refused:
        read_samples(table(tmp_path, "age,site\n1,d\n2,c\n"), patients)
    assert str(refused.value) == (
        f"{tmp_path}/new.csv: a table of sites (column 'site': c, d); give the rows of one of them"
    )


def test_a_run_that_recorded_neither_sites_nor_groups_reads_as_before(
    tmp_path: Path, patients: dict[str, Any]
):
    for key in ("site", "group"):
        del patients["preparation"]["table"][key]
    found = read_samples(table(tmp_path, "age,site,patient\n1,c,x\n2,d,y\n"), patients)
    assert (len(found), found.groups) == (2, None)


NUMBERS = {**VECTORS, "classes": ["dose"], "target": ["float32", [1]]}
LABELS = {**VECTORS, "classes": ["cough", "fever"], "target": ["bool", [2]]}
MASKS = {**VECTORS, "target": ["uint8", [2, 2]]}


@pytest.mark.parametrize(
    ("told", "given", "read"),
    [
        (NUMBERS, np.array([0.1, -2.5, 3], "float32"), [[np.float32(0.1)], [-2.5], [3]]),
        (NUMBERS, np.zeros((3, 1)), [[0], [0], [0]]),
        (NUMBERS, [1, 2, 3], [[1], [2], [3]]),
        (LABELS, np.eye(3, 2, dtype=bool), [[True, False], [False, True], [False, False]]),
        (LABELS, np.eye(3, 2), [[True, False], [False, True], [False, False]]),
    ],
)
def test_targets_in_an_npz_are_read_by_what_the_run_learned(
    tmp_path: Path, told: dict[str, Any], given: Any, read: list[Any]
):
    found = read_samples(npz(tmp_path, x=X, y=given), told)
    assert found.y is not None
    assert (found.y.tolist(), str(found.y.dtype)) == (read, f"torch.{told['target'][0]}")


@pytest.mark.parametrize(
    ("told", "given", "text"),
    [
        (NUMBERS, np.ones((3, 2)), r"shape \(3, 2\) for 3 samples; expected \(3, 1\)"),
        (NUMBERS, [1.5, 2.5], r"shape \(2,\) for 3 samples; expected \(3, 1\)"),
        (NUMBERS, 1.5, "expected"),
        (NUMBERS, [1, np.nan, 2], "row 1: no value in 'dose'"),
        (NUMBERS, [1, 2, np.inf], "row 2, column 'dose': inf is not finite"),
        (NUMBERS, ["a", "b", "c"], "'a' is not a number"),
        (LABELS, [0, 1, 1], r"expected \(3, 2\)"),
        (LABELS, np.full((3, 2), 2), "column 'cough': '2' is no label among several"),
        (MASKS, [0, 1, 1], r"expected \(3, 2, 2\)"),
    ],
)
def test_targets_of_another_kind_than_the_run_s_say_why(
    tmp_path: Path, told: dict[str, Any], given: Any, text: str
):
    with pytest.raises(DataError, match=text):
        read_samples(npz(tmp_path, x=X, y=given), told)


def test_a_table_for_a_run_on_arrays_of_numbers_or_labels(tmp_path: Path):
    one = read_samples(table(tmp_path, "p,q,y\n1,2,0.5\n"), NUMBERS)
    two = read_samples(table(tmp_path, "p,fever,q,cough\n1,yes,2,0\n"), LABELS)
    assert one.y is not None
    assert two.y is not None
    assert (one.y.tolist(), two.y.tolist()) == ([[0.5]], [[False, True]])
    assert read_samples(table(tmp_path, "p,q,y\n1,2,\n"), NUMBERS).y is None


def test_paths_that_are_nothing_of_the_kind(tmp_path: Path):
    (tmp_path / "x.pt").write_bytes(b"x")
    for path, text in ((tmp_path / "none", "no such file"), (tmp_path / "x.pt", r"\.pt; expected")):
        with pytest.raises(DataError, match=text):
            read_samples(path, PICTURES)
    npz(tmp_path, x=X)
    table(tmp_path, "p,q\n1,2\n")
    with pytest.raises(DataError, match=r"several files \(new.csv, site.npz\)"):
        read_samples(tmp_path, VECTORS)
