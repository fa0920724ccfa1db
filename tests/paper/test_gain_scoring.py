"""The same weights with different statistics: held to real runs and to plain torch."""

from __future__ import annotations

import _thread
import signal
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbn.core.federation import Client
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record
from fedbn.experiments.configuration import checked
from fedbn.experiments.jobs import jobs
from fedbn.experiments.planner import Planner
from fedbn.experiments.runner import Memory, run_plan
from fedbn.paper import gain_scoring
from fedbn.paper.gain_scoring import BatchMoments, Bench, Track, measure, train
from fedbn.trained.local_parts import layers_of

ROUNDS, POINTS = 3, 1


def plan(method: str, momentum: float | None = 0.1) -> Plan:
    raw = {
        "methods": [method],
        "seeds": [4],
        "training": {"rounds": ROUNDS, "batch_size": 8, "lr": 0.1, "fast": False},
        "data": {"name": "digits_mini", "percent": 20, "test_limit": 40},
        "model": {"name": "small_cnn", "args": {"width": 4}},
    }
    made = replace(
        Planner().plan(jobs(checked(raw))[0]), final_statistics=("running", "local", "exact")
    )
    for layer in made.initial_model.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            layer.momentum = momentum
    return made


@cache
def found() -> gain_scoring.Found:
    return measure([plan("fedavg"), plan("fedbn")], POINTS)


@cache
def bench(method: str) -> Bench:
    return Bench(train(plan(method), POINTS))


def records_of_a_run(method: str, statistics: str, momentum: float | None = 0.1) -> list[Record]:
    """What a run says of its last round, scored with one kind of statistics."""
    memory = Memory()
    run_plan(plan(method, momentum), memory, workers=1)
    last = [record for record in memory.records if record.round == ROUNDS]
    return [record for record in last if record.statistics == statistics]


def scores_of_a_run(
    method: str, momentum: float | None = 0.1, statistics: str = "running"
) -> list[float]:
    """Test accuracies of a run, as it reports them."""
    found = records_of_a_run(method, statistics, momentum)
    wanted = [r.value for r in found if (r.split, r.metric) == ("test", "accuracy")]
    return [100 * value for value in wanted if value is not None]


@pytest.mark.parametrize(
    ("method", "statistics"),
    [
        ("fedavg", "running"),
        ("fedavg", "local"),
        ("fedavg", "exact"),
        ("fedbn", "running"),
        ("fedbn", "exact"),
    ],
)
def test_scores_are_those_of_a_run_with_that_kind_of_statistics(method: str, statistics: str):
    expected = scores_of_a_run(method, statistics=statistics)
    assert len(expected) == 5
    assert found().scores[method][statistics] == pytest.approx(expected)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_training_losses_with_running_statistics_are_those_of_a_run(method: str):
    records = records_of_a_run(method, "running")
    losses = [r.value for r in records if (r.split, r.metric) == ("train", "loss")]
    assert found().losses[method]["running"][ROUNDS] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(("window", "momentum"), [("0.01", 0.01), ("0.5", 0.5), ("all", None)])
def test_a_window_scores_as_a_run_whose_batchnorm_has_that_momentum(
    window: str, momentum: float | None
):
    """One training gives all windows, because running statistics never enter it."""
    averaged = scores_of_a_run("fedavg", momentum)
    local = scores_of_a_run("silobn", momentum)
    assert found().scores["fedavg"][f"averaged window {window}"] == pytest.approx(averaged)
    assert found().scores["fedavg"][f"local window {window}"] == pytest.approx(local)


def test_local_statistics_are_those_that_silobn_keeps():
    plans = plan("silobn")
    state = run_plan(plans, workers=1)
    run = bench("fedavg").run
    for client in plans.federation.clients:
        kept = state.local[client.name].state
        names = [name for name in kept if name.endswith("running_mean")]
        own = run.tracks.local["0.1"][client.name].statistics()
        for name, (mean, var) in zip(names, own, strict=True):
            assert torch.allclose(kept[name], mean, atol=1e-6)
            other = kept[name.replace("mean", "var")]
            assert torch.allclose(other, var, rtol=1e-5, atol=1e-6)


def plain_model(weights: str, method: str, client: Client) -> nn.Sequential:
    """A client's model in plain torch."""
    made = bench(method)
    made.become(weights, client)
    model = made.plan.model()
    model.load_state_dict(made.model.state_dict())
    assert isinstance(model, nn.Sequential)
    return model.eval()


@torch.no_grad()
def plain_exact(model: nn.Sequential, x: Tensor) -> None:
    """Give each BatchNorm the statistics of all that reaches it, the layers before it as now."""
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            values = x.transpose(0, 1).flatten(1).double()
            mean, var = values.mean(dim=1), values.var(dim=1)
            biased = values.var(dim=1, correction=0)
            shape = [1, -1] + [1] * (x.dim() - 2)
            scaled = (x.double() - mean.view(shape)) / (biased.view(shape) + layer.eps).sqrt()
            weight, bias = layer.weight.double().view(shape), layer.bias.double().view(shape)
            x = (scaled * weight + bias).float()
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(var)
        else:
            x = layer(x)


