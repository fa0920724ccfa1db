"""Files whose address and checksum are published, and how they are fetched.

Addresses and MD5 sums are those of torchvision's sources (`torchvision.datasets.MNIST`, `SVHN` and
`USPS`). A file is fetched beside its place, checked, and only then moved there: what is cut off or
has another checksum is never used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedbn.errors import DataError

if TYPE_CHECKING:
    import requests


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


class DownloadProgress(Protocol):
    """How far one file has come, in bytes; what pooch asks of a progress bar."""

    total: int

    def update(self, count: int) -> None:
        """So many more have come."""

    def reset(self) -> None:
        """None have come."""

    def close(self) -> None:
        """All have come."""


class DownloadListener(Protocol):
    """Hears what is done; only the command line prints."""

    def tell(self, text: str) -> None:
        """Hear a sentence."""

    def progress(self, file: str) -> DownloadProgress:
        """Follow a file."""


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
    # Compressed files must arrive as they are.
    headers = {"Accept-Encoding": "identity"}
    progress, incoming = listener.progress(target.name), target.parent / ".incoming"
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
