"""`fedbn data check` on files: pictures one by one, tables column by column."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbn.core.engine import cores
from fedbn.core.findings import Finding, Severity, similar_classes
from fedbn.data.benchmarks import Benchmark
from fedbn.data.image_folders import SiteFolders, find_site, folder_classes
from fedbn.data.images import DEPTH, is_picture, opened, read_picture, watched
from fedbn.data.storage import Trouble, scan, subfolders
from fedbn.data.table_files import Table, by_site, named_none, read_table, table_files
from fedbn.errors import ConfigError, DataError
from fedbn.text import counted, shown

_LARGE = 25_000_000
_RARE = 20
_WAYS_OUT = "; fill them, or set data.missing = 'mean'"


@dataclass(frozen=True)
class _Seen:
    """A picture, where it belongs, and what is known of it after reading it."""

    file: Path
    site: str
    part: str
    label: str
    fault: str = ""
    mode: str = ""
    pixels: int = 0
    constant: bool = False
    content: str = ""


def refusal(error: Exception, path: Path | str, site: str = "") -> Finding:
    """Make a finding of an error about a path."""
    return Finding("error", shown(site), shown(path), _about(error, path))


def _about(error: Exception, path: Path | str) -> str:
    return str(error).removeprefix(f"{shown(path)}: ")


def picture_findings(root: Path, depth: int = DEPTH) -> Iterator[Finding]:
    """Read all pictures below a folder of sites and report."""
    sites: list[SiteFolders] = []
    for home in subfolders(root):
        try:
            sites.append(find_site(home))
        except DataError as error:
            yield refusal(error, home, home.name)
    yield from _stray(root)
    pictures = []
    inside = [
        (item, site.name, part, shown(folder.name))
        for site in sites
        for part, folders in site.parts.items()
        for folder in folders
        for item in scan(folder)
    ]
    for item, site, part, label in inside:
        if isinstance(item, Trouble):
            severity: Severity = "warning" if item.harmless else "error"
            yield Finding(severity, site, shown(item.path), item.text)
        elif is_picture(item):
            pictures.append(_Seen(item, site, part, label))
        else:
            yield Finding("note", site, shown(item), "not a picture: left out")
    yield from _examine(pictures, folder_classes(sites), depth)


def benchmark_findings(benchmark: Benchmark, root: Path) -> Iterator[Finding]:
    """Read all pictures of a benchmark's classes and report."""
    classes = benchmark.classes
    pictures = (
        _Seen(file, domain, "all", classes[label])
        for domain, found in benchmark.pictures(root).items()
        for file, label in zip(found.files, found.labels.tolist(), strict=True)
    )
    return _examine(pictures, classes)


def _examine(
    pictures: Iterable[_Seen], classes: Sequence[str], depth: int = DEPTH
) -> Iterator[Finding]:
    with watched() as odd, ThreadPoolExecutor(cores()) as pool:
        seen = list(pool.map(lambda each: _look(each, depth), pictures))
    for one in seen:
        for severity, text in _about_one(one, odd.get(one.file, "")):
            yield Finding(severity, one.site, shown(one.file), text)
    yield from _about_sites(seen, classes)
    yield from (Finding("warning", "", "", text) for text in similar_classes(classes))
    yield from _twice(seen)


def _stray(root: Path) -> Iterator[Finding]:
    for home in (root, *subfolders(root)):
        try:
            count = sum(is_picture(file) for file in home.iterdir() if file.is_file())
        except OSError:
            continue  # a folder that cannot be listed is already an error
        if count:
            site = "" if home == root else shown(home.name)
            text = f"{count} picture(s) outside a class folder: left out"
            yield Finding("warning", site, shown(home), text)


def _look(one: _Seen, depth: int) -> _Seen:
    try:
        with opened(one.file) as picture:
            mode, pixels = picture.mode, picture.width * picture.height
        values = read_picture(one.file, depth=depth)
        digest = hashlib.sha256(one.file.read_bytes()).hexdigest()
    except DataError as error:
        return replace(one, fault=_about(error, one.file))
    except OSError as error:
        return replace(one, fault=f"cannot be read ({error.strerror})")
    constant = bool((values == values[0, 0]).all())
    return replace(one, mode=mode, pixels=pixels, constant=constant, content=digest)


