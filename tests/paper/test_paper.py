"""The paper's numbers: every one is read, and spot checks against the printed tables."""

from __future__ import annotations

import tomllib

import pytest

from fedbn.errors import ConfigError
from fedbn.paper import numbers

NAMES = list(tomllib.loads(numbers._FILE.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("name", "label", "count"),
    [
        ("digits-methods", "tab:detailedcompare", 4 * 5),
        ("digits-centralized", "tab:vsjoin", 2 * 5),
        ("digits-batch-epochs", "tab:combination", 9 * 2 * 5),
        ("digits-data-size", "tab:details", 7 * 3 * 5),
        ("digits-unequal-tenth", "tab:fullsize1", 3 * 5),
        ("digits-unequal-full", "tab:fullsize2", 3 * 5),
        ("digits-unequal-full-by-code", "tab:fullsize2", 3 * 5),
        ("office", "tab:my-table", 4 * 4),
        ("domainnet", "tab:my-table", 4 * 6),
        ("abide", "tab:my-table", 4 * 4),
        ("unseen-domain", "tab:ood", 3 * 2),
    ],
)
def test_a_table_has_all_its_numbers(name: str, label: str, count: int) -> None:
    assert numbers.table(name).label == label
    assert len(numbers.table(name).numbers) == count
    assert all(0 < number.mean < 100 for number in numbers.table(name).numbers.values())


@pytest.mark.parametrize(
    ("name", "method", "domain", "setting", "printed"),
    [
        ("digits-methods", "fedbn", "svhn", "default", (71.04, 0.31)),
        ("digits-methods", "singleset", "mnist", "default", (94.38, 0.07)),
        ("digits-data-size", "fedavg", "usps", "percent=5", (93.76, None)),
        ("digits-data-size", "singleset", "mnist_m", "percent=1", (17.23, None)),
        ("digits-batch-epochs", "fedavg", "mnist", "batch_size=full,local_epochs=4", (94.51, None)),
        ("digits-unequal-full", "fedbn", "usps", "percent=100", (94.34, None)),
        ("office", "fedprox", "dslr", "default", (65.0, 3.6)),
        ("domainnet", "singleset", "quickdraw", "default", (73.1, 0.9)),
        ("abide", "fedbn", "UM", "default", (68.6, 2.9)),
    ],
)
def test_a_number_is_as_printed(
    name: str, method: str, domain: str, setting: str, printed: tuple[float, float | None]
) -> None:
    assert numbers.table(name).find(method, domain, setting) == printed


def test_a_number_the_paper_does_not_have_is_none() -> None:
    assert numbers.table("office").find("silobn", "dslr") is None
    assert (
        numbers.table("digits-unequal-tenth").find("fedbn", "svhn") is None
    )  # its sizes are others


def test_the_permuted_table_says_so() -> None:
    assert "permuted" in numbers.table("digits-unequal-full").note


def test_an_unknown_table_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'office'"):
        numbers.table("offise")
