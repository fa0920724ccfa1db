"""What the evaluation with several kinds of BatchNorm statistics costs, in units of one round.

`python -m benchmarks.statistics_cost` trains one round of FedAvg on five clients and scores it with
each kind, one thread per measurement. A run of 40 rounds may spend 5 % of its time on the final
evaluation, which is the cost of two rounds. The last column is the cost of keeping each client's
own running statistics while it trains.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.measuring import machine, seconds
from fedbn import fast
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.plan import Plan
from fedbn.core.rounds import initial_state, run_round
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.core.training import Training
from fedbn.methods.paper import fedavg
from fedbn.models.networks import digit_cnn

_PASSES, _CLIENTS, _SAMPLES, _TESTED = 3, 5, 743, 500


class DenseNet(nn.Module):
    """A small DenseNet: 50 BatchNorm layers, each layer is given all outputs before it."""

    def __init__(self, growth: int = 6, layers: int = 48, classes: int = 10):
        super().__init__()
        self.first = nn.Conv2d(3, 2 * growth, 3, padding=1, stride=2)
        widths = [2 * growth + growth * index for index in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, growth, 3, padding=1))
            for w in widths
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(widths[-1] + growth), nn.BatchNorm1d(classes)])
        self.head = nn.Linear(widths[-1] + growth, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits."""
        x = self.first(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return self.norms[1](self.head(self.norms[0](x).relu().mean(dim=(2, 3))))


def federation() -> Federation:
    """Make clients of random pictures; what is measured does not depend on their content."""
    generator = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        x = torch.randn(n, 3, 28, 28, generator=generator)
        return Split(x, torch.randint(0, 10, (n,), generator=generator))

    names = [f"client {index}" for index in range(_CLIENTS)]
    clients = tuple(Client(n, n, split(_SAMPLES), {n: split(_TESTED)}) for n in names)
    return Federation("random pictures", clients, tuple(map(str, range(10))))


def measure(name: str, model: Callable[[], nn.Module]) -> None:
    """Print one row of the table."""
    plan = Plan(fedavg(), federation(), model, Training(rounds=40), final_statistics=("local",))
    plain = replace(plan, final_statistics=())
    times: dict[str, list[float]] = {}
    with closing(fast.make_crew(plan, 1)) as keeps, closing(fast.make_crew(plain, 1)) as runner:
        state = run_round(plan, initial_state(plan), keeps.train).state
        clients = plan.federation.clients
        kinds: tuple[StatisticsKind, ...] = ("running", "local", "exact", "batch")
        rows: dict[str, Callable[[], object]] = {
            "round": lambda: run_round(plain, replace(state, own_statistics={}), runner.train),
            "round, keeping statistics": lambda: run_round(plan, state, keeps.train),
            **{kind: lambda kind=kind: [*keeps.score_with(clients, state, kind)] for kind in kinds},
        }
        for _ in range(_PASSES):
            for what, work in rows.items():
                times.setdefault(what, []).append(seconds(work))
    median = {what: statistics.median(values) for what, values in times.items()}
    one = median["round"]
    norms = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model().modules())
    cells = [f"{median[kind] / one:.2f}" for kind in kinds]
    share = 100 * (median["running"] + median["exact"]) / (40 * one)
    kept = 100 * (median["round, keeping statistics"] / one - 1)
    print(
        f"| {name} | {norms} | {one:.2f} s | {' | '.join(cells)} | {share:.1f} % | {kept:+.1f} % |"
    )


def main() -> None:
    """Print the table."""
    print(machine())
    print("| model | BatchNorm layers | one round | running | local | exact | batch |", end="")
    print(" running and exact in a run of 40 rounds | keeping local statistics |")
    print("|---|---|---|---|---|---|---|---|---|")
    measure("digit_cnn", lambda: digit_cnn(10, (3, 28, 28)))
    measure("DenseNet-like", DenseNet)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
