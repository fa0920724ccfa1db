"""Kinds by the type of the owning module, on models that have fooled other frameworks."""

from __future__ import annotations

import pytest
import torch
from awkward import AWKWARD, Awkward, compiled, one_bn_twice, small, tied_weights
from hypothesis import given, strategies as st
from torch import nn

from fedbn.core.federation import Federation
from fedbn.core.method import Method
from fedbn.core.packing import StateLayout
from fedbn.core.replica import Replica
from fedbn.core.rounds import initial_state
from fedbn.core.state import Kind, entries, join, kinds, schema_hash, split, unwrap
from fedbn.errors import ModelError
from fedbn.methods.paper import fedavg, fedbn, silobn
from tiny import done, plan, same

ROWS = pytest.mark.parametrize("row", AWKWARD.values(), ids=AWKWARD)


def of_kind(found: dict[str, Kind], *wanted: Kind) -> set[str]:
    return {name for name, kind in found.items() if kind in wanted}


@pytest.mark.shows("M02", "M03", "M04", "M05", "M07", "M08", "M09", "M10", "M11", "M13", "M15")
@ROWS
def test_every_entry_has_the_kind_of_its_module(row: Awkward):
    model = row.build()
    found = kinds(model)
    assert of_kind(found, Kind.BN_AFFINE) == row.affine
    assert of_kind(found, Kind.BN_STATISTIC) == row.statistic
    rest = {name: kind for name, kind in found.items() if name not in row.affine | row.statistic}
    assert rest == {name: row.others.get(name, Kind.WEIGHT) for name in rest}
    assert list(found) == list(unwrap(model).state_dict())


@pytest.mark.shows("M02", "M03", "M04", "M05", "M07", "M08", "M09", "M10", "M11", "M13", "M15")
@ROWS
@pytest.mark.parametrize("method", [fedavg(), fedbn(), silobn()], ids=lambda m: m.name)
def test_exactly_these_entries_stay_local(row: Awkward, method: Method):
    local = {
        "fedavg": set(),
        "fedbn": row.affine | row.statistic,
        "silobn": row.statistic,
    }[method.name]
    found = entries(row.build())
    assert {e.name for e in method.local(found)} == local
    assert {e.name for e in method.shared(found)} == {e.name for e in found} - local


@ROWS
def test_a_replica_takes_over_all_values(row: Awkward):
    """Whatever the model, its entries live in the replica's packs: what is loaded is what runs."""
    model = unwrap(row.build())
    replica = Replica(model, fedbn())
    found = entries(model)
    values = {name: torch.full_like(value, 3) for name, value in model.state_dict().items()}
    packs = [
        StateLayout.of(part).pack({e.name: values[e.name] for e in part if e.alias_of is None})
        for part in (fedbn().shared(found), fedbn().local(found))
    ]
    replica.load(*packs)
    assert all(torch.equal(v, values[k]) for k, v in replica.model.state_dict().items())


def test_an_alias_is_listed_and_costs_nothing():
    found = {entry.name: entry for entry in entries(one_bn_twice())}
    assert found["3.weight"].alias_of == "1.weight"
    assert found["3.num_batches_tracked"].alias_of == "1.num_batches_tracked"
    assert (found["1.weight"].bytes, found["3.weight"].bytes) == (12, 0)


@pytest.mark.shows("M07")
def test_tied_weights_are_stored_once():
    layout = StateLayout.of(entries(tied_weights()))
    assert "0.weight" in layout.places
    assert "2.weight" not in layout.places


def test_one_tensor_cannot_be_both_kinds():
    model = small()
    model[1].bias = model[0].bias
    with pytest.raises(ModelError, match=r"0\.bias \(weight\) and 1\.bias \(bn_affine\).*Untie"):
        entries(model)


def test_equal_tensors_are_not_tied():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    assert all(entry.alias_of is None for entry in entries(model))


