"""`fedbn data check`: read everything and report, instead of stopping at the first fault.

Files are looked at one by one, then samples in memory, whatever they were read from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbn.core.federation import Client, Federation, Split, all_targets
from fedbn.core.findings import Finding, check_name, class_counts, findings_in, in_order
from fedbn.data.arrays import array_targets, common_classes, read_npz
from fedbn.data.benchmarks import Benchmark
from fedbn.data.file_checks import benchmark_findings, picture_findings, refusal, table_findings
from fedbn.data.image_folders import FOLDER_LAYOUT, Unread
from fedbn.data.images import DEPTH, is_picture
from fedbn.data.masks import MASK_LAYOUT, has_masks
from fedbn.data.preparation import prepared
from fedbn.data.storage import is_hidden, subfolders
from fedbn.data.table_files import TABLE_LAYOUT, TABLE_SUFFIXES, table_files, table_header
from fedbn.errors import ConfigError, DataError
from fedbn.text import counted, shown

_APART = 50
_RARE = 20
_SHOWN = 5
_A_PICTURE = 64
"""Samples of fewer values may well be equal by chance."""


def examine(read: Federation) -> list[Finding]:
    """Look for faults in data that was read, and for what may spoil a result; errors come first.

    Samples are looked at as models would take them. Equal samples of two sites are found before
    each site completes them in its own way.
    """
    return in_order(_federation(read))


def _federation(read: Federation) -> Iterator[Finding]:
    federation = prepared(read)
    yield from findings_in(federation)
    for client in federation.clients:
        there = [count for count in class_counts(client, federation.classes).values() if count]
        if there and max(there) > _RARE * min(there):
            text = f"very unequal classes: from {min(there)} to {max(there)} samples"
            yield Finding("warning", client.name, "train", text)
    held = {c.name: c.train for c in federation.clients if isinstance(c.train, Split)}
    usable = {n: s.x for n, s in held.items() if s.x.numel() and s.x.dim() > 1}
    if len({x.shape[1:] for x in usable.values()}) == 1:
        yield from _constants(usable, held)
        yield from _scales(usable)
    yield from _twice(read.clients)
    for client in federation.clients:
        for part, split in client.named_splits():
            # Samples that are not in memory are read, to hear what is wrong with a bad one.
            if not isinstance(split, Split):
                try:
                    all_targets(split, read=True)
                except DataError as error:
                    yield Finding("error", client.name, part, str(error))
    for remark in federation.remarks:
        yield Finding(getattr(remark, "severity", "note"), "", federation.name, remark)


def _constants(samples: Mapping[str, Tensor], held: Mapping[str, Split]) -> Iterator[Finding]:
    if next(iter(samples.values())).dim() > 2:
        for name, x in samples.items():
            flat = x.flatten(1)
            rows = (flat.amax(dim=1) == flat.amin(dim=1)).nonzero().flatten()
            if len(rows):
                first = held[name].sample_name(int(rows[0])).removeprefix("sample ")
                text = f"{len(rows)} constant sample(s), the first is {first}"
                yield Finding("warning", name, "train", text)
        return
    constant = torch.stack([x.amax(0) == x.amin(0) for x in samples.values()])
    everywhere = constant.all(dim=0)
    if everywhere.any():
        yield Finding("warning", "", "train", f"{_columns(everywhere)} constant at every site")
    for name, mine in zip(samples, constant, strict=True):
        if (mine & ~everywhere).any():
            text = f"{_columns(mine & ~everywhere)} constant here, but not at every site"
            yield Finding("note", name, "train", text)


def _scales(samples: Mapping[str, Tensor]) -> Iterator[Finding]:
    pictures = next(iter(samples.values())).dim() > 2
    ends = [x.aminmax() if pictures else x.aminmax(dim=0) for x in samples.values()]
    reached = [torch.maximum(e.min.double().abs(), e.max.double().abs()) for e in ends]
    tops = torch.stack([top.reshape(-1) for top in reached])
    tops = torch.where(torch.isfinite(tops), tops, 0.0)
    least = torch.where(tops > 0, tops, torch.inf).amin(dim=0)
    apart = tops.amax(dim=0) >= _APART * least
    if not apart.any():
        return
    column = int(apart.nonzero()[0])
    reach = ", ".join(
        f"{name} {top:g}" for name, top in zip(samples, tops[:, column].tolist(), strict=True)
    )
    what = "values" if pictures else f"{_columns(apart)}: values"
    yield Finding("warning", "", "train", f"sites are scaled differently: {what} reach {reach}")


def _columns(chosen: Tensor) -> str:
    numbers = chosen.nonzero().flatten().tolist()
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (" ..." if len(numbers) > _SHOWN else "")
    return f"{counted(len(numbers), 'feature')} ({shown})"


def _twice(clients: Sequence[Client]) -> Iterator[Finding]:
    """Find equal samples at two sites, or in two parts of a site."""
    first: dict[bytes, tuple[str, str, str]] = {}
    found: dict[tuple[str, str, str, str], list[str]] = {}
    seen: set[int] = set()
    for client in clients:
        for part, split in client.named_splits():
            if not isinstance(split, Split) or split.x.data_ptr() in seen:
                continue
            seen.add(split.x.data_ptr())
            for number, row in enumerate(split.x.cpu().contiguous().numpy()):
                key = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
                called = split.sample_name(number)
                site, other, at = first.setdefault(key, (client.name, part, called))
                if (site, other) != (client.name, part):
                    pair = (site, other, client.name, part)
                    found.setdefault(pair, []).append(f"{called} here is {at} there")
    alike = clients and prod(clients[0].train.shape) >= _A_PICTURE
    for (site, other, name, part), which in found.items():
        text = f"{counted(len(which), 'sample')} also in {other} of {site}: {which[0]}"
        yield Finding("warning" if alike else "note", name, part, text)


LAYOUTS = (
    f"(1) pictures: {FOLDER_LAYOUT}; (2) arrays: PATH/SITE.npz; (3) tables: {TABLE_LAYOUT}; "
    f"(4) pictures with masks: {MASK_LAYOUT}"
)


def recognize(path: str | Path) -> tuple[str, str]:
    """Tell which data set reads a path, and say in a sentence what it was taken for.

    Arrays come before pictures and pictures before tables: a table beside picture folders is
    likely to be about them. What is none of them is a `DataError` that lists the layouts.
    """
    place = Path(path)
    if place.is_file():
        return _file(place)
    if not place.is_dir():
        raise DataError(f"{shown(place)}: no such file or folder; expected {LAYOUTS}")
    if not (kinds := _kinds(place)):
        raise DataError(f"{shown(place)}: neither pictures, arrays nor tables; expected {LAYOUTS}")
    (kind, text), *others = kinds.items()
    ignored = "".join(f"; ignored: {other}" for _, other in others)
    return kind, f"{shown(place)} read as {text}{ignored}"


def _file(file: Path) -> tuple[str, str]:
    if file.suffix.lower() in TABLE_SUFFIXES and {"path", "label"} <= set(table_header(file)):
        return "folders", f"{shown(file)} read as a manifest of pictures"
    if file.suffix.lower() in TABLE_SUFFIXES:
        return "tables", f"{shown(file)} read as one table of all sites"
    if file.suffix.lower() == ".npz":
        raise DataError(f"{shown(file)}: one npz file; give its folder, with one SITE.npz a site")
    raise DataError(f"{shown(file)}: not a folder or a table; expected {LAYOUTS}")


def npz_files(folder: Path) -> list[Path]:
    """List the npz files right below a folder, by name; a pipe too, which their reader refuses."""
    found = (file for file in folder.iterdir() if file.suffix.lower() == ".npz")
    return sorted(file for file in found if not is_hidden(file))


def _kinds(folder: Path) -> dict[str, str]:
    """The kinds of data in a folder, each with a sentence; the likeliest first."""
    rows, npz, homes = len(table_files(folder)), len(npz_files(folder)), subfolders(folder)
    masked, sites = (sum(map(asked, homes)) for asked in (has_masks, _has_pictures))
    found = {
        "arrays": (npz, f"arrays: {npz} npz file(s), one a site"),
        "masks": (masked, f"pictures with masks: {masked} site(s)"),
        "folders": (0 if masked else sites, f"picture folders: {sites} site(s)"),
        "tables": (rows, f"tables: {rows} file(s)"),
    }
    return {kind: text for kind, (count, text) in found.items() if count}


def _has_pictures(site: Path) -> bool:
    """Tell whether there are pictures as SITE/CLASS/* or SITE/train/CLASS/*."""
    try:
        return any(is_picture(f) for pattern in ("*/*", "*/*/*") for f in site.glob(pattern))
    except OSError:
        return False  # other sites may tell what it is, and reading this one says what is wrong


Read = Callable[[Mapping[str, Any]], Federation]
"""Reads and encodes data whole, as a run would, with these options changed."""


def examine_benchmark(benchmark: Benchmark, root: Path) -> list[Finding]:
    """Look for faults in the files of a benchmark of pictures, as `examine_path` in one's own."""
    with _reported(root) as faults:
        faults += benchmark_findings(benchmark, root)
    return in_order(faults)


def examine_path(path: str | Path, options: Mapping[str, Any], read: Read) -> list[Finding]:
    """Look for faults in a user's own files, then in the samples they hold; report, never raise.

    An `error` is what would stop a run, a `warning` what may spoil its result, a `note` what is
    good to know. Errors come first.
    """
    place = Path(path)
    with _reported(path) as faults:
        kind, _ = recognize(path)
        if kind == "tables":
            _tables(place, options, read, faults)
            return in_order(faults)
        looked_at = kind == "folders" and place.is_dir()
        faults += picture_findings(place, options.get("depth") or DEPTH) if looked_at else ()
        for file in npz_files(place) if kind == "arrays" else ():
            try:
                check_name(file.stem, "file name")
                content = read_npz(file)
                common_classes({file: content})
                for part in ("train", "test"):
                    array_targets(content, part, file)
            except DataError as error:
                faults.append(refusal(error, file, file.stem))
        if not stopped(faults):
            federation = read({})
            found = _federation(federation)
            # Pictures in folders were looked at one by one: only what a run would say is new.
            new = {("error", True), ("error", False), ("note", False)}
            warned = {text for text in federation.remarks if not isinstance(text, Unread)}
            faults += (
                f
                for f in found
                if not looked_at or (f.severity, bool(f.site)) in new or f.text in warned
            )
    return in_order(faults)


@contextmanager
def _reported(path: str | Path) -> Iterator[list[Finding]]:
    """Collect findings, and make one of an error that is raised meanwhile."""
    found: list[Finding] = []
    try:
        yield found
    except DataError as error:
        found.append(refusal(error, path))
    except OSError as error:
        text = f"cannot be read ({error.strerror})"
        found.append(Finding("error", "", shown(str(error.filename)), text))


def _tables(path: Path, options: Mapping[str, Any], read: Read, faults: list[Finding]) -> None:
    faults += table_findings(path, options)
    before = stopped(faults)
    try:
        # Empty cells are reported already, and must not hide what else there is.
        faults += _federation(read({"missing": "mean"} if before else {}))
    except (ConfigError, DataError) as error:
        if not before or isinstance(error, ConfigError):
            faults.append(refusal(error, path))


def stopped(faults: Iterable[Finding]) -> bool:
    """Tell whether a run would stop."""
    return any(fault.severity == "error" for fault in faults)
