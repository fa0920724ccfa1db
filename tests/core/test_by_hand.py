r"""One and two rounds of FedAvg, FedProx, FedBN and SiloBN, derived by hand and done in NumPy.

The model is a BatchNorm over one feature and one weight: \(o = w (\gamma \hat x + \beta)\) with
\(\hat x = (x - m) / \sqrt{v + \epsilon}\), m and v being the batch's mean and (biased) variance.
The loss is \(L = \frac1n \sum (o - y)^2\). Since x is data, no gradient flows through m and v:

    e         = 2 (o − y) / n
    dL/dw     = Σ e (γ x̂ + β)
    dL/dgamma = Σ e w x̂
    dL/dbeta  = Σ e w

Each client takes two full-batch steps of gradient descent (with one, FedProx's term would be
zero: it pulls towards where the client started). In each step the running mean becomes
0.9 · old + 0.1 · m, and the running variance 0.9 · old + 0.1 · v n / (n − 1).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedbn.core.federation import Client, Federation, Split, Targets
from fedbn.core.method import Method
from fedbn.core.plan import Plan
from fedbn.core.task import Task
from fedbn.core.training import Training
from fedbn.experiments.runner import run_plan as run
from fedbn.methods.paper import fedavg, fedbn, fedprox, silobn

LR, MU, STEPS, EPS = 0.05, 0.3, 2, 1e-5
X = {"a": np.array([1.0, 2.0, 4.0]), "b": np.array([-10.0, 30.0, 10.0, 50.0])}
Y = {"a": np.array([0, 1, 1]), "b": np.array([1, 0, 1, 0])}
START = {"w": 0.5, "gamma": 1.0, "beta": 0.25, "mean": 0.0, "var": 1.0}
SHARED = {
    "fedavg": {"w", "gamma", "beta", "mean", "var"},
    "fedprox": {"w", "gamma", "beta", "mean", "var"},
    "silobn": {"w", "gamma", "beta"},
    "fedbn": {"w"},
}
ENTRY = {
    "w": "1.weight",
    "gamma": "0.weight",
    "beta": "0.bias",
    "mean": "0.running_mean",
    "var": "0.running_var",
}
Values = dict[str, float]


def trained(received: Values, x: np.ndarray, y: np.ndarray, mu: float) -> Values:
    p, n = dict(received), len(x)
    for _ in range(STEPS):
        m, v = x.mean(), x.var()
        hat = (x - m) / np.sqrt(v + EPS)
        hidden = p["gamma"] * hat + p["beta"]
        e = 2 * (p["w"] * hidden - y) / n
        slope = {
            "w": (e * hidden).sum(),
            "gamma": (e * p["w"] * hat).sum(),
            "beta": (e * p["w"]).sum(),
        }
        for name, value in slope.items():
            p[name] -= LR * (value + mu * (p[name] - received[name]))
        p["mean"] = 0.9 * p["mean"] + 0.1 * m
        p["var"] = 0.9 * p["var"] + 0.1 * v * n / (n - 1)
    return p


def by_hand(method: str, rounds: int) -> dict[str, Values]:
    """Every client's joined values after some rounds, with equal weights."""
    clients = {name: dict(START) for name in X}
    for _ in range(rounds):
        mu = MU if method == "fedprox" else 0.0
        after = {name: trained(p, X[name], Y[name], mu) for name, p in clients.items()}
        mean = {key: (after["a"][key] + after["b"][key]) / 2 for key in SHARED[method]}
        clients = {name: {**after[name], **mean} for name in after}
    return clients


def model() -> nn.Module:
    net = nn.Sequential(nn.BatchNorm1d(1, eps=EPS), nn.Linear(1, 1, bias=False)).double()
    state = {ENTRY[name]: torch.tensor([value]) for name, value in START.items()}
    state["1.weight"] = state["1.weight"][None]
    net.load_state_dict({**state, "0.num_batches_tracked": torch.tensor(0)})
    return net


def plan(method: Method, rounds: int) -> Plan:
    clients = []
    for name in X:
        split = Split(torch.from_numpy(X[name])[:, None], torch.from_numpy(Y[name]))
        clients.append(Client(name, name, split, {name: split}))
    squared = Task(
        "by hand", Targets.NUMBERS, lambda outputs, y: (outputs[:, 0] - y).square().mean(), ()
    )
    training = Training(rounds=rounds, local_steps=STEPS, batch_size=None, lr=LR)
    data = Federation("by hand", tuple(clients), ("0", "1"))
    return Plan(method, data, model, training, task=squared)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize(
    "method",
    [fedavg(), fedprox(MU), fedbn(), silobn()],
    ids=["fedavg", "fedprox", "fedbn", "silobn"],
)
def test_a_round_is_what_the_formulas_say(method: Method, rounds: int):
    name = method.name.partition("(")[0]
    state = run(plan(method, rounds))
    for client, expected in by_hand(name, rounds).items():
        joined = {**state.shared.state, **state.local[client].state}
        found = {key: float(joined[entry]) for key, entry in ENTRY.items()}
        assert found == pytest.approx(expected, rel=1e-12)
        assert int(joined["0.num_batches_tracked"]) == STEPS * rounds
    assert {key for key in ENTRY if ENTRY[key] in state.shared.state} == SHARED[name]


def test_the_four_methods_differ():
    """So that the test above could not pass by accident."""
    ends = {name: by_hand(name, 2)["a"] for name in SHARED}
    assert len({tuple(sorted(values.items())) for values in ends.values()}) == 4
