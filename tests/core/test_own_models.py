"""Models, metrics and data nobody here wrote: scored as they are, or refused in one line."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedbn
from fedbn.core.bn_folding import fold
from fedbn.core.bn_replacement import with_groupnorm
from fedbn.core.method import Proximal
from fedbn.core.state import is_batchnorm
from fedbn.core.user_code import contained
from fedbn.errors import DataError, ModelError, StopNow

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def arrays(n: int = 40, scale: float = 1.0, seed: int = 0) -> Arrays:
    x = np.random.default_rng(seed).normal(size=(n, 5)).astype("float32")
    return scale * x, (x[:, 0] > 0).astype("int64")


def fitted(data: object, *args: Any, **options: Any) -> fedbn.Result:
    return fedbn.fit(data, *args, notes=lambda text: None, **options)


def losses(result: fedbn.Result) -> list[float]:
    last = max(record.round for record in result.records)
    kind = last, "test", "loss"
    return [r.value for r in result.records if (r.round, r.split, r.metric) == kind]


class Standardised(nn.Module):
    """Normalises with statistics of its own, which no gradient moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("var", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.3)
                self.var.lerp_(x.var(0), 0.3)
        return (x - self.mean) / torch.sqrt(self.var + 1e-5)


class Hidden(nn.Module):
    """Reads a parameter past what a tracer watches."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(self._parameters["scale"])


def net(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("first", [Standardised, Hidden])
def test_a_folded_model_follows_what_is_computed_of_entries_alone(first: type[nn.Module]) -> None:
    data = {"a": arrays(80, 50.0), "b": arrays(80, 20.0, seed=1)}
    found, plain = (
        losses(fitted(data, lambda: net(first()), "fedavg", rounds=4, lr=0.05, training__fast=fast))
        for fast in (True, False)
    )
    assert found == pytest.approx(plain, rel=1e-4)


def test_what_cannot_be_followed_is_not_folded() -> None:
    assert fold(net(Standardised()), torch.randn(4, 5)) is not None
    assert fold(net(Hidden()), torch.randn(4, 5)) is None


def test_a_stack_s_kept_batches_are_not_written_into() -> None:
    data = {f"c{i}": arrays(30, seed=i) for i in range(10)}
    made = lambda: net(nn.ELU(inplace=True))  # noqa: E731
    found, plain = (
        losses(fitted(data, made, rounds=4, lr=0.1, training__fast=fast)) for fast in (True, False)
    )
    assert found == pytest.approx(plain, rel=1e-4)


class Differentiating(nn.Module):
    """Takes a gradient on its way forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.norm(self.first(x)).tanh()
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return self.last(torch.cat([energy, force.norm(dim=1, keepdim=True)], 1))  # type: ignore[no-any-return]


def test_a_model_that_differentiates_is_scored_and_used() -> None:
    result = fitted({"a": arrays(), "b": arrays(seed=1)}, Differentiating, rounds=1)
    assert set(result.accuracy()) == {"a", "b"}


def _log_loss(said: Tensor, true: Tensor) -> Tensor:
    if len(true.unique()) < 2:
        raise ValueError("only one label")
    return -said[torch.arange(len(true)), true].log().mean()


_log_loss.higher_is_better = False  # type: ignore[attr-defined]


def test_a_metric_that_fails_for_one_client_costs_its_numbers_only() -> None:
    notes: list[str] = []
    x, y = arrays(200)
    sorted_by_class = x[order := np.argsort(y, kind="stable")], y[order]
    ill = arrays(seed=3)[0], np.zeros(40, dtype="int64")
    options: dict[str, Any] = {"rounds": 1, "metrics": ["accuracy", _log_loss]}
    result = fedbn.fit({"a": sorted_by_class, "b": ill}, "mlp", notes=notes.append, **options)
    assert set(result.scores()) == {"a"}
    assert any("only one label" in note and "b" in note for note in notes)


def test_a_metric_of_other_targets_is_refused() -> None:
    data = {"a": arrays(), "b": arrays(seed=1)}
    numbers = {name: (x, x[:, :1].astype("float64")) for name, (x, _) in data.items()}
    for given, metric, why in ((data, "dice", "masks"), (numbers, "macro_f1", "classes or labels")):
        with pytest.raises(fedbn.FedbnError, match=f"metric {metric} fails.*{why}"):
            fitted(given, "mlp", "fedavg", metrics=[metric], rounds=1)


