"""Checking npz files, one by one.

Checking samples in memory, whatever they were read from.

Telling which kind of data a path holds.

`fedbn data check`: read everything and report, instead of stopping at the first fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedbn.core.federation import (
    Client,
    Federation,
    Finding,
    Split,
    check_federation,
    check_name,
    in_order,
    similar_classes,
)
from fedbn.data import image_folders as picture_folders
from fedbn.data.arrays import common_classes, read_npz
from fedbn.data.benchmarks import Benchmark
from fedbn.data.file_checks import examine_benchmark, examine_pictures, examine_tables
from fedbn.data.images import DEPTH, is_picture
from fedbn.data.storage import is_hidden, shown, subfolders
from fedbn.data.table_files import SUFFIXES, TABLE_LAYOUT as TABLES
from fedbn.datasets.own_files import arrays, tables
from fedbn.errors import ConfigError, DataError

__all__ = ["Finding", "examine", "examine_files"]


def examine_array_files(folder: Path) -> Iterator[Finding]:
    """Report files that cannot be read, hold pickled objects or have no labels."""
    for file in sorted(folder.glob("*.npz")):
        try:
            check_name(file.stem, "file name")
            common_classes({file: read_npz(file)})
        except DataError as error:
            text = str(error).removeprefix(f"{file}: ")
            yield Finding("error", shown(file.stem), shown(file), text)


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


ARRAYS = "PATH/SITE.npz"
LAYOUTS = (
    f"(1) pictures: {picture_folders.FOLDER_LAYOUT}; (2) arrays: {ARRAYS}; (3) tables: {TABLES}"
)


@dataclass(frozen=True)
class _Content:
    """What lies in a folder, by kind."""

    arrays: int
    tables: int
    sites: int

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds that are there, each with a sentence; the likeliest first."""
        found = {
            "arrays": (self.arrays, f"arrays: {self.arrays} npz file(s), one a site"),
            "folders": (self.sites, f"picture folders: {self.sites} site(s)"),
            "tables": (self.tables, f"tables: {self.tables} file(s)"),
        }
        return {kind: text for kind, (count, text) in found.items() if count}


def recognize(path: str | Path) -> tuple[str, str]:
    """Tell which data set reads a path, and say what it was taken for.

    Arrays come before pictures and pictures before tables: a table beside picture folders is
    likely to be about them.

    Returns:
        `arrays`, `folders` or `tables`, and a sentence for the user.

    Raises:
        DataError: Where it is none of them, listing the three layouts.
    """
    place = Path(path)
    if place.is_file():
        return _file(place)
    if not place.is_dir():
        raise DataError(f"{shown(place)}: no such file or folder; expected {LAYOUTS}")
    kinds = _content(place).kinds
    if not kinds:
        raise DataError(f"{shown(place)}: neither pictures, arrays nor tables; expected {LAYOUTS}")
    (kind, text), *others = kinds.items()
    ignored = "".join(f"; ignored: {other}" for _, other in others)
    return kind, f"{shown(place)} read as {text}{ignored}"


def _file(file: Path) -> tuple[str, str]:
    if file.suffix.lower() in SUFFIXES:
        return "tables", f"{shown(file)} read as one table of all sites"
    if file.suffix.lower() == ".npz":
        raise DataError(f"{shown(file)}: one npz file; give its folder, with one SITE.npz a site")
    raise DataError(f"{shown(file)}: not a folder or a table; expected {LAYOUTS}")


def _content(folder: Path) -> _Content:
    try:
        suffixes = [f.suffix.lower() for f in folder.iterdir() if f.is_file() and not is_hidden(f)]
    except OSError as error:
        raise DataError(f"{shown(folder)}: cannot be listed ({error.strerror})") from error
    return _Content(
        arrays=suffixes.count(".npz"),
        tables=sum(suffix in SUFFIXES for suffix in suffixes),
        sites=sum(_has_pictures(site) for site in subfolders(folder)),
    )


def _has_pictures(site: Path) -> bool:
    """Tell whether there are pictures as SITE/CLASS/* or SITE/train/CLASS/*."""
    try:
        return any(is_picture(f) for pattern in ("*/*", "*/*/*") for f in site.glob(pattern))
    except OSError:
        return False  # other sites may tell what it is, and reading this one says what is wrong


_NONE: Mapping[str, Any] = MappingProxyType({})


def examine_files(benchmark: Benchmark, root: Path) -> list[Finding]:
    """Look for faults in the files of a benchmark of pictures, as `examine` does in one's own."""
    try:
        return in_order(examine_benchmark(benchmark, root))
    except DataError as error:
        return [Finding("error", "", shown(root), str(error).removeprefix(f"{shown(root)}: "))]


def examine(data: str | Path | Federation, options: Mapping[str, Any] = _NONE) -> list[Finding]:
    """Look for faults in data; never raises for them, but reports.

    An `error` is what would stop a run, a `warning` what may spoil its result, a `note` what is
    good to know. Errors come first.

    Args:
        data: A folder or file of a user's own data, or a federation already read.
        options: The data set's options beside the path; for tables `label`, `site` and so on.
    """
    if isinstance(data, Federation):
        return in_order(_federation(data))
    try:
        kind, _ = recognize(data)
        return in_order(_BY_KIND[kind](Path(data), options))
    except DataError as error:
        place = shown(str(data))
        return [Finding("error", "", place, str(error).removeprefix(f"{place}: "))]
    except OSError as error:
        return [
            Finding("error", "", shown(str(error.filename)), f"cannot be read ({error.strerror})")
        ]


def _pictures(path: Path, options: Mapping[str, Any]) -> Iterator[Finding]:
    depth = options.get("depth")
    return examine_pictures(path, depth if isinstance(depth, int) else DEPTH)


def _arrays(path: Path, options: Mapping[str, Any]) -> Iterator[Finding]:
    faults = list(examine_array_files(path))
    yield from faults
    if not _stopped(faults):
        yield from _federation(arrays(str(path)))


def _tables(path: Path, options: Mapping[str, Any]) -> Iterator[Finding]:
    faults = list(examine_tables(path, options))
    yield from faults
    if options.get("label") is None:
        yield Finding("note", "", shown(path), "data.label is not set: classes were not checked")
        return
    try:
        yield from _federation(tables(str(path), **{**options, "missing": "mean"}))
    except (ConfigError, DataError) as error:
        if not _stopped(faults):
            yield Finding("error", "", shown(path), str(error).removeprefix(f"{shown(path)}: "))


_BY_KIND = {"folders": _pictures, "arrays": _arrays, "tables": _tables}


def _federation(federation: Federation) -> Iterator[Finding]:
    faults = list(examine_samples(federation))
    yield from faults
    for remark in federation.remarks:
        yield Finding("note", "", federation.name, remark)
    if not _stopped(faults):
        try:
            check_federation(federation)
        except DataError as error:
            yield Finding("error", "", federation.name, str(error))


def _stopped(faults: Iterable[Finding]) -> bool:
    return any(fault.severity == "error" for fault in faults)
