"""Weight gradients computed by an idle thread are the backward pass's own, bit for bit."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fedbn.core.federation import Split
from fedbn.core.method import Proximal, proximal
from fedbn.core.plan import Training
from fedbn.core.rounds import ClientWork, local_train
from fedbn.fast import weight_gradients as asides
from fedbn.fast.memory_formats import as_usual, blocked, channels_last, prepare
from fedbn.fast.weight_gradients import IdleCores, OverlappedPasses, plain_steps
from fedbn.models.networks import small_cnn


class Tied(nn.Module):
    """Uses weights three times, in modules and in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(torch.relu(self.conv(x)))
        x = functional.conv2d(x, self.conv.weight, stride=4, padding=(1, 1))
        x = self.dense(torch.relu(self.dense(torch.flatten(x, 1)[:, :12])))
        return functional.linear(x, self.dense.weight, bias=self.dense.bias)


class Odd(nn.Module):
    """Layers that are left to torch: weights that are computed, padding by name, 3-D inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3, padding="same"))
        self.named = nn.Conv2d(4, 4, 3, padding="same")
        self.dense = nn.Linear(16, 5)
        self.dense.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.named(self.conv(x)).mean(3).flatten(2)[..., :16]).sum(1)


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
    aside = OverlappedPasses(helpers if helped else None)

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


@pytest.mark.parametrize("layout", [as_usual, channels_last, blocked])
def test_helped_or_not_in_every_layout(
    layout: Callable[[Tensor], Tensor], helpers: IdleCores
) -> None:
    torch.manual_seed(0)
    model, x = small_cnn(4, (3, 16, 16)), torch.rand(6, 3, 16, 16)
    prepare(model, layout)
    alone, helped = OverlappedPasses(), OverlappedPasses(helpers)
    first, second = (
        gradients(model, lambda m, a=a: a.backward(a.outputs(m, layout(x)).square().sum()))
        for a in (alone, helped)
    )
    assert all(map(torch.equal, first, second))


def test_weights_used_three_times_sum_up_the_same_whoever_computes(helpers: IdleCores) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.rand(6, 3, 16, 16)
    found = [
        gradients(
            model,
            lambda m: (a := OverlappedPasses(helpers)).backward(a.outputs(m, x).square().sum()),
        )
        for _ in range(5)
    ]
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))


def test_helpers_are_asked_only_while_a_core_is_idle(
    helpers: IdleCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    submit = helpers.submit
    monkeypatch.setattr(helpers, "submit", lambda work: asked.append(work) or submit(work))
    model, x, aside = small_cnn(4, (3, 16, 16)), torch.rand(6, 3, 16, 16), OverlappedPasses(helpers)
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
    model, aside = nn.Linear(3, 2), OverlappedPasses(helpers)
    with pytest.raises(ValueError, match="no room"):
        aside.backward(aside.outputs(model, torch.rand(4, 3)).sum())


def test_what_nobody_began_is_done_by_the_pass(helpers: IdleCores) -> None:
    gate = threading.Event()
    helpers.submit(lambda: gate.wait() and [])  # the only thread is held up
    model, aside, x = nn.Linear(3, 2), OverlappedPasses(helpers), torch.rand(4, 3)
    aside.backward(aside.outputs(model, x).sum())
    gate.set()
    assert torch.equal(model.weight.grad, x.sum(0).expand(2, 3))


def test_parameters_with_hooks_are_left_to_torch(helpers: IdleCores) -> None:
    model, aside, seen = nn.Linear(3, 2), OverlappedPasses(helpers), []
    model.weight.register_hook(lambda g: seen.append("hook"))
    model.bias.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    aside.backward(aside.outputs(model, torch.rand(4, 3)).sum())
    assert sorted(seen) == ["after", "hook"]


def test_small_models_do_without() -> None:
    assert not asides.worth_it(small_cnn(10, (3, 16, 16)))
    assert asides.worth_it(nn.Linear(1000, 1000))


def trained(
    model: nn.Module,
    mu: float | None = None,
    helpers: IdleCores | None = None,
    plainly: bool = False,
    **training: object,
) -> tuple[list[Tensor], int]:
    """Train a copy for three steps; its parameters, and how many dense weights stepped."""
    copied, stepped = copy.deepcopy(model).double(), 0
    draws = torch.Generator().manual_seed(0)
    data = Split(torch.rand(12, 3, 16, 16, generator=draws).double(), torch.arange(12) % 3)
    shared = list(copied.parameters())
    anchor = [p.detach() * 0.5 for p in shared]
    aside = None if plainly else OverlappedPasses(helpers)
    if aside is not None:
        leave = aside.leave_to_step

        def counted(*args: Tensor) -> bool:
            nonlocal stepped
            left = leave(*args)
            stepped += left
            return left

        aside.leave_to_step = counted  # type: ignore[method-assign]
    penalties = [] if mu is None else [proximal(mu)]
    how = Training(batch_size=4, lr=0.1, **training)  # type: ignore[arg-type]
    received = anchor if penalties else ()
    local_train(ClientWork(copied, data, how, 3, draws, penalties, shared, received), aside)
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


@pytest.mark.parametrize("make", DENSE)
@pytest.mark.parametrize("mu", [None, 0.5])
@pytest.mark.parametrize("helped", [True, False])
def test_weights_that_step_by_themselves_step_as_the_optimiser_does(
    make: Callable[[], nn.Module],
    mu: float | None,
    helped: bool,
    helpers: IdleCores,
    all_worth_it: None,
) -> None:
    torch.manual_seed(0)
    model = make()
    found, stepped = trained(model, mu, helpers if helped else None)
    expected, _ = trained(model, mu, plainly=True)
    assert stepped > 0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, found, trained(model, mu)[0]))  # helped or not


@pytest.mark.parametrize("make", DENSE)
def test_no_pull_is_no_penalty(make: Callable[[], nn.Module], all_worth_it: None) -> None:
    torch.manual_seed(0)
    model = make()
    assert all(map(torch.equal, trained(model, 0.0)[0], trained(model)[0]))


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "Adam"},
        {"optimizer_args": {"momentum": 0.9}},
        {"optimizer_args": {"weight_decay": 0.1}},
    ],
)
def test_other_optimisers_get_their_gradients(
    training: dict[str, object], all_worth_it: None
) -> None:
    torch.manual_seed(0)
    model = small_cnn(3, (3, 16, 16))
    found, stepped = trained(model, **training)
    assert not stepped
    assert all(map(torch.equal, found, trained(model, plainly=True, **training)[0]))


def test_other_penalties_get_their_gradients(all_worth_it: None) -> None:
    class Mine(Proximal):
        """Not FedProx's."""

    parameters = [torch.zeros(1)]
    assert plain_steps(Training(), [], parameters, ()) is not None
    assert plain_steps(Training(), [proximal(1.0)], parameters, parameters) is not None
    assert plain_steps(Training(), [Mine(1.0)], parameters, parameters) is None
