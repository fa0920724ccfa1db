"""What `fedbn data show` measures and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fedbn.core.federation import Client, Federation, Split
from fedbn.data.survey import client_distances, frechet, survey
from fedbn.results.data_figure import draw_data


def client(name: str, x: torch.Tensor, groups: torch.Tensor | None = None) -> Client:
    y = torch.arange(len(x)) % 3
    return Client(name, name, Split(x, y, groups=groups), {name: Split(x[:5], y[:5])})


def pictures(*levels: int) -> Federation:
    """One site a grey level, of 30 noisy pictures."""
    clients = []
    for number, level in enumerate(levels):
        draws = torch.Generator().manual_seed(number)
        x = level + torch.randint(0, 40, (30, 3, 12, 12), generator=draws)
        clients.append(client(f"site {number}", x.byte()))
    return Federation("test", tuple(clients), ("x", "y", "z"), ("a remark",))


def test_frechet_distance_of_gaussians_on_a_line():
    # (m − m′)² + (s − s′)² for one dimension: 4 + (3 − 1)² = 8.
    one = torch.tensor([1.0]), torch.tensor([[9.0]])
    other = torch.tensor([3.0]), torch.tensor([[1.0]])
    assert math.isclose(frechet(one, other), 8.0, rel_tol=1e-6)
    assert frechet(one, one) == pytest.approx(0, abs=1e-5)


def test_distances_are_symmetric_grow_with_the_shift_and_chance_is_on_the_diagonal():
    near, far = client_distances(pictures(50, 60, 200).clients)[0][1:]
    matrix = np.array(client_distances(pictures(50, 50, 200).clients))
    assert np.allclose(matrix, matrix.T)
    assert near < far
    assert matrix[0, 1] < 2 * matrix[0, 0]  # the same level: no more than chance
    assert matrix[0, 2] > 5 * matrix[0, 0]


def test_halves_never_share_a_group():
    # Ten groups of equal samples: divided by sample the halves would be all but the same.
    centres = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    x, groups = centres.repeat_interleave(20, 0), torch.arange(10).repeat_interleave(20)
    whole = client_distances([client("a", x)])[0][0]
    apart = client_distances([client("a", x, groups)])[0][0]
    assert apart > 2 * whole


def test_too_few_samples_have_no_distance():
    assert math.isnan(client_distances([client("a", torch.zeros(3, 2))])[0][0])


def test_survey_counts_and_examples():
    found = survey(pictures(50, 200), samples=20, examples=4)
    assert found["train"] == [[10, 10, 10]] * 2
    assert found["test"] == [[2, 2, 1]] * 2
    assert [e.shape for e in found["examples"]] == [(4, 12, 12, 3)] * 2
    assert sum(found["histograms"][0]["red"]) == pytest.approx(1)
    assert set(found["histograms"][0]) == {"red", "green", "blue"}


def test_grey_pictures_have_one_histogram_and_floats_are_shown():
    x = (torch.rand(20, 1, 8, 8) * 2 - 1).expand(-1, 3, -1, -1)
    found = survey(Federation("f", (client("a", x),), ("x", "y", "z")))
    assert set(found["histograms"][0]) == {"values"}
    assert found["examples"][0].dtype == np.uint8


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_drawn(tmp_path, suffix):
    file = draw_data(survey(pictures(50, 200)), tmp_path / "new" / f"a.{suffix}")
    if suffix == "png":
        with Image.open(file) as picture:
            assert picture.width > 1000
    else:
        text = file.read_text()
        assert "a remark" in text
        assert "Fréchet distance" in text


def test_of_many_clients_some_of_each_domain_are_drawn(tmp_path):
    # 25 clients in order of their domains: every second or third of them.
    clients = tuple(client(f"{d}-{n}", torch.randn(10, 7)) for d in "abcde" for n in range(5))
    file = draw_data(survey(Federation("f", clients, ("x", "y", "z"))), tmp_path / "a.svg")
    assert {sign for sign in "abcde" if f"{sign}-0" in file.read_text()} == set("abcde")


def test_names_that_are_long_or_look_like_mathematics_are_drawn(tmp_path):
    names = ("$x^", "病院", "a very long name of a hospital")
    clients = tuple(client(name, torch.randn(10, 7)) for name in names)
    text = draw_data(survey(Federation("f", clients, ("x", "y", "z"))), tmp_path / "a.svg")
    assert "$x^" in text.read_text()
    assert "a very lo…hospital" in text.read_text()


def test_distances_do_not_depend_on_whether_features_or_samples_are_fewer():
    # Features that are always 0 add nothing, but make them more than the samples.
    draws = torch.Generator().manual_seed(0)
    samples = [torch.randn(20, 3, generator=draws) + level for level in (0, 2)]
    few = client_distances([client(str(i), x) for i, x in enumerate(samples)])
    many = client_distances(
        [client(str(i), torch.cat([x, torch.zeros(20, 99)], 1)) for i, x in enumerate(samples)]
    )
    assert np.allclose(few, many, atol=1e-3)


def test_vectors_and_many_clients_are_drawn(tmp_path):
    clients = tuple(client(f"c{n}", torch.randn(10, 7)) for n in range(13))
    file = draw_data(survey(Federation("f", clients, ("x", "y", "z"))), tmp_path / "a.svg")
    assert "13 clients (10 shown)" in file.read_text()
