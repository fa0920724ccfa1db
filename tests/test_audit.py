"""Which method a project runs, found by the functions that it exchanges weights with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import name_rules
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedbn
from commanding import call
from fedbn.errors import ConfigError
from tiny import bn_net

ROOT = Path(__file__).parents[1]
BN = [f"1.{word}" for word in ("weight", "bias", "running_mean", "running_var")]
BN.append("1.num_batches_tracked")


def load(model, sent):
    model.load_state_dict(sent, strict=False)


def all_of(model):
    return model.state_dict()


def all_but_bn(model):
    return {name: value for name, value in model.state_dict().items() if name not in BN}


def as_arrays(model):
    """As Flower's tutorials write it: a list without names."""
    return [value.cpu().numpy() for value in model.state_dict().values()]


def from_arrays(model, arrays):
    state = zip(model.state_dict(), map(torch.as_tensor, arrays), strict=True)
    model.load_state_dict(dict(state))


def set_all_but_bn(model, sent):
    model.load_state_dict({n: v for n, v in sent.items() if n not in BN}, strict=False)


def half(model):
    """Sent in half precision, renamed: values and names differ from the model's own."""
    return {f"x/{n}": v.half() for n, v in model.state_dict().items() if n not in BN}


def from_half(model, sent):
    model.load_state_dict({n[2:]: v.float() for n, v in sent.items()}, strict=False)


def vector(model):
    return parameters_to_vector(model.parameters())


def from_vector(model, sent):
    vector_to_parameters(sent, model.parameters())


@pytest.mark.parametrize(
    ("get", "put", "method", "missed"),
    [
        (all_of, load, "fedavg", BN),
        (as_arrays, from_arrays, "fedavg", BN),
        (all_but_bn, load, "fedbn", []),
        (half, from_half, "fedbn", []),
        (vector, from_vector, "silobn", BN[:2]),
        (lambda model: {}, load, "singleset", []),
        (all_of, set_all_but_bn, "fedbn", BN),
    ],
)
def test_a_method_is_known_by_what_it_keeps(get, put, method, missed):
    found = fedbn.audit(bn_net, get, put)
    assert found.method == found.nearest == method
    assert list(found.missed) == missed


def test_a_head_that_is_kept_is_another_of_our_methods():
    def get(model):
        return {n: v for n, v in model.state_dict().items() if not n.startswith("3.")}

    found = fedbn.audit(bn_net, get, load)
    assert (found.method, found.extra) == ("fedper", ("3.weight", "3.bias"))


def test_what_is_no_method_has_a_nearest_one_and_what_differs():
    def get(model):
        return {
            n: v for n, v in model.state_dict().items() if n not in ("1.bias", *BN[2:], "0.bias")
        }

    found = fedbn.audit(bn_net, get, load)
    assert (found.method, found.nearest) == ("none", "silobn")
    assert found.missed == ("1.weight",)
    assert found.extra == ("0.bias",)
    assert repr(found) == (
        "method: none (nearest: silobn). Of 5 BatchNorm entries 4 are kept and 1 leave; "
        "of 4 others 1 are kept."
    )


def test_every_entry_is_told():
    found = fedbn.audit(bn_net, all_but_bn, load)
    assert [entry.name for entry in found.entries] == list(bn_net().state_dict())
    assert {entry.name for entry in found.entries if not entry.leaves} == set(BN)
    assert {entry.name for entry in found.entries if not entry.overwritten} == set(BN)


def test_the_draws_of_the_caller_are_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    fedbn.audit(bn_net, all_of, load)
    assert torch.equal(torch.rand(1), expected)


def test_tied_weights_and_counters_of_other_types_are_split_rejections():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.bn = nn.Linear(2, 2), nn.BatchNorm1d(2)
            self.b = self.a
            self.register_buffer("on", torch.tensor(True))
            self.register_buffer("count", torch.tensor(3, dtype=torch.uint8))

    assert fedbn.audit(Odd, all_of, load).method == "fedavg"
    kept = fedbn.audit(Odd, lambda m: dict(m.named_parameters()), load)
    assert (kept.method, kept.extra) == ("none", ("on", "count"))


def fails(model, *sent):
    raise KeyError("odd")


@pytest.mark.shows("A08")
@pytest.mark.parametrize(
    ("get", "put", "line"),
    [
        (fails, load, "audit: get failed: KeyError: 'odd'"),
        (all_of, fails, "audit: set failed: KeyError: 'odd'"),
        (lambda model: 3, lambda model, sent: None, "audit: get gives a int"),
        (lambda model: ["text"], lambda model, sent: None, "audit: get gives a str among"),
        (lambda model: [np.random.rand(2)], lambda m, s: None, "something else each time"),
    ],
)
def test_functions_that_cannot_be_asked_get_one_line(get, put, line):
    with pytest.raises(ConfigError) as error:
        fedbn.audit(bn_net, get, put)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("network", name_rules.NETWORKS)
def test_rules_by_name_keep_what_the_readme_says(network):
    found = {rule: name_rules.verdict(network, rule) for rule in name_rules.RULES}
    counts = {"ResNet-18": "85 of 100", "DenseNet-121": "0 of 605", "MobileNet-v2": "0 of 260"}
    assert found["'bn' in name"].startswith(counts[network])
    assert found["by type (fedbn)"].endswith("fedbn")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"| {text} |" in readme for text in found.values())


PROJECT = """
from torch import nn
def Net():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
def get(model):
    return list(model.parameters())
def put(model, sent):
    for own, new in zip(model.parameters(), sent):
        own.data.copy_(new)
"""


def test_the_command_line_says_it_in_a_table_and_in_json(tmp_path):
    (tmp_path / "project.py").write_text(PROJECT)
    words = ("audit", "project:Net", "--get", "project:get", "--set", "project:put")
    told = call(*words, cwd=tmp_path)
    assert told.code == 0, told.err
    assert "method: silobn. Of 5 BatchNorm entries 3 are kept and 2 leave" in told.out
    row = next(line for line in told.out.splitlines() if line.startswith("1.weight"))
    assert row.split() == ["1.weight", "bn_affine", "leaves", "overwritten", "missed"]
    found = json.loads(call(*words, "--json", cwd=tmp_path).out)
    assert (found["method"], found["nearest"], found["extra"]) == ("silobn", "silobn", [])
    assert found["missed"] == ["1.weight", "1.bias"]
    assert found["entries"][0] == {
        "name": "0.weight",
        "kind": "weight",
        "leaves": True,
        "overwritten": True,
    }


@pytest.mark.shows("A08")
def test_a_function_that_does_not_exist_is_one_line(tmp_path):
    (tmp_path / "project.py").write_text(PROJECT)
    words = ("audit", "project:Net", "--set", "project:put", "--get")
    assert "did you mean 'get'" in call(*words, "project:gte", cwd=tmp_path).line
    answer = call(*words, "get", cwd=tmp_path)
    assert answer.code == 3
    assert "expected module:callable" in answer.line