@torch.no_grad()
def plain_accuracy(model: nn.Sequential, client: Client) -> float:
    x, y = client.tests[client.domain].batch(slice(None))
    return 100 * float((model(x).argmax(dim=1) == y).float().mean())


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
@pytest.mark.parametrize("statistics", ["exact", "pooled", "another client"])
def test_exact_statistics_score_as_plain_torch_does(method: str, statistics: str):
    clients = bench(method).clients
    everything = torch.cat([client.train.batch(slice(None))[0] for client in clients])
    for number, client in enumerate(clients):
        own = client.train.batch(slice(None))[0]
        others = [one.train.batch(slice(None))[0] for one in clients if one is not client]
        accuracies = []
        for data in {"exact": [own], "pooled": [everything]}.get(statistics, others):
            model = plain_model(method, method, client)
            plain_exact(model, data)
            accuracies.append(plain_accuracy(model, client))
        ours = found().scores[method][statistics][number]
        assert ours == pytest.approx(fmean(accuracies))


def test_collecting_again_sees_the_batches_that_plain_torch_sees():
    """With `momentum=None` torch's BatchNorm counts all batches of one pass equally."""
    client, made = bench("fedavg").clients[2], bench("fedavg")
    order = torch.arange(len(client.train)).split(8)
    made.become("fedavg", client)
    seen = made.collected(client.train, order)
    ours = Track([torch.zeros_like(layer[0]) for layer in seen]).after(seen, None).statistics()
    model = plain_model("fedavg", "fedavg", client)
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.momentum = None
            layer.reset_running_stats()
            layer.train()
    with torch.no_grad():
        for index in order:
            model(client.train.batch(index)[0])
    for (mean, var), (mine, own) in zip(layers_of(model), ours, strict=True):
        assert torch.allclose(mean, mine, atol=1e-6)
        assert torch.allclose(var, own, rtol=1e-5, atol=1e-6)


def test_a_model_before_averaging_is_what_the_client_sent():
    made, run = bench("fedavg"), bench("fedavg").run
    states = []
    for client in made.clients:
        made.become("fedavg, before averaging", client)
        states.append({k: v.clone() for k, v in made.model.state_dict().items()})
    made.become("fedavg", made.clients[0])
    for name, value in made.model.state_dict().items():
        if value.is_floating_point():
            mean = torch.stack([state[name] for state in states]).mean(dim=0)
            assert torch.allclose(mean, value, atol=1e-6), name
    assert run.state.round == ROUNDS


def test_only_the_affine_part_is_tuned_and_differs_between_clients():
    made = bench("fedavg")
    made.tune()
    weights: list[dict[str, Tensor]] = []
    for client in made.clients[:2]:
        made.become("fedavg, tuned affine", client)
        weights.append({k: v.clone() for k, v in made.model.named_parameters()})
    made.become("fedavg", made.clients[0])
    for name, value in made.model.named_parameters():
        layer = made.model.get_submodule(name.rpartition(".")[0])
        affine = isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        assert torch.equal(weights[0][name], value) is not affine, name
        assert torch.equal(weights[0][name], weights[1][name]) is not affine, name


def test_the_mean_affine_is_the_mean_of_the_clients():
    made = bench("fedbn")
    own = []
    for client in made.clients:
        made.become("fedbn", client)
        own.append(made.model[1].weight.clone())
    made.become("fedbn, mean affine", made.clients[3])
    assert torch.allclose(made.model[1].weight, torch.stack(own).mean(dim=0), atol=1e-6)
    assert not torch.allclose(own[3], torch.stack(own).mean(dim=0), atol=1e-6)


def test_all_samples_are_the_exact_statistics_and_few_are_not():
    scores = found().scores["fedavg"]
    assert len(bench("fedavg").clients[0].train) < 128
    assert scores["128 samples"] == scores["exact"]
    assert scores["8 samples"] != scores["exact"]


def test_an_interrupt_while_a_client_trains_ends_the_measurement(monkeypatch: pytest.MonkeyPatch):
    """It must not be taken for a rejected update of that client, whoever handles the signal."""
    see = BatchMoments._see

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def interrupted(self: BatchMoments, *given: Any) -> None:
        _thread.interrupt_main()
        see(self, *given)

    made = plan("fedavg")
    monkeypatch.setattr(BatchMoments, "_see", interrupted)
    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(made, POINTS)
    finally:
        signal.signal(signal.SIGINT, before)


def test_batches_are_seen_in_training_mode_only():
    model = nn.Sequential(nn.BatchNorm1d(2))
    moments = BatchMoments(model)
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    model.eval()(x)
    model.train()(x)
    (seen,) = moments.take()
    assert seen.tolist() == [[[2.0, 4.0], [2.0, 8.0]]]
