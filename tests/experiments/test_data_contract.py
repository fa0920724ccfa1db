"""A contract: what all sites' data is read by, what does not fit, and how one is proposed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import read_samples
from PIL import Image

from fedbn.core.federation import Federation
from fedbn.data.preparation import levelled, levels_of
from fedbn.errors import ConfigError, DataError, Misfit
from fedbn.experiments.configuration import checked
from fedbn.experiments.data_survey import proposed, report_of
from fedbn.experiments.environment import facts_of
from fedbn.experiments.schema import ContractSection, DataSection
from fedbn.experiments.sources import alone, load_federation

CONTRACT: dict[str, Any] = {
    "classes": ["0", "1"],
    "label": "out",
    "missing": "mean",
    "columns": [
        {"name": "age", "unit": "years", "range": [0.0, 120.0]},
        {"name": "pain", "values": ["low", "mid", "high"]},
        {"name": "chol"},
    ],
}


def table(file: Path, rows: int = 40, seed: int = 0, **changes: Any) -> Path:
    """Write a site's table; `changes` set a column's cells, or its name by `rename`."""
    draw = random.Random(seed)
    names = ["age", "pain", "chol", "out"]
    cells = {
        "age": [str(draw.randint(30, 80)) for _ in range(rows)],
        "pain": [draw.choice(["low", "mid"]) for _ in range(rows)],
        "chol": [f"{draw.uniform(100, 300):.1f}" for _ in range(rows)],
        "out": [str(number % 2) for number in range(rows)],
    }
    renamed = changes.pop("rename", {})
    cells |= {name: (value * rows)[:rows] for name, value in changes.items()}
    header = [renamed.get(name, name) for name in names]
    lines = [",".join(header), *(",".join(cells[n][i] for n in names) for i in range(rows))]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def section(path: Path, contract: dict[str, Any] | None = CONTRACT, **more: Any) -> DataSection:
    given = {"path": str(path), **more}
    return DataSection.model_validate({**given, "contract": contract} if contract else given)


def test_one_plain_csv_is_a_site_and_the_same_as_in_a_folder_of_all(tmp_path: Path) -> None:
    for seed, site in enumerate(("nyu", "usm")):
        table(tmp_path / "all" / f"{site}.csv", seed=seed)
        table(tmp_path / site / "exported.csv", seed=seed)
    whole = load_federation(section(tmp_path / "all"))
    assert whole.input_shape == (5,)
    for place, site in enumerate(("nyu", "usm")):
        own = alone(section(tmp_path / site / "exported.csv"), site).clients[0]
        theirs = whole.clients[place]
        assert own.name == theirs.name == site
        assert torch.equal(own.train.x, theirs.train.x)
        assert torch.equal(own.tests[site].x, theirs.tests[site].x)


def test_categories_that_a_site_does_not_have_are_features_all_the_same(tmp_path: Path) -> None:
    found = alone(section(table(tmp_path / "a.csv")), "nyu")
    assert found.classes == ("0", "1")
    assert float(found.clients[0].train.x[:, 3].sum()) == 0  # nobody there has high pain


def test_a_class_that_is_missing_is_fine_and_said(tmp_path: Path) -> None:
    found = alone(section(table(tmp_path / "a.csv", out=["0"])), "nyu")
    assert found.remarks == ("nyu has no training sample of class 1",)


@pytest.mark.shows("H01", "H02")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pain": ["low", "severe"]}, r"a\.csv, row 3, column 'pain': 'severe' is not a categ"),
        ({"chol": ["high"]}, r"row 2, column 'chol': 'high' is not a number"),
        ({"rename": {"chol": "cholesterol"}}, r"no column 'chol' \(the contract\); it has age, pa"),
        ({"rename": {"age": "chol", "chol": "age"}}, r"'age': \d+.\d% of its values lie outside"),
        ({"age": ["600"]}, r"100.0% of its values lie outside the contract's 0 to 120 years"),
        ({"out": ["0", "2"]}, r"2"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        alone(section(table(tmp_path / "a.csv", **changes)), "nyu")


@pytest.mark.shows("H02")
def test_a_few_values_outside_the_range_and_columns_beside_it_are_said(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", age=["130", *["50"] * 39])
    text = file.read_text().splitlines()
    file.write_text("\n".join(f"{line},{n if n else 'id'}" for n, line in enumerate(text)))
    said = alone(section(file), "nyu").remarks
    assert "'age': 2.5% of its values lie outside the contract's 0 to 120 years" in said[0]
    assert "not in the contract and not read: id" in said[1]


def test_a_site_says_where_its_own_label_is(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", rename={"out": "ausgang"})
    with pytest.raises(DataError, match="no column 'out'"):
        alone(section(file), "nyu")
    assert alone(section(file, label="ausgang"), "nyu").classes == ("0", "1")


@pytest.mark.shows("H03")
def test_a_contract_that_says_too_little_is_refused(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match=r"data\.contract\.columns is needed"):
        alone(section(file, {**CONTRACT, "columns": []}), "nyu")
    with pytest.raises(ConfigError, match=r"data\.contract\.classes"):
        checked({"data": {"contract": {}}})
    near = r"'data\.contract\.columns\.0\.unti': did you mean 'data\.contract\.columns\.0\.unit'"
    with pytest.raises(ConfigError, match=near):
        checked({"data": {"contract": {**CONTRACT, "columns": [{"name": "age", "unti": "y"}]}}})


def pictures(folder: Path, classes: dict[str, int], side: int) -> Path:
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            colour = (7 * number % 256, 90, 30)
            Image.new("RGB", (side, side), colour).save(folder / name / f"{number}.png")
    return folder


def picture_contract(size: int = 32) -> dict[str, Any]:
    return {"classes": ["common", "rare"], "size": size}


@pytest.mark.shows("H04")
def test_pictures_of_other_sizes_and_without_a_class_fit(tmp_path: Path) -> None:
    one = pictures(tmp_path / "one", {"common": 12, "rare": 8}, 40)
    two = pictures(tmp_path / "two", {"common": 12}, 64)
    found = [alone(section(path, picture_contract()), path.name) for path in (one, two)]
    assert [f.input_shape for f in found] == [(3, 32, 32)] * 2
    assert [f.classes for f in found] == [("common", "rare")] * 2
    assert found[1].remarks == ("two has no training sample of class rare",)
    other = pictures(tmp_path / "three", {"comon": 12}, 64)
    with pytest.raises(DataError, match="unknown class 'comon': did you mean 'common'"):
        alone(section(other, picture_contract()), "three")


@pytest.mark.shows("H04")
def test_a_data_set_with_other_classes_or_shape_is_refused() -> None:
    digits = DataSection.model_validate(
        {"name": "digits_mini", "contract": {"classes": ["a", "b"]}}
    )
    with pytest.raises(DataError, match="the contract says a, b"):
        load_federation(digits)
    named = [str(digit) for digit in range(10)]
    shaped = {"name": "digits_mini", "contract": {"classes": named, "shape": [1, 8, 8]}}
    with pytest.raises(DataError, match=r"the contract says \(1, 8, 8\)"):
        load_federation(DataSection.model_validate(shaped))


def reported(path: Path, site: str) -> Any:
    return report_of(section(path, None, label="out"), site)


def test_a_contract_is_proposed_from_counts_and_names(tmp_path: Path) -> None:
    one = table(tmp_path / "a.csv")
    two = table(tmp_path / "b.csv", seed=1, pain=["mid", "high"], chol=["200", ""])
    contract, notes = proposed([reported(one, "nyu"), reported(two, "usm")])
    assert contract == {
        "task": "classification",
        "classes": ["0", "1"],
        "label": "out",
        "missing": "mean",
        "columns": [
            {"name": "age"},
            {"name": "pain", "values": ["high", "low", "mid"]},
            {"name": "chol"},
        ],
    }
    assert notes == []
    ContractSection.model_validate(contract)
    assert isinstance(alone(section(one, contract), "nyu"), Federation)


def test_nothing_of_a_single_row_is_in_a_report(tmp_path: Path) -> None:
    secret = ["low"] * 39 + ["Mr Miller"]
    report = reported(table(tmp_path / "a.csv", pain=secret), "nyu")
    assert "Miller" not in report.model_dump_json()
    assert report.columns[1].rare == 1
    assert report.columns[0].model_dump() == {
        "name": "age",
        "values": None,
        "rare": 0,
        "missing": 0,
    }
    _, notes = proposed([report])
    assert notes == ["column 'pain': 1 rare categories are not named; add them by hand"]


@pytest.mark.shows("H05")
def test_what_sites_disagree_on_is_noted(tmp_path: Path) -> None:
    one = table(tmp_path / "a.csv", out=["0"])
    two = table(tmp_path / "b.csv", rename={"chol": "bmi"}, pain=["1", "2"])
    contract, notes = proposed([reported(one, "nyu"), reported(two, "usm")])
    assert [column["name"] for column in contract["columns"]] == ["age", "pain"]
    assert notes == [
        "nyu has no class 1, or fewer than 10 of it",
        "column 'pain': numbers at usm, texts elsewhere",
        "column 'chol' is left out: usm has none",
        "column 'bmi' is left out: nyu has none",
    ]
    folder = pictures(tmp_path / "p", {"common": 12}, 40)
    with pytest.raises(DataError, match="of different kinds: nyu tables, usm folders"):
        proposed([reported(one, "nyu"), report_of(section(folder, None), "usm")])


def test_pictures_are_proposed_with_the_smallest_side(tmp_path: Path) -> None:
    one = pictures(tmp_path / "one", {"common": 12, "rare": 10}, 40)
    two = pictures(tmp_path / "two", {"common": 12}, 64)
    reports = [report_of(section(path, None), path.name) for path in (one, two)]
    contract, notes = proposed(reports)
    assert contract == {
        "task": "classification",
        "classes": ["common", "rare"],
        "size": 40,
        "channels": 3,
    }
    assert notes == ["two has no class rare, or fewer than 10 of it"]


def test_a_contract_says_what_the_data_is_for(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv")
    assert alone(section(file, {**CONTRACT, "task": "classification"}), "nyu")
    with pytest.raises(
        Misfit, match="its targets are a class a sample, which is no regression"
    ) as e:
        alone(section(file, {**CONTRACT, "task": "regression"}), "nyu")
    assert str(tmp_path) not in e.value.public
    raw = {"task": {"name": "regression"}, "data": {"contract": {"classes": ["0"]}}}
    checked(raw)
    raw["data"]["contract"]["task"] = "classification"
    with pytest.raises(ConfigError, match=r"task\.name = 'regression': data\.contract\.task is 'c"):
        checked(raw)


def test_pictures_are_read_with_the_contracts_channels(tmp_path: Path) -> None:
    one = pictures(tmp_path / "one", {"common": 12, "rare": 8}, 8)
    grey = {**picture_contract(8), "channels": 1}
    assert alone(section(one, grey), "one").input_shape == (1, 8, 8)
    with pytest.raises(ConfigError, match=r"data\.channels = 3 here; data\.contract says 1"):
        alone(section(one, grey, channels=3), "one")
    with pytest.raises(ConfigError, match=r"data\.size = 16 here; data\.contract says 8"):
        alone(section(one, grey, size=16), "one")
    digits = {"name": "digits_mini", "contract": {"classes": [str(n) for n in range(10)]}}
    digits["contract"]["channels"] = 1
    with pytest.raises(Misfit, match="samples of 3 channels, the contract says 1"):
        load_federation(DataSection.model_validate(digits))


def test_each_site_is_normalised_by_its_own_training_data(tmp_path: Path) -> None:
    plain = alone(section(table(tmp_path / "a.csv")), "nyu")
    made = alone(section(table(tmp_path / "a.csv"), {**CONTRACT, "normalize": "site"}), "nyu")
    raw, own = plain.clients[0].train.x, made.clients[0].train.x
    spread = raw.std(dim=0)
    wanted = (raw - raw.mean(dim=0)) / torch.where(spread > 0, spread, 1.0)
    assert torch.allclose(own, wanted, atol=1e-5)
    assert made.preparation["levels"].keys() == {"nyu"}
    test = plain.clients[0].tests["nyu"].x
    assert torch.allclose(
        made.clients[0].tests["nyu"].x,
        (test - raw.mean(dim=0)) / torch.where(spread > 0, spread, 1.0),
        atol=1e-5,
    )


def test_constants_of_the_contract_are_everybodys(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv")
    numbers = [[50.0, 0.0, 0.0, 0.0, 200.0], [10.0, 1.0, 1.0, 1.0, 50.0]]
    made = alone(section(file, {**CONTRACT, "normalize": numbers}), "nyu")
    raw = alone(section(file), "nyu").clients[0].train.x
    wanted = (raw - torch.tensor(numbers[0])) / torch.tensor(numbers[1])
    assert torch.equal(made.clients[0].train.x, wanted)
    with pytest.raises(ConfigError, match="has 1 means, a sample 5 features"):
        alone(section(file, {**CONTRACT, "normalize": [[0.0], [1.0]]}), "nyu")
    for wrong in ("mine", [[0.0]], [[0.0], [0.0]], [[0.0, 1.0], [1.0]]):
        with pytest.raises(ConfigError, match=r"legal are 'none', 'numeric', 'site' and"):
            checked({"data": {"contract": {**CONTRACT, "normalize": wrong}}})


def test_pictures_with_constants_and_with_each_sites_own(tmp_path: Path) -> None:
    one = pictures(tmp_path / "one", {"common": 12, "rare": 8}, 8)
    constants = {**picture_contract(8), "normalize": [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]}
    made = alone(section(one, constants), "one")
    plain = alone(section(one, picture_contract(8)), "one")
    assert torch.equal(made.clients[0].train.x, plain.clients[0].train.batch(slice(None))[0])
    own = alone(section(one, {**picture_contract(8), "normalize": "site"}), "one")
    assert torch.allclose(own.clients[0].train.x.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)


def test_further_rows_are_normalised_as_the_client_was(tmp_path: Path) -> None:
    for seed, site in enumerate(("nyu", "usm")):
        table(tmp_path / "all" / f"{site}.csv", seed=seed)
    made = load_federation(section(tmp_path / "all", {**CONTRACT, "normalize": "site"}))
    inputs, file = facts_of(made), tmp_path / "all" / "usm.csv"
    plain = load_federation(section(tmp_path / "all"))
    raw = read_samples(file, facts_of(plain)).x
    known = read_samples(file, inputs, client="usm")
    assert torch.equal(known.x, levelled(raw, made.preparation["levels"]["usm"]))
    assert known.notes == ()
    new = read_samples(file, inputs, client="mgh")
    assert torch.equal(new.x, levelled(raw, levels_of(raw)))
    assert "as those of a new site" in new.notes[0]


def arrays_section(folder: Path, **agreed: object) -> DataSection:
    contract = {"classes": ["0", "1"], **agreed}
    return DataSection.model_validate({"path": str(folder), "name": "arrays", "contract": contract})


def test_samples_of_another_type_or_range_than_the_contracts_are_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8)).astype(np.uint8)
    y = np.arange(20) % 2
    for name, samples in (("bytes", x), ("floats", x.astype(np.float32))):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "one", train_x=samples, train_y=y, test_x=samples, test_y=y)
    one, other = tmp_path / "bytes", tmp_path / "floats"
    alone(arrays_section(one, dtype="uint8", range=[0, 255]), "one")
    alone(arrays_section(other, dtype="float32", range=[0, 255]), "one")
    with pytest.raises(Misfit, match=r"train: samples of float32, the contract says uint8"):
        alone(arrays_section(other, dtype="uint8"), "one")
    with pytest.raises(Misfit, match=r"values from 0 to 255; the contract says 0 to 1") as found:
        alone(arrays_section(other, range=[0, 1]), "one")
    assert "255" not in found.value.public
    reports = [report_of(DataSection(name="arrays", path=str(p)), "one") for p in (one, other)]
    assert proposed(reports[:1])[0]["dtype"] == "uint8"
    with pytest.raises(DataError, match="different types: one uint8, two float32"):
        proposed([reports[0], reports[1].model_copy(update={"site": "two"})])


def test_a_site_of_arrays_may_lack_any_class(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    y = 2 * (np.arange(20) % 2)
    np.savez(tmp_path / "one", train_x=x, train_y=y, test_x=x, test_y=y)
    named = alone(arrays_section(tmp_path, classes=["0", "1", "2", "3"]), "one")
    assert named.classes == ("0", "1", "2", "3")
    plain = alone(DataSection(name="arrays", path=str(tmp_path)), "one")
    assert plain.classes == ("0", "1", "2")
    with pytest.raises(DataError, match=r"0, 2: 1 of the numbers .*data\.classes"):
        load_federation(DataSection(name="arrays", path=str(tmp_path)))
