"""Scoring with BatchNorm folded: near the plain score, or not done at all."""

from __future__ import annotations

import copy

import pytest
import torch
from awkward import AWKWARD
from torch import Tensor, nn

from fedbn.core.bn_folding import fold
from fedbn.core.federation import Federation
from fedbn.core.replica import Replica, Speedups
from fedbn.core.scoring import evaluate
from fedbn.core.state import unwrap
from fedbn.methods.paper import fedbn
from tiny import bn_net, done, plan


def test_a_fold_by_hand():
    """w = 2, b = 1; mean 3, variance 4, gamma 6, beta 5: 6 / 2 · (2x + 1 − 3) + 5 = 6x − 1."""
    net = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)).eval()
    for tensor, value in zip(net.state_dict().values(), (2, 1, 6, 5, 3, 4, 0), strict=True):
        tensor.fill_(value)
    twin = fold(net, torch.zeros(2, 1))
    twin.refresh()
    assert twin(torch.tensor([[0.0], [2.0]])).tolist() == [[-1], [11]]


def test_the_twin_follows_the_original_when_told():
    net = bn_net().eval()
    twin = fold(net, torch.zeros(2, 3))
    x = torch.randn(5, 3)
    with torch.no_grad():
        net[0].weight.mul_(2)
        net[1].running_mean.add_(1)
        twin.refresh()
        torch.testing.assert_close(twin(x), net(x))


def test_every_client_is_scored_as_its_own_model_would_be(vectors: Federation):
    made = plan(fedbn(), vectors)
    state = done(made)
    folding = Speedups(scoring=lambda model: fold(model, torch.zeros(2, 3)))
    replica = Replica(made.initial_model, made.method, speedups=folding)
    assert replica.folded
    for client in vectors.clients:
        local = state.local[client.name]
        replica.load(state.shared, local)
        test = client.tests[client.domain]
        plain = evaluate(replica.model, test)
        folded = evaluate(replica.scoring_model(state.shared, local), test)
        assert folded.metrics == plain.metrics
        assert folded.loss == pytest.approx(plain.loss, rel=1e-5)


class Twice(nn.Module):
    """What the layer gives is used beside BatchNorm too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x + self.norm(x)


class Branches(nn.Module):
    """A forward that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.net = bn_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.sum() > 0 else -self.net(x)


@pytest.mark.parametrize(
    "net",
    [
        Twice(),
        Branches(),
        nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        nn.Linear(3, 3),
    ],
)
def test_what_cannot_be_folded_is_left_alone(net: nn.Module):
    assert fold(net, torch.randn(2, 3)) is None


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_model_is_folded_right_or_not_at_all(name: str):
    net = unwrap(AWKWARD[name].build())
    x = torch.randn(4, 3)
    before, training = copy.deepcopy(net.state_dict()), net.training
    twin = fold(net, x[:2])
    assert net.training is training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    if twin is not None:
        twin.refresh()
        with torch.no_grad():
            torch.testing.assert_close(twin(x), net.eval()(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", ["blocked", "plain"])
def test_images_pass_through_either_layout(layout: str):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 5),
    ).eval()
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    x = torch.randn(6, 3, 8, 8)
    twin = fold(net, x[:2], [layout])
    assert twin is not None
    twin.refresh()
    with torch.inference_mode():
        torch.testing.assert_close(twin(x), net(x), rtol=1e-4, atol=1e-4)
        assert not twin(x).is_mkldnn


class Joined(nn.Module):
    """Concatenates, which oneDNN's blocks cannot do here."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.layer(x))
        return torch.cat([x, x.relu()], dim=1).flatten(1)


def test_probing_a_model_that_concatenates_prints_nothing(capfd: pytest.CaptureFixture[str]):
    twin = fold(Joined(), torch.randn(2, 1, 4, 4))
    assert twin is not None
    assert twin.layout == "plain"
    assert capfd.readouterr() == ("", "")


def test_what_has_no_blocked_form_is_folded_as_usual():
    class Halved(nn.Module):
        def forward(self, x):
            return x[:, ::2]  # a step that oneDNN's blocks do not have

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Halved()).eval()
    x = torch.randn(2, 3, 6, 6)
    assert fold(net, x, ["blocked"]) is None
    assert fold(net, x) is not None
