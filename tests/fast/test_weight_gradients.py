"""Weight gradients computed by an idle thread are the backward pass's own, bit for bit."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fedbn.core.federation import Split
from fedbn.core.local_training import ClientWork, Passes, local_train
from fedbn.core.method import Proximal, ProximalGradient, proximal
from fedbn.core.rule import Term
from fedbn.core.training import Training
from fedbn.experiments.runner import run_plan
from fedbn.fast import channels_last, weight_gradients as asides
from fedbn.fast.weight_gradients import IdleCores, OverlappedPasses, plain_steps
from fedbn.methods.paper import fedbn
from fedbn.methods.rules import ditto, scaffold
from fedbn.models.networks import small_cnn
from tiny import federation, plan, same_runs


class Tied(nn.Module):
    """Uses weights three times, in modules and in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(torch.relu(self.conv(x)))
        x = functional.conv2d(x, self.conv.weight, None, (4, 4), (1, 1), (1, 1), 1)
        x = self.dense(torch.relu(self.dense(torch.flatten(x, 1)[:, :12])))
        return functional.linear(x, self.dense.weight, self.dense.bias)


class Odd(nn.Module):
    """Left to torch: computed weights, padding by name, 3-D inputs, other ways to call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3, padding="same"))
        self.named = nn.Conv2d(4, 4, 3, padding="same")
        self.dense = nn.Linear(16, 5)
        self.dense.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(self.named(self.conv(x)), self.named.weight, None, 1, 1, 1, 1)
        x = functional.conv2d(x, self.named.weight, padding=1)
        return self.dense(x.mean(3).flatten(2)[..., :16]).sum(1)


class Slopes(nn.Module):
    """Differentiates itself in its own forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 4, 3), nn.Linear(4 * 14 * 14, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = self.dense(torch.flatten(torch.tanh(self.conv(x)), 1))
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y + slope.square().mean()


class Net(nn.Module):
    """Its pass is computed in an unusual way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 4, 3), nn.Linear(4 * 14 * 14, 3)

    def inner(self, x: Tensor) -> Tensor:
        return self.dense(torch.relu(self.conv(x)).flatten(1)).float()


class Autocast(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x)


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class CheckpointedTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x.clone().requires_grad_(), use_reentrant=True)


class Offloaded(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return self.inner(x)


class Mapped(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(lambda one: self.inner(one[None])[0])(x)


class Compiled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.compile(self.inner, backend="eager")(x)


SPECIAL = [Autocast, Checkpointed, CheckpointedTwice, Offloaded, Mapped, Compiled]


@pytest.fixture
def helpers() -> Iterator[IdleCores]:
    made = IdleCores(2)
    yield made
    made.close()


def gradients(model: nn.Module, step: Callable[[nn.Module], None]) -> list[Tensor]:
    copied = copy.deepcopy(model).train()
    step(copied)
    return [p.grad for p in copied.parameters() if p.grad is not None]


@pytest.mark.parametrize("make", [lambda: small_cnn(4, (3, 16, 16)), Tied, Odd, Slopes, *SPECIAL])
@pytest.mark.parametrize("helped", [True, False])
def test_the_gradients_are_torchs_own(
    make: Callable[[], nn.Module], helped: bool, helpers: IdleCores
) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.rand(6, 3, 16, 16)
    aside = OverlappedPasses(helpers=helpers if helped else None)

    def step(m: nn.Module) -> None:
        for _ in range(2):  # gradients add up
            aside.backward(aside.outputs(m, x).square().sum())

    def plainly(m: nn.Module) -> None:
        for _ in range(2):
            m(x).square().sum().backward()

    found, expected = gradients(model, step), gradients(model, plainly)
    assert len(found) == len(expected) > 0
    if make is Tied:  # three terms, summed in another order
        torch.testing.assert_close(found, expected)
    else:
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("layout", [Tensor.contiguous, channels_last])
def test_helped_or_not_in_every_layout(
    layout: Callable[[Tensor], Tensor], helpers: IdleCores
) -> None:
    torch.manual_seed(0)
    model, x = small_cnn(4, (3, 16, 16)), torch.rand(6, 3, 16, 16)
    alone, helped = OverlappedPasses(layout), OverlappedPasses(layout, helpers)
    first, second = (
        gradients(model, lambda m, a=a: a.backward(a.outputs(m, x).square().sum()))
        for a in (alone, helped)
    )
    assert all(map(torch.equal, first, second))


def test_weights_used_three_times_sum_up_the_same_whoever_computes(helpers: IdleCores) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.rand(6, 3, 16, 16)
    found = [
        gradients(
            model,
            lambda m: (a := OverlappedPasses(helpers=helpers)).backward(
                a.outputs(m, x).square().sum()
            ),
        )
        for _ in range(5)
    ]
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))


@pytest.mark.parametrize("free", [(True, False), (False, True)])
def test_they_sum_up_the_same_where_a_core_is_idle_for_some_of_them(
    free: tuple[bool, bool], helpers: IdleCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, turn = helpers.submit, itertools.cycle(free)
    torch.manual_seed(0)
    model, x = Tied(), 100 * torch.rand(6, 3, 16, 16)

    def step(m: nn.Module) -> None:
        aside = OverlappedPasses(helpers=helpers)
        aside.backward(aside.outputs(m, x).square().sum())

    always = gradients(model, step)
    monkeypatch.setattr(helpers, "submit", lambda work: submit(work) if next(turn) else None)
    assert all(map(torch.equal, gradients(model, step), always))


def test_helpers_are_asked_only_while_a_core_is_idle(
    helpers: IdleCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    submit = helpers._threads.submit
    monkeypatch.setattr(helpers._threads, "submit", lambda w: asked.append(w) or submit(w))
    model, x, aside = (
        small_cnn(4, (3, 16, 16)),
        torch.rand(6, 3, 16, 16),
        OverlappedPasses(helpers=helpers),
    )
    with helpers.one_core_busy():
        aside.backward(aside.outputs(model, x).sum())
        helped = len(asked)
        with helpers.one_core_busy():
            aside.backward(aside.outputs(model, x).sum())
    assert helped > 0
    assert len(asked) == helped


def test_an_error_of_a_helper_is_an_error_of_the_pass(
    helpers: IdleCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[Tensor]:
        raise ValueError("no room")

    monkeypatch.setattr(helpers, "submit", lambda _: helpers._threads.submit(fail).result)
    model, aside = nn.Linear(3, 2), OverlappedPasses(helpers=helpers)
    with pytest.raises(ValueError, match="no room"):
        aside.backward(aside.outputs(model, torch.rand(4, 3)).sum())


def test_what_nobody_began_is_done_by_the_pass(helpers: IdleCores) -> None:
    gate = threading.Event()
    helpers.submit(lambda: gate.wait() and [])  # the only thread is held up
    model, aside, x = nn.Linear(3, 2), OverlappedPasses(helpers=helpers), torch.rand(4, 3)
    aside.backward(aside.outputs(model, x).sum())
    gate.set()
    assert torch.equal(model.weight.grad, x.sum(0).expand(2, 3))


def test_parameters_with_hooks_are_left_to_torch(helpers: IdleCores) -> None:
    model, aside, seen = nn.Linear(3, 2), OverlappedPasses(helpers=helpers), []
    model.weight.register_hook(lambda g: seen.append("hook"))
    model.bias.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    aside.backward(aside.outputs(model, torch.rand(4, 3)).sum())
    assert sorted(seen) == ["after", "hook"]


def test_small_models_do_without() -> None:
    assert not asides.worth_it(small_cnn(10, (3, 16, 16)))
    assert asides.worth_it(nn.Linear(1000, 1000))


def trained(
    model: nn.Module,
    changes: Sequence[Proximal] = (),
    helpers: IdleCores | None = None,
    plainly: bool = False,
    terms: Sequence[Term] = (),
    **training: object,
) -> tuple[list[Tensor], int]:
    """Train a copy for three steps; its parameters, and how many dense weights stepped."""
    copied, stepped = copy.deepcopy(model).double(), 0
    draws = torch.Generator().manual_seed(0)
    data = Split(torch.rand(12, 3, 16, 16, generator=draws).double(), torch.arange(12) % 3)
    shared = list(copied.parameters())
    anchor = [p.detach() * 0.5 for p in shared]
    passes = Passes() if plainly else OverlappedPasses(helpers=helpers)
    if isinstance(passes, OverlappedPasses):
        leave = passes.leave_to_step

        def counted(*args: Tensor) -> bool:
            nonlocal stepped
            left = leave(*args)
            stepped += left
            return left

        passes.leave_to_step = counted  # type: ignore[method-assign]
    how = Training(batch_size=4, lr=0.1, **training)  # type: ignore[arg-type]
    pulls = [
        (OtherGradient if isinstance(one, Mine) else ProximalGradient)(one.mu, shared, anchor)
        for one in changes
    ]
    local_train(ClientWork(copied, data, how, 3, draws, terms, pulls, passes=passes))
    return [p.detach() for p in shared], stepped


@pytest.fixture
def all_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asides, "_WORTH_IT", 0)


class Both(nn.Module):
    """A weight that is also used outside of its layer, and one with a single row."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.row = nn.Linear(48, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(torch.flatten(x, 1)[:, :48])
        return x + self.row(x) + self.dense.weight.square().mean()


DENSE = [lambda: small_cnn(3, (3, 16, 16)), Tied, Both]
PULLS = [[], [proximal(0.5)], [proximal(0.25), proximal(0.5)]]


@pytest.mark.parametrize("make", DENSE)
@pytest.mark.parametrize("pulls", PULLS)
@pytest.mark.parametrize("helped", [True, False])
def test_weights_that_step_by_themselves_step_as_the_optimiser_does(
    make: Callable[[], nn.Module],
    pulls: list[Proximal],
    helped: bool,
    helpers: IdleCores,
    all_worth_it: None,
) -> None:
    torch.manual_seed(0)
    model = make()
    found, stepped = trained(model, pulls, helpers if helped else None)
    expected, _ = trained(model, pulls, plainly=True)
    assert stepped > 0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, found, trained(model, pulls)[0]))  # helped or not


