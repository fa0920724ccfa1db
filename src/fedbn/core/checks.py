"""What must hold of a federation's data before anything trains on it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.errors import DataError

_MAX_NAME = 100


def check_federation(federation: Federation) -> list[str]:
    """Refuse data that cannot be trained on; return warnings about what is only odd.

    Raises:
        DataError: Naming the client, the split and the first offending sample.
    """
    where = f"data {federation.name}"
    if not federation.clients:
        raise DataError(f"{where}: no clients")
    if len(federation.classes) < 2:
        raise DataError(f"{where}: {len(federation.classes)} class(es); at least 2 are needed")
    _check_names(federation, where)
    _check_classes(federation.classes, where)
    warnings = similar_classes(federation.classes)
    for client in federation.clients:
        for name, split in _splits(client):
            _check_split(split, f"{where}, client {client.name}, {name}", federation)
        if len(client.train) < 2:
            raise DataError(
                f"{where}, client {client.name}: 1 training sample; at least 2 are needed"
            )
        warnings += _warnings(client, federation.classes)
    return warnings


def check_name(name: str, where: str) -> None:
    """Refuse a client's name that cannot be a file's name or a line of a log."""
    bad = (
        not name.strip() or name in (".", "..", "all") or any(sign in name for sign in '/\\:*?"<>|')
    )
    if bad or not name.isprintable() or len(name.encode()) > _MAX_NAME:
        raise DataError(
            f"{where}: client name {name!r}: legal are 1 to {_MAX_NAME} printable bytes "
            'without / \\ : * ? " < > |, other than "all" (the name of pooled data)'
        )


def _check_names(federation: Federation, where: str) -> None:
    seen: set[str] = set()
    for client in federation.clients:
        check_name(client.name, where)
        if client.name in seen:
            raise DataError(f"{where}: two clients are called {client.name!r}")
        seen.add(client.name)


def _check_classes(classes: tuple[str, ...], where: str) -> None:
    twice = [name for number, name in enumerate(classes) if name in classes[:number]]
    if twice:
        raise DataError(f"{where}: two classes are called {twice[0]!r}; names must differ")


def similar_classes(classes: Sequence[str]) -> list[str]:
    """Point out names that a person may have meant to be one class.

    Examples:
        >>> similar_classes(["cat", "Cat", "dog"])
        ["classes 'cat' and 'Cat' differ in case or spelling of signs only: taken as two classes"]
    """
    first: dict[str, str] = {}
    pairs = [
        (first.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), name), name)
        for name in classes
    ]
    return [
        f"classes {known!r} and {name!r} differ in case or spelling of signs only: "
        "taken as two classes"
        for known, name in pairs
        if known != name
    ]


def _splits(client: Client) -> Iterator[tuple[str, Split]]:
    yield "train", client.train
    for domain, test in client.tests.items():
        yield ("test" if domain == client.domain else f"test {domain}"), test
    if client.valid is not None:
        yield "valid", client.valid


def _check_split(split: Split, where: str, federation: Federation) -> None:
    if len(split.x) != len(split.y):
        raise DataError(f"{where}: {len(split.x)} samples but {len(split.y)} labels")
    if not len(split):
        raise DataError(f"{where}: no samples")
    if tuple(split.x.shape[1:]) != federation.input_shape:
        raise DataError(
            f"{where}: samples of shape {tuple(split.x.shape[1:])}, but the first client's have "
            f"{federation.input_shape}"
        )
    _check_values(split, where)
    _check_labels(split, where, len(federation.classes))


def _check_values(split: Split, where: str) -> None:
    x = split.x
    if x.dtype not in (torch.uint8, torch.float32, torch.float64):
        raise DataError(f"{where}: samples of {x.dtype}; legal are uint8, float32 and float64")
    if x.dtype == torch.uint8 or bool(torch.isfinite(x.sum())):
        return
    rows = (~torch.isfinite(x.reshape(len(x), -1))).any(dim=1).nonzero().flatten()
    if len(rows):
        first = int(rows[0])
        what = "NaN" if bool(x[first].isnan().any()) else "infinity"
        raise DataError(f"{where}: {what} in sample {first} ({len(rows)} such samples)")


def _check_labels(split: Split, where: str, classes: int) -> None:
    if split.y.dtype != torch.int64 or split.y.dim() != 1:
        raise DataError(
            f"{where}: labels are {split.y.dtype} of shape {tuple(split.y.shape)}; "
            "legal are whole numbers (int64), one a sample"
        )
    outside = ((split.y < 0) | (split.y >= classes)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise DataError(
            f"{where}: label {int(split.y[first])} of sample {first}: legal are 0 to {classes - 1}"
        )


def _warnings(client: Client, classes: tuple[str, ...]) -> Iterator[str]:
    counts = torch.bincount(client.train.y.cpu(), minlength=len(classes))
    missing = [classes[i] for i in (counts == 0).nonzero().flatten().tolist()]
    if missing:
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        yield f"client {client.name} has no training sample of class {shown}"
