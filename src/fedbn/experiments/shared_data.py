"""Data that worker processes share: read and checked once, in memory that each of them maps.

The memory has no name on disk and ends with the processes. What lies in files of ours (prepared
arrays) is mapped from there by each, what is read sample by sample or augmented is each one's own.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbn.core.federation import AnySplit, Client, Federation, Split

_ALIGNED = 64


def share(federations: Mapping[str, Federation]) -> int | None:
    """Put data into memory of its own; gives its descriptor, None where there is nothing to put."""
    known = {name: one for name, one in federations.items() if _is_private(one)}
    if not known or not hasattr(os, "memfd_create"):
        return None
    tensors: dict[int, tuple[int, Tensor]] = {}

    def told(split: AnySplit) -> list[int]:
        assert isinstance(split, Split)
        held = [t for t in (split.x, split.y, split.groups) if t is not None]
        return [tensors.setdefault(id(t), (len(tensors), t))[0] for t in held]

    distinct = {id(one): one for one in known.values()}
    described = []
    for one in distinct.values():
        splits = [
            (
                c.name,
                c.domain,
                told(c.train),
                {d: told(t) for d, t in c.tests.items()},
                None if c.valid is None else told(c.valid),
            )
            for c in one.clients
        ]
        described.append((one.name, one.classes, splits, dict(one.preparation)))
    settings = {name: [*distinct].index(id(one)) for name, one in known.items()}
    places, end = [], 0
    for _, tensor in tensors.values():
        places.append((str(tensor.dtype).removeprefix("torch."), tensor.shape, end))
        end = _aligned(end + tensor.nbytes)
    text = json.dumps([settings, described, places]).encode()
    descriptor = os.memfd_create("fedbn")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        begin = _aligned(file.tell())
        for (_, tensor), (_, _, offset) in zip(tensors.values(), places, strict=True):
            file.seek(begin + offset)
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.truncate(begin + end)
    return descriptor


def shared(descriptor: int) -> dict[str, Federation]:
    """Map data that a process put into memory, by setting; what is written to stays here."""
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    size = 8 + int.from_bytes(memory[:8], "little")
    settings, described, places = json.loads(memory[8:size])
    tensors = []
    for name, shape, offset in places:
        dtype, count = getattr(torch, name), torch.Size(shape).numel()
        begin = _aligned(size) + offset
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=begin) if count else None
        tensors.append(torch.empty(shape, dtype=dtype) if flat is None else flat.reshape(shape))

    def split(told: Sequence[int]) -> Split:
        x, y, *groups = (tensors[number] for number in told)
        return Split(x, y, groups=groups[0] if groups else None)

    def client(told: Sequence[Any]) -> Client:
        name, domain, train, tests, valid = told
        tested = {domain: split(test) for domain, test in tests.items()}
        return Client(name, domain, split(train), tested, split(valid) if valid else None)

    found = [
        Federation(name, tuple(map(client, clients)), tuple(classes), preparation=preparation)
        for name, classes, clients, preparation in described
    ]
    return {setting: found[place] for setting, place in settings.items()}


def _is_private(federation: Federation) -> bool:
    """Tell whether all samples lie in this process's own memory, and are nothing but numbers."""
    splits = [split for client in federation.clients for split in client.splits]
    plain = [split for split in splits if type(split) is Split and split.augment is None]
    if len(plain) < len(splits):
        return False
    maps, first = Path("/proc/self/maps"), plain[0].x.data_ptr()
    for line in maps.read_text().splitlines() if maps.exists() else ():
        span, _, _, _, inode, *_ = line.split()
        begin, end = (int(place, 16) for place in span.split("-"))
        if begin <= first < end:
            return inode == "0"  # else mapped from a file
    return True


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