@pytest.mark.parametrize("kind", [torch.uint16, torch.float8_e4m3fn])
def test_an_entry_that_cannot_be_averaged_is_refused_by_name(kind: torch.dtype) -> None:
    def made() -> nn.Module:
        model = net(nn.Identity())
        model.register_buffer("strange", torch.ones(3).to(kind))
        return model

    with pytest.raises(ModelError, match=r"entry strange is torch\."):
        fitted({"a": arrays(), "b": arrays(seed=1)}, made, "fedavg", rounds=1)


def test_groupnorm_takes_the_place_of_a_layer_used_twice() -> None:
    norm = nn.BatchNorm1d(4)
    made = with_groupnorm(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm))
    assert not any(map(is_batchnorm, made.modules()))
    assert made[1] is made[3]


def test_a_rule_that_only_descends_from_the_proximal_one_is_followed() -> None:
    called = []

    class Mine(Proximal):
        def round(self, client: Any, train: Any) -> Any:
            called.append(client.name)
            return train()

    data = {f"c{i}": arrays(30, seed=i) for i in range(10)}
    fitted(data, "mlp", fedbn.fedavg() | Mine(0.5), rounds=1)
    assert set(called) == set(data)


def test_methods_that_would_be_another_are_refused() -> None:
    data, plain = {"a": arrays(), "b": arrays(seed=1)}, lambda: nn.Linear(5, 2)
    for method, why in (
        ("fixbn", "no BatchNorm statistics to fix"),
        ("fedper", "choose 'singleset'"),
        ("lgfedavg", "choose 'fedavg'"),
    ):
        with pytest.raises(fedbn.FedbnError, match=why):
            fitted(data, plain, method, rounds=1)


def test_a_late_client_learns_its_statistics_before_they_are_fixed() -> None:
    data = {f"c{i}": arrays(30, 100.0, seed=i) for i in range(6)}
    options: dict[str, Any] = {"rounds": 6, "engine": "plain", "training__participation": 0.34}
    result = fitted(data, "mlp", "fedbn+fixbn(0.17)", **options)
    for name in data:
        norms = [m for m in result.model(name).modules() if isinstance(m, nn.BatchNorm1d)]
        assert all(norm.num_batches_tracked > 0 for norm in norms)


def test_clients_that_augment_differently_are_not_pooled() -> None:
    def client(name: str, augment: Any) -> fedbn.Client:
        split = fedbn.Split(*map(torch.tensor, arrays()))
        return fedbn.Client(name, name, replace(split, augment=augment), {name: split})

    some = client("a", None), client("b", lambda x, draws: x)
    data = fedbn.Federation("f", some, ("0", "1"))
    fitted(data, "mlp", "fedavg", rounds=1)
    with pytest.raises(DataError, match="augment their pictures differently"):
        fitted(data, "mlp", "centralized", rounds=1)


class Spoilt(Dataset[tuple[Tensor, int]]):
    """Has one sample that is no number, and is read as it is needed."""

    classes = ("no", "yes")

    def __init__(self, size: int, bad: int = -1):
        self.size, self.bad, self.targets = size, bad, [i % 2 for i in range(size)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((3,), torch.nan if i == self.bad else float(i)), i % 2


def test_a_bad_sample_that_is_only_tested_ends_the_run_too() -> None:
    data = {"a": (Spoilt(30), Spoilt(200, bad=101)), "b": (Spoilt(30), Spoilt(20))}
    with pytest.raises(DataError, match="client a, test, sample 101"):
        fitted(data, rounds=1)


def test_a_second_ctrl_c_is_not_held_by_a_user_s_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run, where Python's own handler is not the one that hears it."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with pytest.raises(StopNow), contained():
        raise StopNow
    with pytest.raises(RuntimeError, match="end of the process"), contained():
        raise KeyboardInterrupt


def test_a_client_s_name_is_no_column_of_tables() -> None:
    with pytest.raises(DataError, match='other than "all" and "mean"'):
        fitted({"a": arrays(), "mean": arrays(seed=1)}, rounds=1)
