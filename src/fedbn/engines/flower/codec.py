"""The shared part of a model as bytes, and back: exactly the layout's entries, nothing else.

A state travels as one safetensors file inside one Flower array, because Flower sends every array of
a record by requests of its own. What arrives is measured before it is read, and then must have
exactly the names, shapes and dtypes of the layout: a BatchNorm tensor smuggled in is refused.
"""

from __future__ import annotations

import safetensors
from flwr.app import Array, ArrayRecord
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from fedbn.core.packing import Layout, Pack
from fedbn.errors import ModelError

KEY = "state"
_KIND = "safetensors"
# What a safetensors header may cost beside the names: shape, dtype and offsets of an entry.
_HEADER_BYTES = 512


def to_record(pack: Pack) -> ArrayRecord:
    """Make a record of a pack."""
    data = to_bytes(pack.state)
    return ArrayRecord({KEY: Array("uint8", (len(data),), _KIND, data)})


def from_record(record: ArrayRecord, layout: Layout) -> Pack:
    """Read a record that must fit the layout exactly.

    Raises:
        ModelError: Saying what is missing, not expected, or of another shape or dtype.
    """
    if list(record) != [KEY] or record[KEY].stype != _KIND:
        raise ModelError(f"expected one array {KEY!r} of {_KIND}, got {sorted(record)[:5]}")
    data = record[KEY].data
    if len(data) > largest(layout):
        raise ModelError(f"{len(data):,} bytes, where at most {largest(layout):,} are expected")
    try:
        state = from_bytes(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ModelError(f"not a whole safetensors file ({error})") from error
    return layout.pack(state, "what was sent")


def largest(layout: Layout) -> int:
    """The most bytes that a state of this layout may take; a little more than it does."""
    entries = layout.entries
    return 4096 + sum(e.bytes + len(e.name.encode()) + _HEADER_BYTES for e in entries)


def size(record: ArrayRecord) -> int:
    """Bytes of a record's arrays."""
    return sum(len(array.data) for array in record.values())
