"""ABIDE's time series, and the correlations of its regions in sliding windows (appendix D.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbn.data._files import shown
from fedbn.errors import DataError

DROPPED = "#3455"
"""The one of 111 regions that is left out: 110 give the paper's 5,995 pairs."""


def read_series(file: Path) -> tuple[tuple[str, ...], Tensor]:
    """Read a `.1D` file: its regions, without the one that is dropped, and (frames, regions).

    The file is text: one line of region names, `#10` and so on, then one line a frame, both
    divided by tabs.
    """
    try:
        head, _, body = file.read_bytes().partition(b"\n")
        names = head.decode("ascii").split()
        values = np.array(body.split(), dtype=np.float64)
    except OSError as error:
        raise DataError(f"{shown(file)}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{shown(file)}: not a table of numbers ({error})") from error
    if not names or not all(name.startswith("#") for name in names):
        raise DataError(f"{shown(file)}: first line must name the regions, as #10 and so on")
    if len(values) % len(names):
        raise DataError(
            f"{shown(file)}: cut off: {len(values)} values are no whole rows of {len(names)}"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{shown(file)}: NaN or infinity among the values")
    keep = [number for number, name in enumerate(names) if name != DROPPED]
    series = torch.from_numpy(values.reshape(-1, len(names))[:, keep])
    return tuple(names[number] for number in keep), series


def correlations(series: Tensor, window: int, stride: int) -> Tensor:
    """Correlate all pairs of regions in each window.

    With z the centred frames of a region in a window, divided by their length, the correlation of
    two regions is z·z′. A region that is constant in a window has none: 0 is put there.

    Args:
        series: (frames, regions).
        window: Frames a window.
        stride: Frames from one window to the next.

    Returns:
        (windows, regions·(regions − 1)/2) in float32: the upper triangle, row by row.

    Examples:
        >>> up = torch.arange(4.0)
        >>> correlations(torch.stack([up, -up, torch.ones(4)], dim=1), 3, 1).round(decimals=4)
        tensor([[-1.,  0.,  0.],
                [-1.,  0.,  0.]])
    """
    frames = series.double().unfold(0, window, stride)
    centred = frames - frames.mean(dim=2, keepdim=True)
    length = centred.norm(dim=2, keepdim=True)
    # Rounding leaves a constant region a length above 0: only equal frames tell.
    constant = (frames.amax(dim=2, keepdim=True) == frames.amin(dim=2, keepdim=True)) | (
        length == 0
    )
    z = torch.where(constant, 0.0, centred / length).float()
    regions = series.shape[1]
    row, column = torch.triu_indices(regions, regions, offset=1)
    products = torch.bmm(z, z.transpose(1, 2)).flatten(1)
    return products.index_select(1, row * regions + column).clamp_(-1, 1)


def window_counts(lengths: Sequence[int], window: int, stride: int) -> list[int]:
    """Count the windows of series of so many frames."""
    return [1 + (length - window) // stride for length in lengths]


def read_windows(files: Sequence[Path], window: int, stride: int) -> tuple[Tensor, list[int]]:
    """Read subjects and correlate; returns all windows, subject by subject, and how many each has.

    Raises:
        DataError: For a series shorter than a window, or with other regions than the first.
    """
    read = [(file, *read_series(file)) for file in files]
    for file, names, series in read:
        if names != read[0][1]:
            raise DataError(f"{shown(file)}: other regions than {shown(files[0])}")
        if len(series) < window:
            raise DataError(f"{shown(file)}: {len(series)} frames, but data.window = {window}")
    counts = window_counts([len(series) for _, _, series in read], window, stride)
    regions = len(read[0][1])
    x = torch.empty(sum(counts), regions * (regions - 1) // 2)
    for part, (_, _, series) in zip(x.split(counts), read, strict=True):
        part.copy_(correlations(series, window, stride))
    return x, counts
