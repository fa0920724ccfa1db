"""`fedbn data check`: read everything and report, instead of stopping at the first fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedbn.core.checks import check_federation
from fedbn.core.federation import Federation
from fedbn.data._check_arrays import examine_array_files
from fedbn.data._check_pictures import examine_benchmark, examine_pictures
from fedbn.data._check_samples import examine_samples
from fedbn.data._check_tables import examine_tables
from fedbn.data._domains import Benchmark
from fedbn.data._files import shown
from fedbn.data._finding import Finding, in_order
from fedbn.data._images import DEPTH
from fedbn.data._recognize import recognize
from fedbn.data.arrays import arrays
from fedbn.data.tables import tables
from fedbn.errors import ConfigError, DataError

__all__ = ["Finding", "examine", "examine_files"]

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
