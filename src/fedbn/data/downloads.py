"""`fedbn data prepare`: bring a data set's files below the data root.

Files are taken over from a folder of the user's, or fetched from where they are published with a
checksum. For the rest there is one line: what to get, from where, and where to put it. A file taken
over is a hard link where the system allows it, and a copy elsewhere: the original may be deleted.
All files are gathered in a hidden folder first, so what is cut short leaves nothing behind that
could be taken for data.

Addresses and MD5 sums are those of torchvision's sources (`torchvision.datasets.MNIST`, `SVHN` and
`USPS`). A file is fetched beside its place, checked, and only then moved there: what is cut off or
has another checksum is never used.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbn.data.benchmarks import checked_domains
from fedbn.data.digit_domains import DigitsInfo, digits_folder
from fedbn.data.digit_files import DIGIT_DOMAINS, DigitSource, describe_forms, find_source
from fedbn.data.storage import Info, data_root, may_write, subfolders
from fedbn.errors import ConfigError, DataError
from fedbn.text import shown

if TYPE_CHECKING:
    import requests

Places = Mapping[Path, Path]
"""Files, and where each goes below the data root."""
_DEPTH = 4
TRIES = 3
WAIT = 1.0
"""Seconds before the second try; each further one waits twice as long."""
_SILENCE = 30.0


@dataclass(frozen=True)
class Remote:
    """Files at one address, which ends in a slash, with the MD5 sum of each."""

    address: str
    files: Mapping[str, str]


REMOTE = {
    "mnist": Remote(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "svhn": Remote(
        "http://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "usps": Remote(
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
        {
            "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
            "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
        },
    ),
}
"""By digit domain."""


@dataclass(frozen=True)
class DownloadListener:
    """Hears what is done; only the command line prints.

    `follow` makes, for a file's name, what pooch asks of a progress bar: `total`, a number of
    bytes, `update(count)`, `reset()` and `close()`.
    """

    tell: Callable[[str], None]
    follow: Callable[[str], Any]


class _FinalError(DataError):
    """Asking again would give the same answer."""


def fetch(remote: Remote, file: str, folder: Path, listener: DownloadListener) -> None:
    """Fetch a file into a folder; up to three times, saying what went wrong.

    Pooch's own retries would keep the reason to themselves and ask again for what is not there.
    """
    for attempt in range(1, TRIES + 1):
        try:
            _fetch_once(remote.address + file, remote.files[file], folder / file, listener)
            return
        except DataError as error:
            if attempt == TRIES or isinstance(error, _FinalError):
                raise
            listener.tell(f"{error}; try {attempt + 1} of {TRIES} follows")
            time.sleep(WAIT * 2 ** (attempt - 1))


def _fetch_once(url: str, md5: str, target: Path, listener: DownloadListener) -> None:
    import pooch  # type: ignore[import-untyped]
    import requests

    pooch.get_logger().setLevel("WARNING")
    headers = {"Accept-Encoding": "identity"}  # compressed files must arrive as they are
    progress, incoming = listener.follow(target.name), target.parent / ".incoming"
    get = pooch.HTTPDownloader(progressbar=progress, timeout=_SILENCE, headers=headers)
    try:
        pooch.retrieve(url, f"md5:{md5}", target.name, incoming, downloader=get)
        (incoming / target.name).replace(target)
    except ValueError as error:
        text = f"{url}: wrong checksum, the MD5 is not {md5}; what came is thrown away"
        raise DataError(text) from error
    except requests.RequestException as error:
        raise _explained(url, error) from error
    except OSError as error:
        raise _FinalError(f"{target}: cannot be written ({error.strerror})") from error
    finally:
        progress.close()
        with contextlib.suppress(OSError):  # another process may be using it
            incoming.rmdir()


def _explained(url: str, error: requests.RequestException) -> DataError:
    import requests

    answer = error.response
    if answer is not None and isinstance(error, requests.HTTPError):
        kind = _FinalError if 400 <= answer.status_code < 500 else DataError
        return kind(f"{url}: the server answers {answer.status_code} {answer.reason}")
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return DataError(f"{url}: cut off before its end; what came is thrown away")
    if isinstance(error, requests.ReadTimeout) or "Read timed out" in str(error):
        return DataError(f"{url}: silent for {_SILENCE:.0f} seconds; what came is thrown away")
    inner = error.args[0] if error.args else error
    text = str(getattr(inner, "reason", inner))  # below it, without names of Python objects
    cause = text.partition("): ")[2] or text
    return DataError(f"{url}: no connection; is there internet? ({cause})")


def digit_places(folder: Path, domains: Sequence[str]) -> dict[str, Places]:
    """Recognise digit data sets at any depth up to four; those not found are left out."""
    found: dict[str, Places] = {}
    for place in _folders(folder, _DEPTH):
        for domain in domains:
            with contextlib.suppress(DataError):  # incomplete here, perhaps whole elsewhere
                if domain not in found and (source := find_source(place, domain)):
                    found[domain] = {
                        file: Path("digits", file.relative_to(part.parent))
                        for part in source.files
                        for file in ([part] if part.is_file() else sorted(part.rglob("*")))
                        if file.is_file()
                    }
    return {domain: found[domain] for domain in domains if domain in found}


def take_over(what: str, places: Places, listener: DownloadListener) -> None:
    """Bring files below the data root, whole or not at all; say how many were new."""
    root = data_root()
    new = {file: place for file, place in places.items() if not (root / place).exists()}
    for file, target in ((f, root / p) for f, p in places.items() if f not in new):
        if not filecmp.cmp(file, target, shallow=False):
            raise DataError(f"{shown(target)}: there already, but not as {shown(file)}: remove one")
    gathered = root / f".incoming-{uuid.uuid4().hex}"
    try:
        for file, place in new.items():
            (gathered / place).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file.resolve(), gathered / place)
            except OSError:
                shutil.copy2(file, gathered / place)
        if new:
            _move(gathered, root)
    except OSError as error:
        where = shown(error.filename or root)
        raise DataError(f"{where}: cannot be taken over ({error.strerror})") from error
    finally:
        shutil.rmtree(gathered, ignore_errors=True)
    old = len(places) - len(new)
    listener.tell(f"{what}: {len(new)} new file(s) taken over, {old} were there already")


def _move(made: Path, target: Path) -> None:
    """Rename the highest folders that are new, so that each appears at once."""
    if made.is_dir() and target.is_dir():
        for entry in made.iterdir():
            _move(entry, target / entry.name)
    else:
        made.replace(target)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth:
        for below in subfolders(folder):
            yield from _folders(below, depth - 1)


_BY_HAND = {
    "synthdigits": "Ganin's SynthDigits from http://yaroslav.ganin.net",
    "mnist_m": "Ganin's MNIST-M from http://yaroslav.ganin.net, or photographs to make one from "
    "MNIST as the folder photographs",
}
"""The same of digit domains whose checksum nobody publishes."""


def provide(
    name: str,
    info: Info,
    options: Mapping[str, Any],
    source: Path | None,
    listener: DownloadListener,
) -> None:
    """Bring the files of a data set below the data root, as far as they are not there yet.

    They are taken from `source`, or downloaded. What is missing is said, from where to get it and
    where to put it. Of the options of `digits` only the `domains` asked for are needed.
    """
    if source:
        if not info.files:
            raise ConfigError(f"--from {shown(source)}: data {name} needs no files")
        if not source.is_dir():
            raise ConfigError(f"--from {shown(source)}: no such folder")
        _check_writable()
    if isinstance(info, DigitsInfo):
        asked = options.get("domains") or info.domains
        domains = checked_domains([asked] if isinstance(asked, str) else asked, DIGIT_DOMAINS)
        _provide_digits(domains, options, source, listener)
    elif source:
        if info.places is None:
            raise ConfigError(
                f"--from {shown(source)}: data {name} takes no files over; put them in "
                f"{data_root() / name} (FEDBN_DATA names the folder above)"
            )
        take_over(name, info.places(source), listener)
    elif not info.is_there():
        raise DataError(
            f"{name} is missing: get {info.by_hand or info.source}; put it in {data_root() / name} "
            "(FEDBN_DATA names the folder above)"
        )


def _provide_digits(
    domains: Sequence[str],
    options: Mapping[str, Any],
    source: Path | None,
    listener: DownloadListener,
) -> None:
    if source:
        for domain, places in digit_places(source, domains).items():
            take_over(domain, places, listener)
    else:
        for domain in domains:
            if domain in REMOTE and not _found(domain):
                _download(domain, listener)
    said = []
    for domain in (d for d in domains if not _found(d) and d not in _made(options)):
        remote = REMOTE.get(domain)
        get = f"get it from {remote.address}" if remote else f"get {_BY_HAND[domain]}"
        said.append(f"{domain} is missing ({describe_forms(domain)}): {get}")
    if said:
        raise DataError("; ".join([*said, f"put them in {digits_folder()}"]))


def _download(domain: str, listener: DownloadListener) -> None:
    """Fetch those files of a domain that are not there."""
    folder, remote = digits_folder(), REMOTE[domain]
    _check_writable()
    folder.mkdir(parents=True, exist_ok=True)
    for file in remote.files:
        if not (folder / file).exists() and not (folder / domain / file).exists():
            try:
                fetch(remote, file, folder, listener)
            except DataError as error:
                raise DataError(f"{error}; or get it by hand and import it: --from DIR") from error
            listener.tell(f"{domain}: {file} is there, its checksum right")


def _found(domain: str) -> DigitSource | None:
    with contextlib.suppress(DataError):  # incomplete
        return find_source(digits_folder(), domain)
    return None


def _made(options: Mapping[str, Any]) -> set[str]:
    """Domains that need no files of their own."""
    photographs = options.get("photographs") or digits_folder() / "photographs"
    made = {"synthdigits"} if options.get("synth") != "original" else set()
    return made | {"mnist_m"} if Path(photographs).is_dir() else made


def _check_writable() -> None:
    root = data_root()
    if not may_write(root / "any") or (root.exists() and not root.is_dir()):
        raise DataError(f"{root}: cannot be written; let FEDBN_DATA name a folder that can")
