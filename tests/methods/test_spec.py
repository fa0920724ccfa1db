"""Methods as one writes them."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from fedbn import methods, registry
from fedbn.core.aggregation import (
    Krum,
    krum,
    mean,
    median,
    multi_krum,
    server_adagrad,
    server_adam,
    server_momentum,
    server_yogi,
    trimmed_mean,
)
from fedbn.core.method import Method, Part, Proximal, proximal
from fedbn.core.selectors import local
from fedbn.errors import ConfigError, FedbnError
from fedbn.methods import PARTS, baseline_names, parse_method
from fedbn.methods.paper import fedavg, fedbn, fedprox


@pytest.mark.parametrize("name", registry.names(methods))
def test_every_registered_name_is_a_method_of_that_name(name: str):
    assert parse_method(name).name == name


def test_the_six_methods_of_the_paper_are_there():
    expected = {"singleset", "fedavg", "fedprox", "fedbn", "silobn", "centralized"}
    assert expected <= set(registry.names(methods))


@pytest.mark.parametrize(
    "part",
    [
        proximal(0.25),
        proximal(1e-6),
        mean(),
        median(),
        trimmed_mean(0.1),
        krum(),
        krum(2),
        multi_krum(),
        multi_krum(1),
        server_momentum(0.5, 0.8),
        server_adam(0.1, 0.8, 0.9, 0.01),
        server_yogi(),
        server_adagrad(0.1, 0.2, 0.03),
        local("norm", "fc.*"),
        local("head.weight"),
    ],
    ids=lambda part: part.label,
)
def test_a_label_reads_back_as_the_part(part: Part):
    method = fedbn() | part
    assert parse_method(method.name) == method


@pytest.mark.parametrize("name", [*PARTS, *registry.names(methods)])
def test_every_part_and_method_can_be_added(name: str):
    if name not in ("centralized", *baseline_names()):
        assert parse_method(f"fedbn+{name}").name == f"fedbn+{name}"


def test_spaces_and_signs():
    method = parse_method(" fedavg + prox( mu = 1e-2 ) +median ")
    assert method.name == "fedavg+prox( mu = 1e-2 )+median"
    assert method.rules == (Proximal(0.01),)
    assert parse_method("fedavg+prox(1e+2)").rules == (Proximal(100.0),)
    assert parse_method("fedavg+krum(f=1)").aggregator == Krum(1)
    assert parse_method("fedprox(0.5)").rules == (Proximal(0.5),)


def test_mu_of_the_configuration_fills_what_is_not_written():
    mu = {"mu": 0.2}
    assert parse_method("fedprox", mu).rules == (Proximal(0.2),)
    assert parse_method("fedbn+prox", mu).rules == (Proximal(0.2),)
    assert parse_method("fedbn+prox(3)", mu).rules == (Proximal(3.0),)
    assert parse_method("fedbn", mu) == fedbn()
    assert parse_method("fedprox") == fedprox()


@pytest.mark.shows("R09")
@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("fedbm", "unknown method 'fedbm': did you mean 'fedbn'"),
        ("fedbn+proxx", "unknown part of a method 'proxx': did you mean 'prox'"),
        ("fedbn+centralized", "fedbn+centralized: one of them brings all data together"),
        ("fedbn+local_linear", "fedbn+local_linear: local_linear is a baseline, which each client"),
        ("local_boosting+fedbn", "local_boosting+fedbn: local_boosting is a baseline"),
        ("local_linear+prox(0.1)", "local_linear+prox(0.1): local_linear is a baseline"),
        ("", "cannot read the method ''"),
        ("fedbn+", "cannot read the method ''"),
        ("fedbn prox", "cannot read the method 'fedbn prox'"),
        ("fedbn+prox(", "cannot read the method"),
        ("fedbn+prox(())", "cannot read the method"),
        ("fedbn+prox(1, 2)", "too many positional arguments; it takes (mu"),
        ("fedbn+prox(nu=1)", "unexpected keyword argument 'nu'"),
        ("fedbn+prox(big)", "method 'prox(big)'"),
        ("fedbn+prox(-1)", "mu = -1 of the proximal term"),
        ("fedbn+prox(1 + )", "cannot read the arguments"),
        ("fedbn+prox(__import__)", "method 'prox(__import__)'"),
        ("fedbn+prox(*[1])", "cannot read the arguments"),
        ("fedbn+prox(**{})", "unexpected keyword argument '**'"),
        (f"fedbn+prox(1{'0' * 400})", "cannot read the arguments"),
        (f"fedbn+prox({'-' * 5000}1)", "cannot read the arguments"),
        ("fedbn+local(fc.*)", "cannot read the arguments"),
        ("fedbn+trimmed(0.7)", "legal is 0 <= x < 0.5"),
        ("fedbn+krum(1.5)", "legal are whole numbers"),
        ("fedbn+adam(0)", "lr = 0 of the server's adam"),
        (":", "not a module's name"),
        ("no.such.module:x", "no module 'no'"),
        ("math:nothing", "unknown method 'nothing'"),
        ("math:log", "no signature found"),
        ("fedbn+math:sqrt", "method 'math:sqrt'"),
        ("fedbn.core.method:proximal", "gives a Proximal, not a Method"),
    ],
)
def test_what_cannot_be_read_is_explained(spec: str, text: str):
    with pytest.raises(ConfigError) as caught:
        parse_method(spec)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


PIECES = st.sampled_from(
    ["fedbn", "fedavg", "+", "prox", "(", ")", "0.1", "local", "'", ",", "=", "mu", ".", ":", " "]
)


@pytest.mark.shows("R09")
@given(st.text(max_size=30) | st.lists(PIECES, max_size=10).map("".join))
@example("fedbn+prox('\\d')")
@example("fedbn+prox(\x00)")
@example("fedbn+prox(1if 1else 2)")
@example("ª:ª")
def test_any_text_is_a_method_or_an_error_of_ours(text: str):
    with suppress(FedbnError):
        assert isinstance(parse_method(text), Method)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current directory."""
    (tmp_path / "mine_methods.py").write_text(
        "from fedbn import fedavg, local, proximal\n"
        "def headless(pattern='3.*'):\n"
        "    return fedavg() | local(pattern)\n"
        "def strong():\n"
        "    return proximal(9)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine_methods", raising=False)
    return "mine_methods"


def test_a_users_own_method_and_part(own_module: str):
    method = parse_method(f"{own_module}:headless('0.*')+{own_module}:strong")
    assert method.share.local_names == ("0.*",)
    assert method.rules == (Proximal(9.0),)
    assert sys.path[-1] == str(Path.cwd())  # whatever is called as one of Python's hides nothing


@pytest.mark.shows("R09")
def test_a_broken_module_of_the_users_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_methods.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match="importing broken_methods failed: ZeroDivisionError"):
        parse_method("broken_methods:x")


def test_names_in_code_and_in_text_are_one():
    assert parse_method("fedavg+median") == fedavg() | median()
