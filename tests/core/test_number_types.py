"""Models whose entries are whole numbers or half precision are trained, quantised ones refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedbn.core.federation import Federation
from fedbn.core.state import entries
from fedbn.errors import ModelError
from fedbn.methods.paper import fedavg, fedbn
from tiny import done, plan


class Counting(nn.Module):
    """An integer buffer, an integer parameter, a mask of bools."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, True, False]))
        self.version = nn.Parameter(torch.tensor([7], dtype=torch.int32), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return self.net(x * self.mask)  # type: ignore[no-any-return]


@pytest.mark.shows("M13")
def test_whole_numbers_take_the_maximum_and_are_never_stepped(vectors: Federation) -> None:
    made = plan(fedavg(), vectors, Counting, rounds=2)
    state = done(made).shared.state
    before = dict(entries_of(made.initial_model))
    assert state["seen"].dtype == torch.int64
    assert int(state["seen"]) == 2 * 12  # every client has 12 samples, and the largest count stays
    assert torch.equal(state["version"], before["version"])
    assert torch.equal(state["mask"], before["mask"])
    assert not torch.equal(state["net.0.weight"], before["net.0.weight"])


def entries_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    tensors = model.state_dict()
    return [(entry.name, tensors[entry.name]) for entry in entries(model)]


class Half(nn.Module):
    """Computes in another precision than its inputs have."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.net, self.dtype = layers.to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.to(self.dtype)).float()  # type: ignore[no-any-return]


@pytest.mark.shows("M15")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_precision_is_trained_and_kept(dtype: torch.dtype, vectors: Federation) -> None:
    made = plan(fedbn(), vectors, lambda: Half(dtype), rounds=2)
    made = replace(made, training=replace(made.training, lr=0.01))
    state = done(made)
    before = dict(entries_of(made.initial_model))
    assert state.shared.state["net.0.weight"].dtype == dtype
    assert not torch.equal(state.shared.state["net.0.weight"], before["net.0.weight"])
    assert state.local["a"].state["net.1.running_mean"].dtype == dtype


@pytest.mark.shows("M15")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # it will be removed
def test_a_quantised_entry_is_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    packed = torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)
    model.register_buffer("packed", packed)
    with pytest.raises(ModelError, match=r"entry packed is torch\.qint8"):
        entries(model)
