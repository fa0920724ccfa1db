"""BatchNorm that the types of modules do not show: functional, or made by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedbn
from fedbn.core.pass_tracing import traced
from fedbn.core.plan import remarks
from fedbn.core.state import Kind, entries
from fedbn.errors import ModelError
from fedbn.methods.paper import fedavg, fedbn as fedbn_method
from tiny import done, federation, plan


class FunctionalNorm(nn.Module):
    """BatchNorm by a function; none of its names says so."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("first", torch.zeros(width))
        self.register_buffer("second", torch.ones(width))
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        moments = (self.first, self.second)
        return functional.batch_norm(
            x, *moments, self.gain, bias=self.shift, training=self.training
        )


class HandMadeNorm(nn.Module):
    """BatchNorm by hand, with buffers that change in training mode."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("scale", torch.full((width,), 2.0))  # a constant

    def forward(self, x: Tensor) -> Tensor:
        mean, var = (x.mean(0), x.var(0)) if self.training else (self.mean, self.var)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(mean, 0.1)
                self.var.lerp_(var, 0.1)
        return self.scale * (x - mean) / (var + 1e-5).sqrt()


def net(norm: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), norm(4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def functional_net() -> nn.Module:
    return net(FunctionalNorm)


def hand_made_net() -> nn.Module:
    return net(HandMadeNorm)


INSIDE = {"1.first", "1.second", "1.gain", "1.shift"}


def test_entries_that_functional_batch_norm_is_given_are_batchnorm() -> None:
    made = plan(fedbn_method(), federation(10, 10), functional_net)
    kinds = {entry.name: entry.kind for entry in entries(made.initial_model)}
    assert {kinds["1.first"], kinds["1.second"]} == {Kind.BN_STATISTIC}
    assert {kinds["1.gain"], kinds["1.shift"]} == {Kind.BN_AFFINE}
    again = {entry.name: entry.kind for entry in entries(copy.deepcopy(made.initial_model))}
    assert again == kinds


def test_fedbn_keeps_functional_batchnorm_at_the_client() -> None:
    made = plan(fedbn_method(), federation(10, 10), functional_net)
    made.check()
    state = done(made)
    assert set(state.local["a"].state) >= INSIDE
    assert not INSIDE & set(state.shared.state)
    assert not torch.equal(state.local["a"].state["1.first"], state.local["b"].state["1.first"])
    assert remarks(made) == []


def test_a_model_of_functional_batchnorm_alone_is_one_that_fedbn_takes() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), FunctionalNorm(4), nn.Linear(4, 2))

    plan(fedbn_method(), federation(10, 10), build).check()


def test_a_model_of_hand_made_batchnorm_alone_is_refused_with_the_declaration() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), HandMadeNorm(4), nn.Linear(4, 2))

    with pytest.raises(ModelError) as raised:
        plan(fedbn_method(), federation(10, 10), build).check()
    assert "The buffers 1.mean, 1.var change in a training pass." in str(raised.value)
    assert "fedbn.register_batchnorm(HandMadeNorm)" in str(raised.value)


def test_buffers_that_change_while_training_are_pointed_out_where_they_are_shared() -> None:
    (said,) = remarks(plan(fedbn_method(), federation(10, 10), hand_made_net))
    assert said.startswith("1.mean, 1.var: these buffers change while a client trains")
    assert "fedbn+local('1.*') keeps them at the client" in said
    kept = fedbn_method() | fedbn.local("1.*")
    assert remarks(plan(kept, federation(10, 10), hand_made_net)) == []
    assert remarks(plan(fedavg(), federation(10, 10), hand_made_net)) == []  # shares all of it


def test_tracing_changes_neither_the_model_nor_a_generator() -> None:
    model, x = functional_net(), torch.rand(4, 3)
    before = torch.get_rng_state()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert traced(model, x).changed == ()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_pass_that_fails_shows_nothing() -> None:
    assert traced(functional_net(), torch.rand(4, 7)).batchnorm == {}


def by_type(model: nn.Module) -> dict[str, Tensor]:
    """Return what leaves the client where BatchNorm is found by its module's type."""
    owned = ("2.",)
    return {n: v.clone() for n, v in model.state_dict().items() if not n.startswith(owned)}


def load(model: nn.Module, sent: dict[str, Tensor]) -> None:
    model.load_state_dict(sent, strict=False)


@pytest.mark.parametrize("build", [functional_net, hand_made_net])
@pytest.mark.parametrize("inputs", [None, torch.rand(4, 3)], ids=["without", "with inputs"])
def test_a_project_that_shares_such_statistics_is_not_called_fedbn(build, inputs) -> None:
    found = fedbn.audit(build, by_type, load, inputs=inputs)
    assert found.method != "fedbn"
    assert found.nearest in ("fedbn", "silobn")


def test_a_project_that_keeps_functional_batchnorm_is_called_fedbn() -> None:
    def kept(model: nn.Module) -> dict[str, Tensor]:
        return {n: v for n, v in by_type(model).items() if not n.startswith("1.")}

    assert fedbn.audit(functional_net, kept, load, inputs=torch.rand(4, 3)).method == "fedbn"


def test_a_constant_buffer_that_is_shared_does_not_change_the_verdict() -> None:
    class Constant(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.register_buffer("scale", torch.full((width,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    found = fedbn.audit(lambda: net(Constant), by_type, load, inputs=torch.rand(4, 3))
    assert (found.method, found.doubtful) == ("fedbn", ())
