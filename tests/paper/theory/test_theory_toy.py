"""The toy example: errors by hand, the closed form, and what BatchNorm does to both clients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbn.errors import ConfigError
from fedbn.paper import toy
from fedbn.paper.toy import cosine_clients


def drawn(labels="latent", **options):
    clients = cosine_clients(labels=labels, **options)
    return [(client.x, client.y) for client in clients]


def test_errors_by_hand():
    """x = 0, π and y = 1, −1: cos(0·x) misses the second by 2, cos(x) none, cos(2x) by 2."""
    x, y = np.array([0.0, math.pi]), np.array([1.0, -1.0])
    assert toy.errors(x, y, np.array([0.0, 1.0, 2.0])).tolist() == [2.0, 0.0, 2.0]


def test_the_error_depends_on_w_over_gamma_alone():
    x, y = drawn()[0]
    assert toy.error(x, y, 6.0, 2.0) == toy.error(x, y, 3.0)
    surface = toy.surface(x, y, np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    assert surface.tolist() == [[toy.error(x, y, w, g) for w in (1.0, 3.0)] for g in (1.0, 2.0)]


def test_without_noise_the_true_weight_has_no_error():
    for x, y in drawn("observed", noise=0.0):
        assert toy.error(x, y, 5.0) < 1e-25
    for (x, y), scale in zip(drawn("latent", noise=0.0), (1.0, 2.5), strict=True):
        assert toy.error(x, y, 5.0, scale) < 1e-25


def test_the_optimum_is_found_to_many_digits():
    for (x, y), truth in zip(drawn("latent", noise=0.0), (5.0, 2.0), strict=True):
        best = toy.optimum(x, y)
        assert best.w / best.gamma == pytest.approx(truth, abs=1e-6)
        assert best.gamma == toy.spread(x)
        assert toy.error(x, y, *best) < 1e-11


def test_the_optimum_may_lie_at_the_end_of_the_range():
    x, y = drawn(noise=0.0)[0]
    best = toy.optimum(x, y, bounds=(4.0, 4.5))
    assert best.w / best.gamma == pytest.approx(4.5)


@pytest.mark.parametrize("ratio", [0.0, 0.7, 4.0, 5.0, 6.5])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_the_expected_error_is_what_many_samples_give(ratio: float, scale: float):
    """Of 100,000 samples the mean of squares, below 4 each, has an error of less than 0.01."""
    (client,) = cosine_clients((scale,), samples=100_000, labels="observed", noise=0.1)
    measured = toy.error(client.x, client.y, ratio)
    assert toy.expected_error(ratio, 5.0, scale, 0.1) == pytest.approx(measured, abs=0.01)


def test_far_from_the_truth_the_expected_error_is_one_and_the_noise():
    """Two cosines of different frequency have mean square 1/2 each and no covariance."""
    assert toy.expected_error(20.0, 5.0, 1.0, 0.2) == pytest.approx(1.04)


def test_scaling_by_its_own_deviation_makes_the_clients_curves_alike():
    w = np.linspace(*toy.W_RANGE, 120)
    clients = drawn("latent", samples=5_000)
    without = toy.likeness(*(toy.errors(x, y, w) for x, y in clients))
    local = toy.likeness(*(toy.errors(x, y, w / toy.spread(x)) for x, y in clients))
    assert without[0] > 0.9
    # 4 standard errors of a mean over 5,000 squares below 2.5: alike but for chance.
    assert local[0] < 0.15
    assert local[1] > 0.99 > 0.5 > without[1]


def test_to_the_letter_it_is_the_other_way_round():
    """y = cos(5 x) has its optimum at w = 5 for every client; dividing by γ parts them."""
    w = np.linspace(*toy.W_RANGE, 120)
    clients = drawn("observed", samples=5_000)
    without = toy.likeness(*(toy.errors(x, y, w) for x, y in clients))
    local = toy.likeness(*(toy.errors(x, y, w / toy.spread(x)) for x, y in clients))
    assert without[1] > 0.7 > local[1]
    assert [toy.optimum(x, y).w / toy.spread(x) for x, y in clients] == pytest.approx(
        [5.0, 5.0], abs=0.01
    )


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        ([], [], "x: give a row of finite numbers"),
        ([1.0, math.nan], [0.0, 0.0], "x: give a row of finite numbers"),
        ([1.0, 2.0], [0.0], "x has 2 numbers and y 1"),
        ([1.0, 1.0], [0.0, 0.0], "x is constant"),
    ],
)
def test_what_is_no_client_is_refused(x, y, text: str):
    with pytest.raises(ConfigError, match=text):
        toy.optimum(np.array(x), np.array(y))
