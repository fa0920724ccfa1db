import numpy as np
import pytest
import torch
from loading import loaded

from fedbn.core.findings import check_federation
from fedbn.datasets.synthetic import gaussians
from fedbn.errors import ConfigError
from fedbn.paper.toy import cosine_clients, spread


def centred(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - (2 * y[:, None] - 1)


def test_two_clients_of_two_classes():
    federation = gaussians()
    assert check_federation(federation) == []
    assert [client.name for client in federation.clients] == ["diagonal", "mixed"]
    assert federation.classes == ("0", "1")
    for client in federation.clients:
        assert client.train.x.shape == (200, 10)
        assert client.train.y.bincount().tolist() == [100, 100]
        assert len(client.tests[client.domain]) == 1000


def test_means_are_minus_one_and_plus_one():
    for client in gaussians(train=20000).clients:
        for label, mean in ((0, -1.0), (1, 1.0)):
            own = client.train.x[client.train.y == label]
            assert own.mean(dim=0).sub(mean).abs().max() < 0.05


@pytest.mark.parametrize(("mixed", "expected"), [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5)])
def test_the_covariance_is_the_mixture_of_both(mixed: float, expected: float):
    # A share of ones with correlation 0.5 among independent ones: share · 0.5 off the diagonal.
    first, second = gaussians(train=40000, mixed=mixed).clients
    off = ~torch.eye(10, dtype=torch.bool)
    one = centred(first.train.x, first.train.y).T.cov()
    two = centred(second.train.x, second.train.y).T.cov()
    assert one[off].abs().max() < 0.03
    assert (two[off] - expected).abs().max() < 0.03
    assert (two.diagonal() - 1).abs().max() < 0.05


def test_the_seed_decides():
    assert gaussians().fingerprint() == gaussians().fingerprint()
    assert gaussians().fingerprint() != gaussians(seed=1).fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 1}, r"data\.train = 1: input should be greater than or equal to 2"),
        ({"dim": 1}, r"data\.dim = 1"),
        ({"correlation": 1.0}, r"data\.correlation = 1\.0: legal are numbers above -0\.111"),
        ({"correlation": -0.2}, "below 1"),
        ({"correlation": float("nan")}, r"data\.correlation = nan"),
        ({"mixed": 1.5}, r"data\.mixed = 1\.5: input should be less than or equal to 1"),
        ({"mixed": float("nan")}, r"data\.mixed = nan"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        loaded("gaussians", **options)


def error(w: float, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(np.cos(w * x) - y).mean())


def best(x: np.ndarray, y: np.ndarray) -> float:
    grid = torch.linspace(0.001, 12, 1200).tolist()
    return min(grid, key=lambda w: error(w, x, y))


def test_batch_normalisation_brings_the_cosine_clients_together():
    # Without it the best weights are w_true / σ = 5 and 2; divided by γ both are near 5.
    one, other = cosine_clients()
    assert best(one.x, one.y) == pytest.approx(5.0, abs=0.05)
    assert best(other.x, other.y) == pytest.approx(2.0, abs=0.05)
    normalised = [best(client.x / spread(client.x), client.y) for client in (one, other)]
    assert normalised == pytest.approx([5.0, 5.0], rel=0.05)


def test_averaging_batch_normalisation_too_is_worse():
    one, other = cosine_clients()
    own, mean = spread(one.x), (spread(one.x) + spread(other.x)) / 2
    assert error(5.0, one.x / own, one.y) < 0.1
    assert error(5.0, one.x / mean, one.y) > 0.5


def test_labels_to_the_letter():
    one, other = cosine_clients(labels="observed")
    assert best(other.x, other.y) == pytest.approx(best(one.x, one.y), abs=0.05)


def test_the_noise_is_what_was_asked_for():
    (client,) = cosine_clients(scales=[2.0], samples=20000, noise=0.3)
    left = client.y - np.cos(5.0 * client.x / 2.0)
    assert float(left.std()) == pytest.approx(0.3, rel=0.05)
    assert spread(client.x) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"scales": []},
        {"scales": [1.0, 0.0]},
        {"samples": 1},
        {"w_true": float("inf")},
        {"noise": -1.0},
        {"labels": "seen"},
    ],
)
def test_wrong_options_of_the_cosine_clients_are_refused(options: dict):
    with pytest.raises(ConfigError, match=next(iter(options))):
        cosine_clients(**options)