@pytest.mark.shows("M06")
@pytest.mark.parametrize(
    "lazy", [nn.LazyBatchNorm1d(), nn.LazyBatchNorm1d(affine=False), nn.LazyLinear(2)]
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_an_uninitialised_lazy_module_is_refused(lazy: nn.Module):
    with pytest.raises(ModelError, match="not initialised yet"):
        entries(nn.Sequential(lazy))


class WithText(nn.Linear):
    def get_extra_state(self) -> str:
        return "a remark"

    def set_extra_state(self, state: str) -> None:
        pass


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (WithText(1, 1), r"entry _extra_state is a str, not a tensor"),
        (nn.Linear(1, 1, dtype=torch.complex64), "weight is torch.complex64"),
    ],
)
def test_what_cannot_be_averaged_is_refused(model: nn.Module, text: str):
    with pytest.raises(ModelError, match=text):
        entries(model)


@pytest.mark.shows("M11")
def test_a_frozen_entry_is_not_trainable():
    model = small()
    model[1].requires_grad_(False)
    trainable = [entry.name for entry in entries(model) if entry.trainable]
    assert trainable == ["0.weight", "0.bias"]


def test_bytes_by_shape_and_dtype():
    found = {entry.name: entry.bytes for entry in entries(small().half())}
    # half: 2 bytes; the counter stays int64: 8 bytes
    assert (found["0.weight"], found["1.bias"], found["1.num_batches_tracked"]) == (18, 6, 8)


@pytest.mark.shows("M08")
def test_wrappers_come_off_in_any_order():
    model = small()
    assert unwrap(nn.DataParallel(compiled(nn.DataParallel(model)))) is model
    assert unwrap(model) is model


@pytest.mark.shows("M16")
def test_the_schema_hash_ignores_order_but_not_kind_shape_or_dtype():
    found = entries(small())
    assert schema_hash(reversed(found)) == schema_hash(found)
    assert schema_hash(entries(small().half())) != schema_hash(found)
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False))
    assert schema_hash(entries(other)) != schema_hash(found)
    assert schema_hash(entries(nn.DataParallel(small()))) == schema_hash(found)


NAMES = st.sets(st.text(min_size=1, max_size=5), max_size=8)


@given(NAMES, st.data())
def test_join_undoes_split(names: set[str], data: st.DataObject):
    chosen = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set()
    state = {name: torch.tensor(i) for i, name in enumerate(names)}
    shared, local = split(state, chosen.__contains__)
    assert shared.keys() == chosen
    assert not shared.keys() & local.keys()
    assert join(shared, local) == join(local, shared) == state


def test_join_refuses_an_entry_on_both_sides():
    with pytest.raises(ModelError, match="both shared and local: w"):
        join({"w": torch.zeros(1)}, {"w": torch.zeros(1)})


TRAINED = {
    "affine=False": "M03",
    "track_running_stats=False": "M02",
    "momentum=None": "M04",
    "SyncBatchNorm": "M05",
    "one bn twice": "M07",
    "tied weights": "M07",
    "DataParallel inside": "M08",
    "own subclass": "M09",
    "parametrized": "M09",
    "frozen": "M11",
}


@pytest.mark.shows("M02", "M03", "M04", "M05", "M07", "M08", "M09", "M11")
@pytest.mark.parametrize("name", TRAINED)
def test_an_awkward_model_trains_and_its_batchnorm_stays(name: str, vectors: Federation):
    """The rest is one for all, and each client's BatchNorm is of its own data."""
    row = AWKWARD[name]
    made = plan(fedbn(), vectors, lambda: nn.Sequential(row.build(), nn.Linear(3, 2)), rounds=2)
    state, first = done(made), initial_state(made)
    kept = {f"0.{entry}" for entry in row.affine | row.statistic}
    assert state.shared.state.keys() == first.shared.state.keys()
    assert not state.shared.state.keys() & kept
    assert not same(state.shared, first.shared)
    for client in "abc":
        local = state.local[client].state
        assert local.keys() <= kept
        began = first.local[client].state
        moved = {key for key, value in local.items() if not torch.equal(value, began[key])}
        trained = {key for key in local if key.removeprefix("0.") in row.affine}
        assert bool(moved & trained) is (bool(trained) and name != "frozen")
        assert all(torch.isfinite(value).all() for value in local.values())
    assert not same(state.local["a"], state.local["c"])
