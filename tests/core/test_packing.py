"""Layouts and packs: a state as a few flat vectors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from fedbn.core.packing import Group, StateLayout
from fedbn.core.state import Entry, Kind, entries
from fedbn.errors import ModelError
from tiny import bn_net, same

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
ENTRIES = st.lists(
    st.tuples(SHAPES, st.sampled_from(DTYPES), st.booleans()), min_size=1, max_size=8
)


def layout_of(*rows: tuple[tuple[int, ...], torch.dtype, bool]) -> StateLayout:
    return StateLayout.of(
        Entry(f"e{i}", Kind.WEIGHT, shape, dtype, trainable)
        for i, (shape, dtype, trainable) in enumerate(rows)
    )


def random_state(layout: StateLayout) -> dict[str, torch.Tensor]:
    return {e.name: (100 * torch.rand(e.shape)).to(e.dtype) for e in layout.entries}


@given(ENTRIES)
def test_packing_and_back_changes_nothing(rows: list[tuple[tuple[int, ...], torch.dtype, bool]]):
    layout = layout_of(*rows)
    state = random_state(layout)
    packed = layout.pack(state)
    assert same(packed, state)
    assert same(packed.clone(), state)
    assert all(packed.state[e.name].dtype == e.dtype for e in layout.entries)


@given(ENTRIES)
def test_entries_begin_on_64_byte_borders_and_do_not_overlap(
    rows: list[tuple[tuple[int, ...], torch.dtype, bool]],
):
    layout = layout_of(*rows)
    packed = layout.zeros()
    assert all(o * group.dtype.itemsize % 64 == 0 for group, o in layout.places.values())
    for entry in layout.entries:
        packed.state[entry.name].fill_(1)
    numbers = sum(torch.Size(entry.shape).numel() for entry in layout.entries)
    assert sum(int(vector.double().sum()) for vector in packed.vectors.values()) == numbers


def test_one_vector_a_dtype_and_trainability():
    layout = StateLayout.of(entries(bn_net()))
    assert {group.label for group in layout.sizes} == {
        "float32.trainable",
        "float32.buffer",
        "int64.buffer",
    }


def test_a_pack_is_a_copy_and_its_state_a_view():
    layout = layout_of(((2,), torch.float32, True))
    given_state = {"e0": torch.tensor([1.0, 2.0])}
    packed = layout.pack(given_state)
    packed.state["e0"][0] = 5
    assert packed.vectors[Group(torch.float32, True)][0] == 5
    assert given_state["e0"][0] == 1


def test_a_clone_has_memory_of_its_own():
    layout = layout_of(((2,), torch.float32, True))
    first = layout.zeros()
    second = first.clone()
    first.state["e0"].fill_(1)
    assert second.state["e0"].tolist() == [0, 0]
    second.copy_(first)
    assert second.state["e0"].tolist() == [1, 1]


@pytest.mark.shows("F30", "F31", "F32", "F33")
@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({}, "missing e0"),
        ({"e0": torch.zeros(2), "1.bias": torch.zeros(1)}, r"not expected 1\.bias"),
        ({"e0": torch.zeros(1)}, r"e0 has shape \(1,\), expected \(2,\)"),
        ({"e0": torch.zeros(2, 1)}, r"e0 has shape \(2, 1\), expected \(2,\)"),
        ({"e0": torch.zeros(2).double()}, r"e0 is torch\.float64, expected torch\.float32"),
    ],
    ids=["missing", "smuggled", "broadcast", "shape", "dtype"],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, torch.Tensor], fault: str):
    layout = layout_of(((2,), torch.float32, True))
    with pytest.raises(ModelError, match=f"the file x does not fit the model: {fault}"):
        layout.pack(state, "the file x")


@pytest.mark.shows("M16")
def test_the_order_of_keys_does_not_matter():
    model = bn_net()
    layout = StateLayout.of(entries(model))
    backwards = dict(reversed(model.state_dict().items()))
    assert same(layout.pack(backwards), layout.pack(model.state_dict()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("trainable", [True, False])
def test_a_value_that_is_not_finite_is_found(bad: float, trainable: bool):
    packed = layout_of(
        ((2,), torch.float32, True), ((3,), torch.float32, trainable), ((1,), torch.int64, False)
    ).zeros()
    assert packed.unusable() is None
    packed.state["e1"][2] = bad
    assert packed.unusable() == "e1"


def test_large_finite_values_are_usable():
    """Their sum overflows, they do not."""
    packed = layout_of(((3,), torch.float32, True), ((40,), torch.float16, True)).zeros()
    packed.state["e0"].fill_(3e38)
    packed.state["e1"].fill_(65000)
    assert packed.unusable() is None


def test_opposite_infinities_do_not_hide_each_other():
    packed = layout_of(((2,), torch.float32, True)).zeros()
    packed.state["e0"].copy_(torch.tensor([float("inf"), -float("inf")]))
    assert packed.unusable() == "e0"
