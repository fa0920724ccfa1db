"""Data given from Python: arrays by client, of NumPy, torch or plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.errors import DataError

Arrays = tuple[Any, Any]
Data = Federation | Mapping[str, Arrays | tuple[Arrays, Arrays]]

_TEST_SHARE = 0.2
_ARRAYS = "arrays of NumPy, tensors or lists of numbers"
_SHAPES = "(x, y) or ((train_x, train_y), (test_x, test_y))"


def federation_of(data: Data) -> Federation:
    """Make a federation of arrays by client.

    A client with one pair of arrays has a stratified fifth of it held out for testing. Floats
    become float32, as models are; `uint8` images stay and are scaled to [−1, 1] batch by batch.

    Examples:
        >>> x = [[0.0], [1.0], [2.0], [3.0], [4.0]] * 2
        >>> made = federation_of({"a": (x, [0, 1, 0, 1, 0] * 2)})
        >>> len(made.clients[0].train), len(made.clients[0].tests["a"]), made.classes
        (8, 2, ('0', '1'))
    """
    if isinstance(data, Federation):
        return data
    if not isinstance(data, Mapping):
        raise DataError(
            f"data is a {type(data).__name__}; expected a mapping of clients to {_SHAPES}"
        )
    if not data:
        raise DataError(f"data: no clients; expected a mapping of clients to {_SHAPES}")
    clients = tuple(_client(str(name), given) for name, given in data.items())
    parts = [part for c in clients for part in (c.train, *c.tests.values())]
    classes = max(_largest(part.y) for part in parts) + 1
    return Federation("arrays", clients, tuple(str(label) for label in range(max(classes, 2))))


def _client(name: str, given: Any) -> Client:
    where = f"data, client {name}"
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DataError(f"{where}: expected {_SHAPES}, got a {type(given).__name__}")
    first, second = given
    if isinstance(first, tuple) and isinstance(second, tuple):
        train, test = _split(f"{where}, train", first), _split(f"{where}, test", second)
        return Client(name, name, train, {name: test})
    whole = _split(where, given)
    if len(whole) < 3:
        raise DataError(f"{where}: {len(whole)} samples; at least 3 are needed")
    rest, held = stratified(whole.y, _TEST_SHARE, generator(0, "test split", client=name))
    return Client(name, name, whole.take(rest), {name: whole.take(held)})


def _split(where: str, pair: Any) -> Split:
    if len(pair) != 2:
        raise DataError(f"{where}: {len(pair)} arrays; expected x and y")
    x, y = tensor_of(pair[0], f"{where}, x"), tensor_of(pair[1], f"{where}, y")
    if x.dim() < 2 or y.dim() != 1:
        raise DataError(
            f"{where}: x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; "
            "expected (n, ...) and (n,)"
        )
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples but {len(y)} labels")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(f"{where}: labels of {y.dtype}; legal are whole numbers from 0")
    for sample in (y < 0).nonzero().flatten().tolist():
        raise DataError(f"{where}: label {int(y[sample])} of sample {sample}: legal are 0 and up")
    return Split(x if x.dtype == torch.uint8 else x.float(), y.long())


def tensor_of(value: Any, where: str) -> Tensor:
    """Bring numbers to a tensor; what is none is refused before anybody iterates over it."""
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if hasattr(first, "__getitem__") and not (
        isinstance(first, Sequence) or hasattr(first, "__array__")
    ):  # a Dataset need not end
        raise DataError(f"{where}: a {type(first).__name__}; expected {_ARRAYS}")
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{where}: not numbers ({reason}); expected {_ARRAYS}") from error
    if tensor.is_complex():
        raise DataError(f"{where}: complex numbers; legal are real ones")
    return tensor


def _largest(labels: Tensor) -> int:
    return int(labels.max()) if len(labels) else 0
