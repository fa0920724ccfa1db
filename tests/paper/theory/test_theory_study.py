"""The study: one call, the same numbers every time, plain values out; and its figure."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from fedbn.errors import ConfigError
from fedbn.paper.paper_figures import draw_theory
from fedbn.paper.theory.network import random_clients
from fedbn.paper.theory.study import Study, study

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"width": 256, "steps": 40, "draws": 5_000, "seed": 3}


@cache
def small() -> Study:
    return study(random_clients(clients=2, per_client=6, dim=4, seed=3), **SMALL)


def test_the_same_seed_gives_the_same_study() -> None:
    again = study(random_clients(clients=2, per_client=6, dim=4, seed=3), **SMALL)
    assert again.to_json() == small().to_json()


def test_the_checks() -> None:
    checks = small().checks
    assert checks.assumption
    assert checks.definite
    assert checks.corollary
    assert checks.start_corollary
    assert checks.monte_carlo_sigmas < 5
    assert checks.rounds_are_joint < 1e-11
    assert checks.alpha_squared_dim == 4.0**2 * 4
    assert checks.start_distance < 0.3


def test_both_methods_start_together_and_learn() -> None:
    fedavg, fedbn = small().fedavg, small().fedbn
    assert fedavg.measured[0] == pytest.approx(fedbn.measured[0], rel=1e-12)
    assert fedavg.measured[-1] < fedavg.measured[0] / 10
    assert fedbn.rounds[-1] < fedbn.measured[-1] < fedbn.measured[0] / 10


def test_the_bound_that_holds_and_the_one_that_does_not() -> None:
    for branch in (small().fedavg, small().fedbn):
        assert branch.start.kernel_holds
        assert branch.start.violation is None
        assert branch.start.rounds_violation is None
        assert not branch.start.width_met
        assert not branch.printed.kernel_holds
        assert branch.kernels.autograd_error < 1e-12


def test_plain_values() -> None:
    plain = json.loads(small().to_json())
    assert plain == small().to_dict()
    assert len(plain["fedbn"]["measured"]) == len(plain["fedbn"]["start"]["curve"]) == 41
    assert len(plain["fedavg"]["printed"]["spectrum"]) == 12
    assert plain["fedavg"]["kernels"]["times"] == [0, 1, 10, 40]


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match="steps=0"):
        study(steps=0)


def test_the_figure(tmp_path: Path) -> None:
    svg, png = draw_theory(small().to_dict(), tmp_path / "new")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "date" not in svg.read_text("utf-8")  # the same study gives the same file
