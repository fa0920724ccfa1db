"""MNIST's own file format: a big-endian header of type and sizes, then the bytes.

The MATLAB files of SVHN and SynthDigits: `X` of shape (32, 32, 3, n) and labels `y`.

The two forms in which USPS is passed around: libsvm text (bz2) and `usps.h5`.

MNIST-M as it was distributed: a folder of PNG files and a text file of `NAME LABEL` lines.

The forms in which the five digit data sets are passed around, and how each is read.

Where the five digit data sets may lie below `FEDBN_DATA/digits`.

Looked for in `digits/` and `digits/DOMAIN/`, the first complete form wins: a `DOMAIN.npz`, used
as split, or the original files, whose train and test parts are pooled.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from sklearn.datasets import load_svmlight_file

from fedbn.data.arrays import read_npz
from fedbn.data.images import opened, watched
from fedbn.errors import DataError

_UNSIGNED_BYTES = 0x08


def read_idx(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or not.

    Args:
        file: The file; compressed if its name ends in `.gz`.
        dimensions: How many the array must have: 3 for images, 1 for labels.
    """
    content = _bytes_of(file)
    expected = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    if content[:4] != expected:
        raise DataError(
            f"{file}: not an idx file of {dimensions}-dimensional bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, expected {expected.hex(' ')}"
        )
    begin = 4 + 4 * dimensions
    if len(content) < begin:
        raise DataError(f"{file}: cut off within its header of {begin} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:begin])
    size = int(np.prod(shape, dtype=object))
    if len(content) - begin != size:
        raise DataError(
            f"{file}: its header promises {size} bytes for shape {shape}, "
            f"but {len(content) - begin} follow"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _bytes_of(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        return gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: unreadable, cut off or not a gzip file ({error})") from error


def read_mat(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images (n, h, w, 3) and labels; the label 10 of SVHN is the digit 0."""
    content = _variables_of(file)
    lacking = [key for key in ("X", "y") if key not in content]
    if lacking:
        names = [key for key in content if not key.startswith("__")]
        raise DataError(f"{file}: no {' and '.join(lacking)}; it has {', '.join(names) or 'none'}")
    images, labels = content["X"], content["y"].reshape(-1)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3:
        raise DataError(
            f"{file}: X of {images.dtype} {images.shape}; expected uint8 of (height, width, 3, n)"
        )
    if len(labels) != images.shape[3]:
        raise DataError(f"{file}: {images.shape[3]} images but {len(labels)} labels")
    if not np.isin(labels, range(11)).all():
        raise DataError(f"{file}: labels from {labels.min()} to {labels.max()}; legal are 0 to 10")
    return np.moveaxis(images, 3, 0), labels.astype(np.int64) % 10


def _variables_of(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = loadmat(file, variable_names=["X", "y"])
        if len([key for key in content if not key.startswith("__")]) < 2:
            content = loadmat(file)
        return content
    except NotImplementedError as error:
        raise DataError(
            f"{file}: a MATLAB 7.3 file, which is HDF5; expected version 5 (save it with '-v7')"
        ) from error
    except (OSError, ValueError, TypeError, MatReadError, zlib.error, EOFError) as error:
        raise DataError(f"{file}: damaged or not a MATLAB file ({error})") from error


_SIDE = 16


def read_libsvm(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read `usps.bz2` or `usps.t.bz2`: labels 1 to 10 for the digits 0 to 9, pixels in [−1, 1]."""
    try:
        pixels, labels = load_svmlight_file(str(file), n_features=_SIDE**2, zero_based=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file}: damaged or not libsvm text ({error})") from error
    if not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{file}: labels from {labels.min()} to {labels.max()}; legal are 1 to 10")
    return _images((pixels.toarray() + 1) / 2, file), labels.astype(np.int64) - 1


def read_hdf5(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read `usps.h5`: `train` and `test`, each with `data` (n, 256) in [0, 1] and `target`."""
    parts = _hdf5_parts(file)
    images = np.concatenate([_images(data, file) for data, _ in parts])
    labels = np.concatenate([target for _, target in parts]).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(f"{file}: {len(images)} images but {len(labels)} labels")
    return images, labels


def _hdf5_parts(file: Path) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"{file}: reading HDF5 needs h5py: pip install fedbn[hdf5], "
            "or use usps.bz2 and usps.t.bz2"
        ) from error
    try:
        with h5py.File(file, "r") as content:
            return [
                (np.asarray(content[part]["data"]), np.asarray(content[part]["target"]))
                for part in ("train", "test")
            ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: damaged, or without train/data, train/target, test/data, test/target "
            f"({error})"
        ) from error


def _images(pixels: NDArray[Any], file: Path) -> NDArray[np.uint8]:
    flat = pixels.reshape(len(pixels), -1)
    if flat.shape[1] != _SIDE**2:
        raise DataError(f"{file}: {flat.shape[1]} pixels an image; expected {_SIDE**2}")
    if not (flat.min() >= 0 and flat.max() <= 1):
        raise DataError(
            f"{file}: pixels outside their range; legal are [−1, 1] in libsvm text, [0, 1] in HDF5"
        )
    images: NDArray[np.uint8] = np.rint(flat * 255).astype(np.uint8)
    return images.reshape(-1, _SIDE, _SIDE)


def read_labelled_folder(folder: Path, table: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images that a table names, all of one size, in the table's order."""
    rows = _rows(table)
    images = [_image(folder / name, table) for name, _ in rows]
    odd = next((i for i, image in enumerate(images) if image.shape != images[0].shape), None)
    if odd is not None:
        raise DataError(
            f"{folder / rows[odd][0]}: {images[odd].shape[1]}×{images[odd].shape[0]} pixels, but "
            f"{rows[0][0]} has {images[0].shape[1]}×{images[0].shape[0]}"
        )
    return np.stack(images), np.array([label for _, label in rows], np.int64)


def _rows(table: Path) -> list[tuple[str, int]]:
    rows = []
    for number, line in enumerate(_lines(table), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal() or Path(words[0]).name != words[0]:
            raise DataError(f"{table}, line {number}: {line!r}; expected a file's name and a digit")
        rows.append((words[0], int(words[1])))
    if not rows:
        raise DataError(f"{table}: no line; expected a file's name and a digit on each")
    return rows


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table}: unreadable or not text ({error})") from error


def _image(file: Path, table: Path) -> NDArray[np.uint8]:
    if not file.exists():
        raise DataError(f"{file}: named in {table.name}, but not there")
    with watched(), opened(file) as image:
        return np.asarray(image.convert("RGB"))


Samples = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (n, height, width) or (n, height, width, channels), and the digits they show."""


@dataclass(frozen=True)
class Form:
    """One way in which a data set is passed around.

    Attributes:
        files: The files or folders it consists of.
        read: Reads their paths: one part to be divided, or a training and a test part.
    """

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], list[Samples]]


def _npz(files: Sequence[Path]) -> list[Samples]:
    content = read_npz(files[0])
    parts = []
    for part in ("train", "test"):
        keys = (f"{part}_images", f"{part}_labels")
        for key in keys:
            if key not in content:
                raise DataError(f"{files[0]}: no {key}; it has {', '.join(content) or 'nothing'}")
        images, labels = (content[key] for key in keys)
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise DataError(
                f"{files[0]}: {keys[1]} of {labels.dtype} {labels.shape}; legal are whole numbers"
                ", one each"
            )
        # Checked with its shape where all forms are.
        parts.append((np.asarray(images), labels.astype(np.int64)))
    return parts


def _pooled(parts: Sequence[Samples]) -> list[Samples]:
    images, labels = zip(*parts, strict=True)
    return [(np.concatenate(images), np.concatenate(labels))]


def _idx(files: Sequence[Path]) -> list[Samples]:
    parts = [(read_idx(x, 3), read_idx(y, 1).astype(np.int64)) for x, y in _pairs(files)]
    for (images, labels), (file, _) in zip(parts, _pairs(files), strict=True):
        if len(images) != len(labels):
            raise DataError(f"{file}: {len(images)} images but {len(labels)} labels")
    return _pooled(parts)


def _pairs(files: Sequence[Path]) -> list[tuple[Path, Path]]:
    return list(zip(files[::2], files[1::2], strict=True))


def _mats(files: Sequence[Path]) -> list[Samples]:
    return _pooled([read_mat(file) for file in files])


def _libsvm(files: Sequence[Path]) -> list[Samples]:
    return _pooled([read_libsvm(file) for file in files])


def _hdf5(files: Sequence[Path]) -> list[Samples]:
    return [read_hdf5(files[0])]


def _folders(files: Sequence[Path]) -> list[Samples]:
    return _pooled([read_labelled_folder(folder, table) for folder, table in _pairs(files)])


_IDX = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


_MNIST_M = tuple(
    f"mnist_m_{part}{end}" for part in ("train", "test") for end in ("", "_labels.txt")
)


FORMS = {
    "svhn": (Form(("svhn.npz",), _npz), Form(("train_32x32.mat", "test_32x32.mat"), _mats)),
    "usps": (
        Form(("usps.npz",), _npz),
        Form(("usps.bz2", "usps.t.bz2"), _libsvm),
        Form(("usps.h5",), _hdf5),
    ),
    "synthdigits": (
        Form(("synthdigits.npz",), _npz),
        Form(("synth_train_32x32.mat", "synth_test_32x32.mat"), _mats),
    ),
    "mnist_m": (Form(("mnist_m.npz",), _npz), Form(_MNIST_M, _folders)),
    "mnist": (
        Form(("mnist.npz",), _npz),
        Form(tuple(f"{name}.gz" for name in _IDX), _idx),
        Form(_IDX, _idx),
    ),
}
"""By domain, in the order in which they are looked for."""
DOMAINS = ("svhn", "usps", "synthdigits", "mnist_m", "mnist")
"""In the order of the paper's tables."""


@dataclass(frozen=True)
class Source:
    """The files of a domain that were found, and their reader.

    Attributes:
        domain: The domain.
        files: The files or folders, in the order of its form.
        read: Reads them.
    """

    domain: str
    files: tuple[Path, ...]
    read: Callable[[Sequence[Path]], list[Samples]]

    @property
    def split(self) -> bool:
        """Whether the files are already divided into training and test part."""
        return self.files[0].suffix == ".npz"

    def parts(self) -> list[Samples]:
        """Read and check: the pooled samples, or training and test part."""
        parts = self.read(self.files)
        for images, labels in parts:
            _check(images, labels, f"{self.domain} ({self.files[0]})")
        return parts


def find_source(folder: Path, domain: str) -> Source | None:
    """Find a domain's files below a folder; None where there are none.

    Raises:
        DataError: Where some files of a form are there and others lack, or only a pickle is.
    """
    gaps = []
    for form in FORMS[domain]:
        for place in (folder, folder / domain):
            files = tuple(place / name for name in form.files)
            there = [file.exists() for file in files]
            if all(there):
                return Source(domain, files, form.read)
            if any(there):
                lacking = [f.name for f, is_there in zip(files, there, strict=True) if not is_there]
                gaps.append(f"{place}: {domain} is incomplete: no {', '.join(lacking)}")
    for gap in gaps:
        raise DataError(gap)
    _refuse_pickle(folder, domain)
    return None


def describe_forms(domain: str) -> str:
    """Name the files that would do, for a message."""
    return ", or ".join(" + ".join(form.files) for form in FORMS[domain])


def _refuse_pickle(folder: Path, domain: str) -> None:
    for place in (folder, folder / domain):
        for file in place.glob("*.pkl*"):
            if domain == "mnist_m" and "mnistm" in file.name.lower().replace("_", ""):
                raise DataError(
                    f"{file}: a pickle, which can run code: refused; legal are "
                    f"{describe_forms(domain)}"
                )


def _check(images: NDArray[np.uint8], labels: NDArray[np.int64], where: str) -> None:
    if images.dtype != np.uint8 or not (images.ndim == 3 or images.shape[3:] in ((1,), (3,))):
        raise DataError(
            f"{where}: images of {images.dtype} {images.shape}; legal are uint8 of (n, height, "
            "width), (n, height, width, 1) or (n, height, width, 3)"
        )
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{where}: no images")
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}; legal are 0 to 9")
