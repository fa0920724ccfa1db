"""Methods that remember, in plain torch, each written from its paper's equations.

Nothing of the library is used. A method is a class with what it remembers, one client's round and
the server's; `run` is the federation around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]
Passes = Mapping[str, Sequence[Batch]]
Extra = Callable[[str, Tensor], Tensor | float]


def descend(
    model: nn.Module,
    state: State,
    batches: Sequence[Batch],
    lr: float,
    extra: Extra = lambda name, w: 0.0,
    only: Iterable[str] | None = None,
    fixed: bool = False,
) -> State:
    """Gradient descent from a state: w − lr (gradient + extra), for the parameters in `only`.

    BatchNorm normalises with its running statistics where these are `fixed`.
    """
    model.load_state_dict(state)
    model.train()
    for module in model.modules():
        if fixed and isinstance(module, _BatchNorm):
            module.eval()
    chosen = {n: p for n, p in model.named_parameters() if only is None or n in set(only)}
    for x, y in batches:
        slopes = torch.autograd.grad(functional.cross_entropy(model(x), y), list(chosen.values()))
        with torch.no_grad():
            moves = [s + extra(n, p) for (n, p), s in zip(chosen.items(), slopes, strict=True)]
            for p, move in zip(chosen.values(), moves, strict=True):
                p -= lr * move
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def mean(states: Sequence[State]) -> State:
    """The mean of states; of whole numbers the largest."""
    return {
        name: torch.stack([state[name] for state in states]).mean(dim=0)
        if states[0][name].is_floating_point()
        else torch.stack([state[name] for state in states]).amax(dim=0)
        for name in states[0]
    }


class FedAvg:
    """McMahan et al. 2017; what the others are compared with, and begin from."""

    def __init__(self, model: nn.Module, lr: float, shared: set[str], clients: int):
        self.model, self.lr, self.clients = model, lr, clients
        self.trained = [n for n, _ in model.named_parameters() if n in shared]
        start = dict(model.named_parameters())
        self.zero = {n: torch.zeros_like(start[n]).detach() for n in self.trained}
        self.own: dict[str, State] = defaultdict(lambda: dict(self.zero))
        self.joint: State = dict(self.zero)

    def client(self, name: str, received: State, passes: Passes, round: int) -> State:
        return descend(self.model, received, passes["order"], self.lr)

    def server(self, before: State, combined: State, accepted: int) -> State:
        return combined


class Scaffold(FedAvg):
    """Karimireddy et al. 2020, Algorithm 1, option II, global step size 1."""

    def client(self, name, received, passes, round):
        c, c_i, steps = self.joint, self.own[name], len(passes["order"])
        after = descend(
            self.model,
            received,
            passes["order"],
            self.lr,
            lambda n, w: c[n] - c_i[n] if n in c else 0.0,
        )
        self.own[name] = {
            n: c_i[n] - c[n] + (received[n] - after[n]) / (steps * self.lr) for n in self.trained
        }
        self.moved = [*getattr(self, "moved", []), {n: self.own[name][n] - c_i[n] for n in c}]
        return after

    def server(self, before, combined, accepted):
        for n in self.trained:
            total = torch.stack([moved[n] for moved in self.moved]).sum(dim=0)
            self.joint[n] = self.joint[n] + total / self.clients
        self.moved = []
        return combined


class FedDyn(FedAvg):
    """Acar et al. 2021, Algorithm 1."""

    alpha = 0.3

    def client(self, name, received, passes, round):
        g = self.own[name]

        def extra(n: str, w: Tensor) -> Tensor | float:
            return -g[n] + self.alpha * (w - received[n]) if n in g else 0.0

        after = descend(self.model, received, passes["order"], self.lr, extra)
        self.own[name] = {n: g[n] - self.alpha * (after[n] - received[n]) for n in self.trained}
        return after

    def server(self, before, combined, accepted):
        after = dict(combined)
        for n in self.trained:
            total = accepted * (combined[n] - before[n])  # the sum over those who took part
            self.joint[n] = self.joint[n] - self.alpha * total / self.clients
            after[n] = combined[n] - self.joint[n] / self.alpha
        return after


class Ditto(FedAvg):
    """Li et al. 2021, Algorithm 1 with FedAvg; the personal model begins as what is received."""

    lam = 0.5

    def client(self, name, received, passes, round):
        v = self.own.get(name, received)
        self.own[name] = descend(
            self.model,
            v,
            passes["order personal"],
            self.lr,
            lambda n, w: self.lam * (w - received[n]) if n in self.trained else 0.0,
        )
        return super().client(name, received, passes, round)


class FedRep(FedAvg):
    """Collins et al. 2021, Algorithm 1: the head first, by itself, then the body by itself."""

    head = ("3.weight", "3.bias")

    def client(self, name, received, passes, round):
        every = [n for n, _ in self.model.named_parameters()]
        body = [n for n in every if n not in self.head]
        first = descend(
            self.model, received, passes["order head"], self.lr, only=self.head, fixed=True
        )
        return descend(self.model, first, passes["order"], self.lr, only=body)


class FixBN(FedAvg):
    """Zhong et al. 2023: after the first round of three the statistics are fixed."""

    def client(self, name, received, passes, round):
        return descend(self.model, received, passes["order"], self.lr, fixed=round > 1)


class FedAvgM(FedAvg):
    """Hsu et al. 2019: v = beta v + delta, w = w + lr v."""

    def server(self, before, combined, accepted):
        after = dict(combined)
        for n in self.trained:
            self.joint[n] = 0.9 * self.joint[n] + (combined[n] - before[n])
            after[n] = before[n] + 0.5 * self.joint[n]
        return after


class FedOpt(FedAvg):
    """Reddi et al. 2021, Algorithm 2, with the second moment of the class's method."""

    lr_server, beta1, beta2, tau = 0.05, 0.9, 0.99, 1e-3

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        raise NotImplementedError

    def server(self, before, combined, accepted):
        after = dict(combined)
        for n in self.trained:
            delta = combined[n] - before[n]
            v = self.own["v"].get(n) if "v" in self.own else None
            v = torch.full_like(delta, self.tau**2) if v is None else v
            self.joint[n] = self.beta1 * self.joint[n] + (1 - self.beta1) * delta
            self.own.setdefault("v", {})[n] = v = self.second(v, delta.square())
            after[n] = before[n] + self.lr_server * self.joint[n] / (v.sqrt() + self.tau)
        return after


class FedAdam(FedOpt):
    def second(self, v, square):
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(FedOpt):
    def second(self, v, square):
        return v - (1 - self.beta2) * square * torch.sign(v - square)


class FedAdagrad(FedOpt):
    beta1 = 0.0

    def second(self, v, square):
        return v + square


def run(
    method: FedAvg,
    start: State,
    kept: set[str],
    rounds: Sequence[Mapping[str, Passes]],
    lrs: Sequence[float],
) -> tuple[State, dict[str, State]]:
    """The shared part and every client's own after the rounds; who is not in a round rests."""
    shared = {n: v for n, v in start.items() if n not in kept}
    homes: dict[str, State] = defaultdict(lambda: {n: start[n] for n in kept})
    for number, given in enumerate(rounds, 1):
        method.lr = lrs[number - 1]
        updates = []
        for client, passes in given.items():
            after = method.client(client, {**shared, **homes[client]}, passes, number)
            homes[client] = {n: after[n] for n in kept}
            updates.append({n: after[n] for n in shared})
        shared = method.server(shared, mean(updates), len(updates))
    return shared, dict(homes)