def _about_one(one: _Seen, odd: str) -> Iterator[tuple[Severity, str]]:
    name = one.file.name
    if one.fault:
        yield "error", one.fault
    elif odd:
        yield "note", f"odd, but can be read ({odd})"
    if one.constant:
        yield "warning", "all pixels are the same"
    if one.pixels > _LARGE:
        yield "warning", f"enormous, {one.pixels / 1e6:.0f} megapixels: slow to read"
    if name != name.strip() or not name.isprintable():
        yield "note", "odd name: spaces at its ends or signs that cannot be printed"


def _about_sites(seen: Sequence[_Seen], classes: Sequence[str]) -> Iterator[Finding]:
    for site in dict.fromkeys(one.site for one in seen):
        mine = [one for one in seen if one.site == site and not one.fault]
        modes = Counter(one.mode for one in mine)
        if len(modes) > 1:
            counted = ", ".join(f"{mode} {count}" for mode, count in modes.most_common())
            yield Finding("note", site, "", f"mixed modes, all read as RGB: {counted}")
        training = Counter(one.label for one in mine if one.part in ("all", "train"))
        if missing := [name for name in classes if name not in training]:
            yield Finding("warning", site, "", f"no training picture of {', '.join(missing)}")
        if training and max(training.values()) > _RARE * min(training.values()):
            (most, many), *_, (least, few) = training.most_common()
            text = f"very unequal classes: {most} {many}, {least} {few}"
            yield Finding("warning", site, "", text)


def _twice(seen: Sequence[_Seen]) -> Iterator[Finding]:
    first: dict[str, _Seen] = {}
    for one in seen:
        known = one if one.fault else first.setdefault(one.content, one)
        if known is not one:
            severity, text = _alike(known, one)
            same = f"the same content as {shown(known.file)}{text}"
            yield Finding(severity, one.site, shown(one.file), same)


def _alike(known: _Seen, one: _Seen) -> tuple[Severity, str]:
    if known.site != one.site:
        return "warning", ", at another site"
    if known.part != one.part:
        return "warning", f": {known.part} and {one.part}"
    if known.label != one.label:
        return "warning", ", under another class"
    if one.part == "all":
        return "warning", ": one may be trained on and the other tested"
    return "note", ""


def table_findings(path: Path, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Report tables that cannot be read, missing values, constant and missing columns."""
    site, label = options.get("site"), options.get("label") or ()
    labels = {label} if isinstance(label, str) else {*label}
    read: dict[str, Table] = {}
    for file in table_files(path):
        try:
            read[shown(file.stem)] = read_table(file)
        except (ConfigError, DataError) as error:
            yield refusal(error, file, file.stem)
    if site is not None and len(read) == 1:
        try:
            read = by_site(next(iter(read.values())), site)
        except DataError as error:
            yield refusal(error, path)
            return
    no_features = {site, options.get("id"), *options.get("drop", ())} - labels
    for name, table in read.items():
        kept = {n: cells for n, cells in table.columns.items() if n not in no_features}
        read[name] = replace(table, columns=kept)
    known = dict.fromkeys(column for table in read.values() for column in table.columns)
    for name, table in read.items():
        for column in table.columns:
            declared = column in options.get("categorical", ())
            if rows := table.gaps(column, named_none(table.columns[column]) if declared else ()):
                harmless = options.get("missing") == "mean" and column not in labels
                severity: Severity = "note" if harmless else "error"
                ways = "" if harmless or column in labels else _WAYS_OUT
                nones = not declared and column not in labels
                nones = nones and bool(named_none(table.columns[column]))
                text = (
                    f"column {column!r}: {counted(len(rows), 'cell')} without a value, the first "
                    f"in row {rows[0]}"
                )
                said = f"{ways}; data.categorical takes 'none' as a category" if nones else ways
                yield Finding(severity, name, table.where, text + said)
        if missing := [column for column in known if column not in table.columns]:
            text = f"no column {', '.join(map(repr, missing))}, which other sites have"
            yield Finding("error", name, table.where, text)
    yield from _constant_columns(read, known)


def _constant_columns(tables: dict[str, Table], known: Iterable[str]) -> Iterator[Finding]:
    sites = list(tables)
    for column in known:
        constant = [s for s in sites if len(set(tables[s].columns.get(column, ()))) == 1]
        if len({tables[s].columns[column][0] for s in constant}) == 1 and constant == sites:
            yield Finding("warning", "", "", f"column {column!r} is constant at every site")
        else:
            for site in constant:
                text = f"column {column!r} is constant here"
                yield Finding("note", site, tables[site].where, text)
