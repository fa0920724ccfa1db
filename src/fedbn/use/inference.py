"""From arrays to probabilities: inputs checked against the run, and models run in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbn.core.federation import Split
from fedbn.core.plan import forward
from fedbn.data._given import tensor_of
from fedbn.errors import ConfigError, DataError

_SCALED = 1.01


def samples_of(x: Any, inputs: Mapping[str, Any], where: str = "x") -> Tensor:
    """Bring samples to a tensor (n, ...) of the run's shape.

    Args:
        x: An array, a tensor, or lists of numbers.
        inputs: What a sample of the run looks like (`fedbn.experiments.facts`).
        where: What to call the samples in messages.

    Raises:
        DataError: Where they are no such samples.
    """
    samples = _tensor(x, where)
    shape = tuple(inputs["input_shape"])
    if samples.dim() < 1 or tuple(samples.shape[1:]) != shape:
        expected = ", ".join(map(str, ("n", *shape)))
        raise DataError(
            f"{where}: shape {tuple(samples.shape)}; the run was trained on ({expected})"
        )
    if not len(samples):
        raise DataError(f"{where}: no samples")
    _check_values(samples, inputs, where)
    return samples


def outputs_of(model: nn.Module, x: Tensor, chunk: int = 256) -> Iterator[Tensor]:
    """Run a model over samples, in evaluation mode, some at a time."""
    if chunk < 1:
        raise ConfigError(f"chunk = {chunk}: legal are whole numbers from 1")
    data = Split(x, torch.zeros(len(x), dtype=torch.int64))
    model.eval()
    with torch.inference_mode():
        for begin in range(0, len(x), chunk):
            batch = data.batch(slice(begin, begin + chunk))[0]
            yield forward(model, batch)


def probabilities(model: nn.Module, x: Tensor, chunk: int = 256) -> NDArray[np.float64]:
    """Compute the softmax of a model's outputs, (n, classes)."""
    parts = [outputs.double().softmax(dim=1) for outputs in outputs_of(model, x, chunk)]
    found: NDArray[np.float64] = torch.cat(parts).numpy()
    return found


def _tensor(x: Any, where: str) -> Tensor:
    tensor = tensor_of(x, where).detach().cpu()
    return tensor if tensor.dtype == torch.uint8 else tensor.float()


def _check_values(x: Tensor, inputs: Mapping[str, Any], where: str) -> None:
    if x.dtype == torch.uint8:
        return
    if not bool(torch.isfinite(x.sum())):
        rows = (~torch.isfinite(x.reshape(len(x), -1))).any(dim=1).nonzero().flatten()
        if len(rows):
            raise DataError(f"{where}: NaN or infinity in sample {int(rows[0])}")
    largest = float(x.abs().max())
    if inputs.get("dtype") == "uint8" and largest > _SCALED:
        raise DataError(
            f"{where}: floats up to {largest:.4g}, but the run was trained on whole numbers 0 to "
            "255 scaled to −1 to 1; give uint8, or floats scaled so"
        )
