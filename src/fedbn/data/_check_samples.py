"""Checking samples in memory, whatever they were read from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedbn.core.checks import similar_classes
from fedbn.core.federation import Client, Federation, Split
from fedbn.data._finding import Finding

_APART = 50
_RARE = 20
_SHOWN = 5
_A_PICTURE = 64
"""Samples of fewer values may well be equal by chance."""


def examine_samples(federation: Federation) -> Iterator[Finding]:
    """Report values that are not finite, labels, constants, scales, and samples found twice."""
    for client in federation.clients:
        for part, split in parts(client):
            yield from _values(client.name, part, split)
            yield from _labels_in_range(client.name, part, split.y, len(federation.classes))
        yield from _classes(client, federation.classes)
    for text in similar_classes(federation.classes):
        yield Finding("warning", "", "", text)
    usable = [c for c in federation.clients if c.train.x.numel() and c.train.x.dim() > 1]
    if len({tuple(client.train.x.shape[1:]) for client in usable}) == 1:
        yield from _constants(usable)
        yield from _scales(usable)
    yield from _twice(federation.clients)


def parts(client: Client) -> Iterator[tuple[str, Split]]:
    """Name a client's splits."""
    yield "train", client.train
    for domain, test in client.tests.items():
        yield ("test" if len(client.tests) == 1 else f"test {domain}"), test
    if client.valid is not None:
        yield "valid", client.valid


def _values(site: str, part: str, split: Split) -> Iterator[Finding]:
    x = split.x
    if not x.is_floating_point() or bool(torch.isfinite(x.sum())):
        return
    for what, bad in (("NaN", x.isnan()), ("infinity", x.isinf())):
        rows = bad.flatten(1).any(dim=1).nonzero().flatten()
        if len(rows):
            text = f"{what} in {len(rows)} sample(s), the first is {int(rows[0])}"
            yield Finding("error", site, part, text)


def _labels_in_range(site: str, part: str, y: Tensor, classes: int) -> Iterator[Finding]:
    outside = ((y < 0) | (y >= classes)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        text = (
            f"{len(outside)} label(s) outside 0 to {classes - 1}, the first {y[first]} at {first}"
        )
        yield Finding("error", site, part, text)


def _classes(client: Client, classes: Sequence[str]) -> Iterator[Finding]:
    y = client.train.y[(client.train.y >= 0) & (client.train.y < len(classes))].long()
    counts = y.bincount(minlength=len(classes)).tolist()
    missing = [name for name, count in zip(classes, counts, strict=True) if not count]
    if missing:
        text = f"no training sample of class {', '.join(missing)}"
        yield Finding("warning", client.name, "train", text)
    there = [count for count in counts if count]
    if there and max(there) > _RARE * min(there):
        text = f"very unequal classes: from {min(there)} to {max(there)} samples"
        yield Finding("warning", client.name, "train", text)


def _constants(clients: Sequence[Client]) -> Iterator[Finding]:
    if clients[0].train.x.dim() > 2:
        for client in clients:
            flat = client.train.x.flatten(1)
            rows = (flat.amax(dim=1) == flat.amin(dim=1)).nonzero().flatten()
            if len(rows):
                text = f"{len(rows)} constant sample(s), the first is {int(rows[0])}"
                yield Finding("warning", client.name, "train", text)
        return
    constant = torch.stack([c.train.x.amax(0) == c.train.x.amin(0) for c in clients])
    everywhere = constant.all(dim=0)
    if everywhere.any():
        yield Finding("warning", "", "train", f"{_columns(everywhere)} constant at every site")
    for client, mine in zip(clients, constant, strict=True):
        if (mine & ~everywhere).any():
            text = f"{_columns(mine & ~everywhere)} constant here, but not everywhere"
            yield Finding("note", client.name, "train", text)


def _scales(clients: Sequence[Client]) -> Iterator[Finding]:
    pictures = clients[0].train.x.dim() > 2
    tops = torch.stack([_tops(client.train.x, pictures) for client in clients])
    least = torch.where(tops > 0, tops, torch.inf).amin(dim=0)
    apart = tops.amax(dim=0) >= _APART * least
    if not apart.any():
        return
    column = int(apart.nonzero()[0])
    reach = ", ".join(
        f"{client.name} {top:g}"
        for client, top in zip(clients, tops[:, column].tolist(), strict=True)
    )
    what = "values" if pictures else f"{_columns(apart)}: values"
    yield Finding("warning", "", "train", f"sites are scaled differently: {what} reach {reach}")


def _tops(x: Tensor, pictures: bool) -> Tensor:
    high, low = (x.amax(0), x.amin(0)) if not pictures else (x.max()[None], x.min()[None])
    top = torch.maximum(high.double().abs(), low.double().abs())
    return torch.where(torch.isfinite(top), top, 0.0)


def _columns(chosen: Tensor) -> str:
    numbers = chosen.nonzero().flatten().tolist()
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (" ..." if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} feature(s) ({shown})"


def _twice(clients: Sequence[Client]) -> Iterator[Finding]:
    """Find equal samples at two sites, or in two parts of a site."""
    first: dict[bytes, tuple[str, str, int]] = {}
    found: dict[tuple[str, str, str, str], list[str]] = {}
    seen: set[int] = set()
    for client in clients:
        for part, split in parts(client):
            if split.x.data_ptr() in seen:
                continue
            seen.add(split.x.data_ptr())
            for number, key in enumerate(_keys(split.x)):
                site, other, at = first.setdefault(key, (client.name, part, number))
                if (site, other) != (client.name, part):
                    pair = (site, other, client.name, part)
                    found.setdefault(pair, []).append(f"{number} is {at} there")
    alike = clients and clients[0].train.x[0:1].numel() >= _A_PICTURE
    for (site, other, name, part), which in found.items():
        text = f"{len(which)} sample(s) also in {other} of {site}: {which[0]}"
        yield Finding("warning" if alike else "note", name, part, text)


def _keys(x: Tensor) -> Iterator[bytes]:
    for row in x.cpu().contiguous().numpy():
        yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()
