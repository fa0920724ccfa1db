"""A user's own tables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from loading import loaded, read_samples

from fedbn.core.findings import check_federation
from fedbn.data.preparation import prepared
from fedbn.datasets.own_files import tables
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.environment import facts_of

needs_arrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow (fedbn[tables]) is not installed"
)


def rows(count: int, scale: float = 1.0, colours: tuple[str, ...] = ("red", "blue")) -> list[str]:
    return [
        f"{n},{n * scale},{colours[n % len(colours)]},{'yes' if n % 2 else 'no'}"
        for n in range(count)
    ]


def write(folder: Path, **sites: list[str]) -> str:
    folder.mkdir(exist_ok=True)
    for name, lines in sites.items():
        text = "\n".join(["key,age,colour,ill", *lines]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return str(folder)


def test_one_file_a_site_one_hot_over_all_sites(tmp_path):
    path = write(tmp_path, a=rows(10), b=rows(10, colours=("green",)))
    federation = tables(path, label="ill", id="key")
    assert [client.name for client in federation.clients] == ["a", "b"]
    assert federation.classes == ("no", "yes")
    assert federation.input_shape == (4,)  # age; blue, green, red
    a, b = federation.clients
    assert a.train.x.dtype == torch.float32
    whole = torch.cat([a.train.x, a.tests["a"].x])
    assert sorted(whole[:, 0].tolist()) == [float(n) for n in range(10)]
    assert whole[:, 1:].sum(0).tolist() == [5, 0, 5]
    assert b.train.x[:, 1:].unique(dim=0).tolist() == [[0, 1, 0]]
    assert (len(a.train), len(a.tests["a"])) == (8, 2)
    assert a.tests["a"].y.tolist() == [0, 1]
    assert check_federation(federation) == []
    assert tables(path, label="ill", id="key").fingerprint() == federation.fingerprint()


def test_one_file_with_a_site_column(tmp_path):
    file = tmp_path / "all.csv"
    lines = [f"{'NYU' if n < 10 else 'UM'};{n},5;{n % 2}" for n in range(20)]
    file.write_text("\ufeffsite;x;y\n" + "\r\n".join(lines), encoding="utf-8")
    federation = tables(str(file), label="y", site="site")
    assert [client.name for client in federation.clients] == ["NYU", "UM"]
    um = federation.clients[1]
    values = torch.cat([um.train.x, um.tests["UM"].x]).flatten()
    assert sorted(values.tolist()) == [n + 0.5 for n in range(10, 20)]  # a decimal comma


def test_classes_that_are_numbers_are_sorted_as_numbers(tmp_path):
    path = write(tmp_path, a=[f"{n},1,r,{n % 3 * 5}" for n in range(9)], b=["1,1,r,0", "2,1,r,5"])
    assert tables(path, label="ill", drop=["key"]).classes == ("0", "5", "10")


def test_numbers_that_are_names_can_be_one_hot(tmp_path):
    path = write(tmp_path, a=[f"{n % 3},1,r,{n % 2}" for n in range(9)], b=["2,1,r,0", "1,1,r,1"])
    shape = tables(path, label="ill", categorical=["key"]).input_shape
    assert shape == (3 + 1 + 1,)


def test_a_missing_value_names_row_and_column_and_may_be_filled(tmp_path):
    lines = rows(10)
    lines[3] = "3,,red,yes"
    lines[4] = "4,4.0,NA,no"
    path = write(tmp_path, a=lines, b=rows(10))
    with pytest.raises(DataError, match=r"a\.csv, row 5: no value in column 'age'"):
        tables(path, label="ill", id="key")
    a = prepared(tables(path, label="ill", id="key", missing="mean")).clients[0]
    whole = torch.cat([a.train.x, a.tests["a"].x])
    assert bool(torch.isfinite(whole).all())
    assert whole[:, 1:].sum(1).tolist().count(0) == 1  # the missing colour is neither


def test_the_mean_is_of_training_rows_only(tmp_path):
    lines = [f"{n},{'' if n == 0 else 2 if n < 5 else 100},r,{n % 2}" for n in range(10)]
    path = write(tmp_path, a=lines, b=rows(10))
    a = prepared(tables(path, label="ill", drop=["key"], missing="mean")).clients[0]
    test = a.tests["a"].x[:, 0]
    everything = torch.cat([a.train.x[:, 0], test])
    value = next(v for v in everything.tolist() if v not in (2.0, 100.0))
    known = [v for v in a.train.x[:, 0].tolist() if v in (2.0, 100.0)]
    assert value == pytest.approx(sum(known) / len(known))


@pytest.mark.shows("D21")
def test_repeated_ids_are_remarked_on(tmp_path):
    path = write(tmp_path, a=[*rows(10), "3,1,red,no"], b=[f"x{line}" for line in rows(10)])
    (remark,) = tables(path, label="ill", id="key").remarks
    assert "1 id(s) occur again" in remark
    assert "row 5" in remark
    assert "row 12" in remark


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"path": None}, ConfigError, "data.path is needed"),
        ({"label": None}, ConfigError, "data.label is needed .* of key, age, colour, ill"),
        ({"label": "sick"}, DataError, "no column 'sick' .data.label.; it has key, age"),
        (
            {"missing": "zero"},
            ConfigError,
            "data.missing = 'zero': input should be 'error' or 'mean'",
        ),
        ({"site": "colour"}, ConfigError, "has 2 tables"),
        (
            {"label": "age", "test_share": 0},
            ConfigError,
            "data.test_share = 0: input should be greater than 0",
        ),
    ],
)
def test_wrong_options(tmp_path, options, error, message):
    path = write(tmp_path, a=rows(10), b=rows(10))
    with pytest.raises(error, match=message):
        loaded("tables", **{"path": path, "label": "ill", "id": "key", **options})


@pytest.mark.shows("D20")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; expected a header"),
        ("age,ill\n", "no rows"),
        ("age,age\n1,2\n", "two columns are called 'age'"),
        ("age,ill\n1,2\n1,2,3\n", "row 3: 3 cells, but the header has 2"),
        ("age,weight\n1,2\n", "no column 'ill'"),
        ("age,colour,ill,extra\n1,red,no,1\n", "no column 'extra'"),
        ("colour,ill\nred,no\n", "no column 'age'"),
        ("age,colour,ill\ninf,red,no\n", "row 2, column 'age': inf is not finite"),
        ("age,colour,ill\n1e39,red,no\n", "row 2, column 'age': 1e39 is not finite"),
        ("age,colour,ill\n1,red,\n", "row 2: no value in 'ill'"),
    ],
)
def test_faults_of_a_file_are_named(tmp_path, text, message):
    path = write(tmp_path, b=rows(10))
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        tables(path, label="ill", id="key")
    assert "\n" not in str(caught.value)


def test_not_utf8_is_named(tmp_path):
    path = write(tmp_path, a=rows(10))
    (tmp_path / "b.csv").write_bytes(b"age,ill\n\xff,no\n")
    with pytest.raises(DataError, match=r"b\.csv: not UTF-8"):
        tables(path, label="ill")


def test_texts_that_are_all_different_are_no_feature(tmp_path):
    lines = [f"patient {n},{n},red,{n % 2}" for n in range(60)]
    path = write(tmp_path, a=lines, b=rows(10))
    with pytest.raises(DataError, match="column 'key' has 70 different texts in 70 rows"):
        tables(path, label="ill")


def test_a_measured_label_is_no_class(tmp_path):
    lines = [f"{n},{n / 7},red,{n % 2}" for n in range(60)]
    path = write(tmp_path, a=lines, b=rows(10))
    with pytest.raises(DataError, match="different values in 70 rows: not classes"):
        tables(path, label="age", drop=["key"])


def numbered(odd: dict[int, str], colour: str = "red") -> list[str]:
    """Twenty rows of ages that are numbers, but for some."""
    return [f"{n},{odd.get(n, n % 4)},{colour},{n % 2}" for n in range(20)]


@pytest.mark.parametrize("odd", [{3: "?"}, {3: "?", 5: "?"}, {3: "low", 5: "high"}])
def test_a_few_cells_that_make_texts_of_a_column_are_named(tmp_path, odd):
    path = write(tmp_path, a=numbered(odd), b=numbered({}))
    made = tables(path, label="ill", drop=["key"])
    (said,) = made.remarks
    first = f"{tmp_path}/a.csv, row 5, column 'age': {odd[3]!r} is not a number ({len(odd)} such"
    assert said.startswith(first)
    texts = 4 + len({*odd.values()})
    assert f"read as {texts} texts, a feature each; leave the cell of a missing value empty" in said
    assert made.input_shape == (texts + 1,)
    named = tables(path, label="ill", drop=["key"], categorical=["age"])
    assert (named.remarks, named.input_shape) == ((), made.input_shape)
    for lines in (numbered(dict.fromkeys(odd, "")), numbered(dict.fromkeys(odd, "NA"))):
        write(tmp_path, a=lines)
        mended = tables(path, label="ill", drop=["key"], missing="mean")
        assert (mended.remarks, mended.input_shape) == ((), (2,))


def test_a_column_to_drop_that_no_table_has_is_named(tmp_path):
    path = write(tmp_path, a=rows(10), b=rows(10))
    with pytest.raises(DataError, match=r"no column 'kye' \(data\.drop\); it has key, age"):
        tables(path, label="ill", drop=["key", "kye"])
    more = ["key,age,colour,ill,note", *(f"{line},x" for line in rows(10))]
    (tmp_path / "b.csv").write_text("\n".join(more))  # one site's own column
    assert tables(path, label="ill", drop=["key", "note"]).input_shape


def test_texts_beside_many_numbers_are_texts(tmp_path):
    """Five of forty cells, and one of five values: more than a tenth of either."""
    path = write(tmp_path, a=numbered(dict.fromkeys(range(5), "none given")), b=numbered({}))
    assert tables(path, label="ill", drop=["key"]).remarks == ()


def test_one_cell_among_measured_numbers_is_named_where_its_column_is_refused(tmp_path):
    lines = [f"{n},{n / 7:.4f},red,{n % 2}" for n in range(200)]
    lines[198] = "198,1.5 mg,red,0"
    path = write(tmp_path, a=lines, b=rows(10))
    with pytest.raises(
        DataError, match=r"a\.csv, row 200, column 'age': '1\.5 mg' is not a number"
    ):
        tables(path, label="ill", drop=["key"])


def test_a_whole_number_is_one_name_with_and_without_a_fraction_of_nought(tmp_path):
    """As pandas writes 1, 2 where a cell of the column is empty: 1.0, 2.0."""
    path = write(
        tmp_path,
        a=[f"{n},{n},{n % 3},{n % 2}" for n in range(12)],
        b=[f"{n}.0,{n},{n % 3}.0,{n % 2}.0" for n in range(12)],
        c=[f"x{n},{n}, {n % 3}.00 ,{n % 2 + 0.5 * (n > 9)}" for n in range(12)],
    )
    made = tables(path, label="ill", id="key", categorical=["colour"])
    assert made.classes == ("0", "0.5", "1", "1.5")
    assert made.input_shape == (1 + 3,)
    assert "12 id(s) occur again; the first is '0' in" in made.remarks[0]
    a, b, _ = made.clients
    assert torch.equal(a.train.y.bincount(), b.train.y.bincount())
    new = [read_samples(tmp_path / f"{site}.csv", facts_of(made)) for site in "ab"]
    assert new[0].y.tolist() == [2 * (n % 2) for n in range(12)]
    assert torch.equal(new[0].y, new[1].y)
    assert torch.equal(new[0].x, new[1].x)


@needs_arrow
def test_parquet_gives_what_csv_gives(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = write(tmp_path / "csv", a=rows(10), b=rows(10))
    (tmp_path / "parquet").mkdir()
    for name in "ab":
        table = pyarrow.table(
            {
                "key": list(range(10)),
                "age": [float(n) for n in range(10)],
                "colour": ["red", "blue"] * 5,
                "ill": ["no", "yes"] * 5,
            }
        )
        parquet.write_table(table, tmp_path / "parquet" / f"{name}.parquet")
    one = tables(path, label="ill").fingerprint()
    assert tables(str(tmp_path / "parquet"), label="ill").fingerprint() == one
    (tmp_path / "parquet" / "b.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(DataError, match=r"b\.parquet: damaged or not a Parquet file"):
        tables(str(tmp_path / "parquet"), label="ill")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in "ab":
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"pip install 'fedbn\[tables\]'"):
        tables(str(tmp_path), label="ill")


@pytest.mark.shows("C09")
def test_two_sites_that_are_one_table_by_a_link_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,ill\n1,0\n2,1\n")
    (tmp_path / "b.csv").hardlink_to(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"the same as .*a\.csv, by a link"):
        tables(str(tmp_path), "ill")


def test_label_columns_of_which_every_row_has_one_are_refused_with_both_readings(tmp_path):
    lines = [f"{n},{n % 7},{int(n % 2 == 0)},{n % 2}" for n in range(20)]
    path = write(tmp_path, a=lines, b=lines)
    match = r"exactly one of colour, ill: one-hot .*task\.name = 'multilabel'"
    with pytest.raises(DataError, match=match):
        tables(path, label=["colour", "ill"], drop=["key"])
    made = tables(path, label=["colour", "ill"], drop=["key"], task="multilabel")
    assert made.classes == ("colour", "ill")
    numbers = tables(path, label="age", drop=["key"], task="regression")
    assert numbers.clients[0].train.y.dtype == torch.float32
