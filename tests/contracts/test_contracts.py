"""What must hold of every registered method but baselines, every model and every part."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbn import methods, models, registry
from fedbn.core.federation import Split
from fedbn.core.local_training import ClientWork, local_train
from fedbn.core.method import Method
from fedbn.core.replica import Replica
from fedbn.core.rounds import initial_state
from fedbn.core.rule import ROUNDS
from fedbn.core.selectors import module_paths
from fedbn.core.state import entries
from fedbn.core.training import Training
from fedbn.experiments.runner import run_plan as run
from fedbn.methods import PARTS, baseline_names, parse_method
from fedbn.models.networks import mlp
from tiny import bn_net, federation, plan

METHODS = [name for name in registry.names(methods) if name not in baseline_names()]
MODELS = registry.names(models)
STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}
EVERYTHING, BATCHNORM = "everything", "batchnorm"
# What each method of the paper keeps with the client, in words of the module tree.
KEPT: dict[str, object] = {
    "singleset": EVERYTHING,
    "fedavg": set(),
    "fedprox": set(),
    "centralized": set(),
    "fedbn": BATCHNORM,
    "silobn": STATISTICS,
}


def example(name: str) -> tuple[int, tuple[int, ...]]:
    """Classes and input shape that a model is shown with."""
    given = registry.facts(models, name, "EXAMPLE") or {}
    return given.get("classes", 10), given.get("input_shape", (3, 28, 28))


@cache
def on_paper(name: str) -> nn.Module:
    """The model without memory."""
    classes, shape = example(name)
    with torch.device("meta"):
        return registry.find(models, name, "model")(classes=classes, input_shape=shape)


def kept(model: nn.Module, what: object) -> set[str]:
    """The entries meant, found by walking modules rather than by the library's own rule."""
    names = set(model.state_dict())
    if what == EVERYTHING:
        return names
    of_norms = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    }
    if what == BATCHNORM:
        return of_norms
    return {name for name in of_norms if name.rpartition(".")[2] in what}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_which_entries_a_method_exchanges(method: str, model: str):
    net, chosen = on_paper(model), parse_method(method)
    found = entries(net)
    if chosen.share.has_role:
        chosen = replace(chosen, share=chosen.share.resolved(module_paths(found)[-1]))
    chosen.check(found)
    parts = chosen.parts(found)
    shared, local = ({entry.name for entry in some} for some in (parts.shared, parts.local))
    assert shared | local == set(net.state_dict())
    assert not shared & local
    if method in KEPT:
        assert local == kept(net, KEPT[method])


def test_the_paper_s_methods_are_all_looked_at():
    assert set(KEPT) <= set(METHODS)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_batchnorm_and_no_surprises(name: str):
    net = on_paper(name)
    assert any(isinstance(module, _BatchNorm) for module in net.modules())
    assert all(entry.alias_of is None for entry in entries(net))
    assert registry.find(models, name, "model").__doc__


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_a_step(name: str):
    """On images of 64 pixels at most: AlexNet's dense layers are the same for any size."""
    classes, shape = example(name)
    small = (shape[0], *(min(side, 64) for side in shape[1:]))
    torch.manual_seed(0)
    net = registry.find(models, name, "model")(classes=classes, input_shape=small)
    places = (registry.facts(models, name, "EXAMPLE") or {}).get("space", ())
    y = (torch.arange(3) % classes).view(3, *[1] * len(places)).expand(3, *places).contiguous()
    data = Split(torch.randn(3, *small), y)
    before = {k: p.detach().clone() for k, p in net.named_parameters()}
    work = ClientWork(net, data, Training(lr=0.1), 1, torch.Generator().manual_seed(0))
    loss = local_train(work).loss
    after = dict(net.named_parameters())
    assert 0 < loss < 100
    assert all(bool(torch.isfinite(value).all()) for value in after.values())
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    # a bias before BatchNorm is taken out again by it: it has no gradient but for rounding
    assert {k for k in before if k.endswith("weight")} <= changed


def ran(method: Method, clients: int = 3):
    data = federation(*range(8, 8 + clients))
    data = data.pooled() if method.pooled else data
    made = plan(method, data, partial(mlp, 2, (3,), (4,)))
    made.check()
    return made, run(made)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_two_rounds(name: str):
    made, state = ran(parse_method(name))
    start = made.initial_model.state_dict()
    assert state.round == 2
    assert state.local.keys() == {client.name for client in made.federation.clients}
    for client in made.federation.clients:
        joined = {**state.shared.state, **state.local[client.name].state}
        assert {name for name in joined if "/" not in name} - {ROUNDS.name} == start.keys()
        assert all(bool(torch.isfinite(value).all()) for value in joined.values())
        assert not torch.equal(joined["0.weight"], start["0.weight"])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("base", ["fedavg", "fedbn", "silobn"])
def test_every_part_runs_two_rounds_on_every_base(base: str, part: str):
    word = {"local": "local(weight)", "only": "only('0')"}.get(part, part)
    _, state = ran(parse_method(f"{base}+{word}"), clients=5)
    assert state.shared.unusable() is None
    variances = [
        value
        for pack in (state.shared, *state.local.values())
        for name, value in pack.state.items()
        if name.endswith("running_var")
    ]
    assert variances
    assert all(bool((value > 0).all()) for value in variances)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_splits_joins_again(name: str):
    made = plan(parse_method(name), federation(8, 9))
    start = initial_state(made)
    replica, state = Replica(bn_net(), made.method), made.initial_model.state_dict()
    replica.load(start.shared, start.local["a"])
    assert all(torch.equal(value, state[k]) for k, value in replica.model.state_dict().items())