@pytest.mark.parametrize("make", DENSE)
def test_no_pull_is_no_penalty(make: Callable[[], nn.Module], all_worth_it: None) -> None:
    torch.manual_seed(0)
    model = make()
    assert all(map(torch.equal, trained(model, [proximal(0.0)])[0], trained(model)[0]))


class Mine(Proximal):
    """Not FedProx's."""


class OtherGradient(ProximalGradient):
    """The gradient of another term, as far as the passes can know."""


@pytest.mark.parametrize(
    "asked",
    [
        {"optimizer": "Adam"},
        {"optimizer_args": {"momentum": 0.9}},
        {"optimizer_args": {"weight_decay": 0.1}},
        {"clip_norm": 0.01},
        {"terms": [lambda model, batch, outputs: outputs.square().mean()]},
        {"changes": [Mine(1.0)]},
        {"changes": [proximal(1.0), Mine(1.0)]},
    ],
)
def test_what_needs_gradients_gets_them(asked: dict[str, Any], all_worth_it: None) -> None:
    torch.manual_seed(0)
    model = small_cnn(3, (3, 16, 16))
    found, stepped = trained(model, **asked)
    assert not stepped
    assert all(map(torch.equal, found, trained(model, plainly=True, **asked)[0]))


def test_a_rule_s_change_is_not_known() -> None:
    parameters = torch.zeros(1)
    data = Split(parameters, torch.zeros(1, dtype=torch.long))
    work = ClientWork(nn.Linear(1, 1), data, Training(), 1, torch.Generator())
    assert plain_steps(work) is not None
    for change in (lambda: None, partial(print, "c")):
        assert plain_steps(replace(work, changes=(change,))) is None


def test_parameters_that_rest_do_not_step(all_worth_it: None) -> None:
    torch.manual_seed(0)
    model, passes = nn.Sequential(nn.Flatten(), nn.Linear(768, 4), nn.Linear(4, 3)), [None, None]
    data = Split(torch.rand(4, 3, 16, 16), torch.arange(4) % 3)
    for i, way in enumerate((OverlappedPasses(), Passes())):
        copied = copy.deepcopy(model)
        only = {id(p) for p in copied[2].parameters()}
        draws = torch.Generator().manual_seed(0)
        local_train(ClientWork(copied, data, Training(lr=0.1), 2, draws, only=only, passes=way))
        assert torch.equal(copied[1].weight, model[1].weight)
        assert not torch.equal(copied[2].weight, model[2].weight)
        passes[i] = copied[2].weight.detach()
    torch.testing.assert_close(*passes)


def test_memory_of_rules_goes_by_gradients_and_gives_the_same_bits_with_helpers(
    all_worth_it: None,
) -> None:
    data = federation(12, 9, 21)
    for method in (scaffold(), fedbn() | proximal(0.1), ditto(0.5)):
        made = plan(method, data)
        one, two = (run_plan(made, workers=workers) for workers in (1, 2))
        assert same_runs(one, two)
