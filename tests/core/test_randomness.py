"""Random draws named by what they are for."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from fedbn.core.randomness import derive_seed, generator

KEYS = st.tuples(
    st.integers(0, 2**40), st.text(max_size=5), st.integers(0, 10**6), st.text(max_size=5)
)


@given(KEYS, KEYS)
def test_another_name_is_another_number(first, second):
    assert 0 <= derive_seed(*first) < 2**63
    # A separator inside a name could make two keys one text; purposes and clients have none.
    if not any("\0" in part for key in (first, second) for part in (key[1], key[3])):
        assert (derive_seed(*first) == derive_seed(*second)) == (first == second)


def test_the_numbers_never_change():
    """Runs of earlier versions can be repeated only as long as these stay as they are."""
    # printf '0\\0order\\0%s\\0a' 1 | sha256sum begins with a1e5a59ab54e0b15
    assert (
        derive_seed(0, "order", 1, "a")
        == int.from_bytes(bytes.fromhex("a1e5a59ab54e0b15"), "little") // 2
    )
    assert derive_seed(0, "model") == 6127347345890825511


def test_a_generator_starts_from_its_number_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    first = torch.rand(3, generator=generator(1, "order", 2, "b"))
    again = torch.rand(3, generator=generator(1, "order", 2, "b"))
    other = torch.rand(3, generator=generator(1, "order", 3, "b"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
