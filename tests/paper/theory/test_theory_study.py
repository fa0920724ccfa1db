"""The study: one call, the same numbers every time, plain values out; and its figure."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch

from commanding import call
from fedbn.core.randomness import generator
from fedbn.errors import ConfigError
from fedbn.paper.paper_figures import draw_theory
from fedbn.paper.theory.network import initial_network, random_clients
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


def test_with_its_own_step_a_method_is_as_fast_as_its_condition_number_lets_it() -> None:
    """At `η = 1/λmax` the slowest part of the error shrinks by (1 − 1/κ)² a step."""
    found = small()
    for branch in (found.fedavg, found.fedbn):
        for own in (branch.own, branch.own_rounds):
            assert own.eta >= found.setting.eta * (1 - 1e-12)
            assert own.condition > 1
            assert own.errors[0] == pytest.approx(branch.measured[0])
            assert own.errors[-1] < own.errors[0]
    etas = [b.own.eta for b in (found.fedavg, found.fedbn)] + [found.fedbn.own_rounds.eta]
    assert min(etas) == pytest.approx(found.setting.eta)


def test_data_network_and_draws_are_not_one_stream() -> None:
    """At equal sizes, one integer must not make a sample of a neuron, or the teacher of one."""
    data = random_clients(clients=1, per_client=4, dim=16, shift=0.0, seed=5)
    unit = initial_network(16, width=8, alpha=1.0, seed=5).v
    assert data.x.shape[1] == unit.shape[1]
    cosine = torch.nn.functional.cosine_similarity(data.x[:, None], unit[None], dim=-1)
    assert float(cosine.abs().max()) < 0.99
    names = ("theory: clients", "theory: network", "theory: Gram matrix")
    first = {name: float(torch.randn(1, generator=generator(5, name))) for name in names}
    assert len(set(first.values())) == 3


def test_plain_values() -> None:
    plain = json.loads(small().to_json())
    assert plain == small().to_dict()
    assert len(plain["fedbn"]["measured"]) == len(plain["fedbn"]["start"]["curve"]) == 41
    assert len(plain["fedavg"]["printed"]["spectrum"]) == 12
    assert plain["fedavg"]["kernels"]["times"] == [0, 1, 10, 40]


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match="steps=0"):
        study(steps=0)
    for step in (0.0, 1.5, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"step={step}"):
            study(step=step)
    with pytest.raises(ConfigError, match=r"width=1000000 .* at most"):
        study(width=10**6)


def test_a_singular_kernel_has_no_condition_number_and_no_width() -> None:
    # Of one input there are two directions, so that four samples are multiples of each other.
    found = study(random_clients(clients=2, per_client=4, dim=1), width=16, steps=3, draws=1000)
    assert not found.checks.assumption
    plain = json.loads(found.to_json())
    for branch in (plain["fedavg"], plain["fedbn"]):
        assert branch["printed"]["mu"] == branch["start"]["mu"] == 0
        assert branch["own"]["condition"] is branch["printed"]["width"] is None
        assert branch["printed"]["kernel_holds"]
    assert plain["checks"]["ratio"] is plain["checks"]["crossover_alpha"] is None


@pytest.mark.parametrize(
    "flags",
    [
        ("--dim", 1), ("--dim", 10**9), ("--clients", 10**9), ("--width", 10**23),
        ("--width", 10**6), ("--alpha", 1e70), ("--step", "inf"), ("--step", 100),
        ("--steps", 10**12), ("--out", __file__),
    ],
)  # fmt: skip
def test_numbers_that_no_machine_can_compute_with_are_refused(flags: tuple[str, object]) -> None:
    answer = call("theory", *flags)
    assert answer.code == 3
    assert "Traceback" not in answer.err
    assert "not foreseen" not in answer.err


def test_a_refused_size_makes_no_folder(tmp_path: Path) -> None:
    assert call("theory", "--width", 10**6, "--out", tmp_path / "out").code == 3
    assert not (tmp_path / "out").exists()


def test_a_matrix_that_rounding_makes_singular_is_no_broken_lemma() -> None:
    answer = call("theory", "--dim", 2, "--clients", 10, "--steps", 2, "--width", 64)
    assert "Lemma 4.3, both positive definite: not beyond rounding" in answer.out, answer.err


def test_a_narrow_network_is_printed() -> None:
    answer = call("theory", "--width", 1, "--steps", 1, "--clients", 1, "--dim", 2)
    assert answer.code == 0, answer.err
    assert "infinite" in answer.out


def test_the_figure(tmp_path: Path) -> None:
    svg, png = draw_theory(small().to_dict(), tmp_path / "new")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "date" not in svg.read_text("utf-8")  # the same study gives the same file
