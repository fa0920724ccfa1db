"""Checking folders of pictures, file by file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fedbn.core.checks import similar_classes
from fedbn.data._domains import Benchmark
from fedbn.data._files import Trouble, scan, shown, subfolders
from fedbn.data._finding import Finding, Severity
from fedbn.data._images import (
    DEPTH,
    cores,
    is_picture,
    opened,
    read_picture,
    watched,
)
from fedbn.data.folders import Site, class_names, find_site
from fedbn.errors import DataError

_LARGE = 25_000_000
_RARE = 20


@dataclass(frozen=True)
class _Seen:
    """What is known of one picture after reading it."""

    file: Path
    site: str
    part: str
    label: str
    fault: str = ""
    mode: str = ""
    pixels: int = 0
    constant: bool = False
    content: str = ""


def examine_pictures(root: Path, depth: int = DEPTH) -> Iterator[Finding]:
    """Read all pictures below a folder of sites and report."""
    sites: list[Site] = []
    for home in subfolders(root):
        try:
            sites.append(find_site(home))
        except DataError as error:
            text = str(error).removeprefix(f"{shown(home)}: ")
            yield Finding("error", shown(home.name), shown(home), text)
    yield from _stray(root)
    yield from _left_out(sites)
    yield from _examine(_pictures(sites), class_names(sites), depth)


def examine_benchmark(benchmark: Benchmark, root: Path) -> Iterator[Finding]:
    """Read all pictures of a benchmark's classes and report."""
    classes = benchmark.classes
    pictures = (
        (file, domain, "all", classes[label])
        for domain, found in benchmark.pictures(root).items()
        for file, label in zip(found.files, found.labels.tolist(), strict=True)
    )
    return _examine(pictures, classes)


def _examine(
    pictures: Iterable[tuple[Path, str, str, str]], classes: Sequence[str], depth: int = DEPTH
) -> Iterator[Finding]:
    with watched() as odd, ThreadPoolExecutor(cores()) as pool:
        seen = list(pool.map(lambda each: _look(each, depth), pictures))
    yield from _about_each(seen)
    for one in seen:
        if one.file in odd and not one.fault:
            text = f"odd, but can be read ({odd[one.file]})"
            yield Finding("note", one.site, shown(one.file), text)
    yield from _about_sites(seen, classes)
    yield from (Finding("warning", "", "", text) for text in similar_classes(classes))
    yield from _twice(seen)


def _items(sites: Sequence[Site]) -> Iterator[tuple[Path | Trouble, str, str, str]]:
    """All that lies in class folders, with its site, part and class."""
    for site in sites:
        for part, folders in site.parts.items():
            for folder in folders:
                for item in scan(folder):
                    yield item, site.name, part, shown(folder.name)


def _pictures(sites: Sequence[Site]) -> Iterator[tuple[Path, str, str, str]]:
    for item, site, part, label in _items(sites):
        if isinstance(item, Path) and is_picture(item):
            yield item, site, part, label


def _left_out(sites: Sequence[Site]) -> Iterator[Finding]:
    for item, site, _, _ in _items(sites):
        if isinstance(item, Trouble):
            severity: Severity = "warning" if item.harmless else "error"
            yield Finding(severity, site, shown(item.path), item.text)
        elif not is_picture(item):
            yield Finding("note", site, shown(item), "not a picture: left out")


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


def _look(found: tuple[Path, str, str, str], depth: int) -> _Seen:
    file, site, part, label = found
    try:
        with opened(file) as picture:
            mode, pixels = picture.mode, picture.width * picture.height
        values = read_picture(file, depth=depth)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except DataError as error:
        return _Seen(file, site, part, label, fault=str(error).removeprefix(f"{shown(file)}: "))
    except OSError as error:
        return _Seen(file, site, part, label, fault=f"cannot be read ({error.strerror})")
    constant = bool((values == values[0, 0]).all())
    return _Seen(file, site, part, label, "", mode, pixels, constant, digest)


def _about_each(seen: Sequence[_Seen]) -> Iterator[Finding]:
    tests: list[tuple[Severity, Callable[[_Seen], bool], Callable[[_Seen], str]]] = [
        ("error", lambda one: bool(one.fault), lambda one: one.fault),
        ("warning", lambda one: one.constant, lambda one: "all pixels are the same"),
        (
            "warning",
            lambda one: one.pixels > _LARGE,
            lambda one: f"enormous, {one.pixels / 1e6:.0f} megapixels: slow to read",
        ),
        (
            "note",
            lambda one: one.file.name != one.file.name.strip() or not one.file.name.isprintable(),
            lambda one: "odd name: spaces at its ends or signs that cannot be printed",
        ),
    ]
    for one in seen:
        for severity, holds, text in tests:
            if holds(one):
                yield Finding(severity, one.site, shown(one.file), text(one))


def _about_sites(seen: Sequence[_Seen], classes: Sequence[str]) -> Iterator[Finding]:
    sites = dict.fromkeys(one.site for one in seen)
    for site in sites:
        mine = [one for one in seen if one.site == site and not one.fault]
        modes = Counter(one.mode for one in mine)
        if len(modes) > 1:
            counted = ", ".join(f"{mode} {count}" for mode, count in modes.most_common())
            yield Finding("note", site, "", f"mixed modes, all read as RGB: {counted}")
        training = Counter(one.label for one in mine if one.part in ("all", "train"))
        missing = [name for name in classes if name not in training]
        if missing:
            yield Finding("warning", site, "", f"no training picture of {', '.join(missing)}")
        if training and max(training.values()) > _RARE * min(training.values()):
            (most, many), *_, (least, few) = training.most_common()
            text = f"very unequal classes: {most} {many}, {least} {few}"
            yield Finding("warning", site, "", text)


def _twice(seen: Sequence[_Seen]) -> Iterator[Finding]:
    first: dict[str, _Seen] = {}
    for one in seen:
        if one.fault:
            continue
        known = first.setdefault(one.content, one)
        if known is one:
            continue
        where = f"the same content as {shown(known.file)}"
        if known.site != one.site:
            yield Finding("warning", one.site, shown(one.file), f"{where}, at another site")
        elif known.part != one.part:
            text = f"{where}: {known.part} and {one.part}"
            yield Finding("warning", one.site, shown(one.file), text)
        elif known.label != one.label:
            yield Finding("warning", one.site, shown(one.file), f"{where}, under another class")
        elif one.part == "all":
            text = f"{where}: one may be trained on and the other tested"
            yield Finding("warning", one.site, shown(one.file), text)
        else:
            yield Finding("note", one.site, shown(one.file), where)
