"""Data made here: digits rendered from fonts, and the Gaussians of the paper's appendix.

The "Synthetic Data Experiment" has two pairs of Gaussians in 10 dimensions that share their means,
−1 for class 0 and +1 for class 1, and differ in covariance: Σ₁ = I, and Σ₂ with non-zero entries
off its diagonal, here all equal. Client `diagonal` draws from the first pair, client `mixed` from
both, as the figure's caption says. What the paper leaves open is an argument.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import generator
from fedbn.data.benchmarks import Count
from fedbn.data.digit_domains import client_of
from fedbn.data.digit_rendering import rendered
from fedbn.data.storage import Info
from fedbn.errors import ConfigError

__all__ = ["gaussians", "synth_digits"]

_Two = Annotated[int, Field(ge=2)]


def synth_digits(
    train: Count = 7438, test: Count = 5000, fonts: str = "matplotlib", seed: int = 0
) -> Federation:
    """Render one client, `synthdigits`.

    Args:
        train: Images to train on.
        test: Images to test on.
        fonts: `matplotlib`, `system` or a folder of font files.
        seed: Decides the images.
    """
    arrays, remark = rendered(train, test, fonts, seed)
    client = client_of(arrays, "synthdigits")
    return Federation("synth_digits", (client,), tuple("0123456789"), (remark,))


INFO = {
    "synth_digits": Info(
        title="Coloured digits rendered from fonts, like SynthDigits",
        clients="1 of 7438",
        classes=10,
        shape="3×28×28",
        source="rendered here from the fonts inside matplotlib; no download",
        licence="the images are yours; the fonts' own licences hold for the fonts",
    ),
    "gaussians": Info(
        title="Two clients of Gaussians that differ in covariance",
        clients="2 of 200",
        classes=2,
        shape="10",
        source="drawn here; no download",
        licence="yours",
    ),
}


def gaussians(
    train: _Two = 200,
    test: _Two = 1000,
    dim: _Two = 10,
    correlation: float = 0.5,
    mixed: Annotated[float, Field(ge=0, le=1)] = 0.5,
    seed: int = 0,
) -> Federation:
    """Draw both clients; float32 samples, both classes equally often.

    Args:
        train: Training samples of a client.
        test: Test samples of a client.
        dim: Dimensions; the paper has 10.
        correlation: Every entry of Σ₂ off its diagonal, which is 1.
        mixed: The share of client `mixed` that comes from the second pair.
        seed: Decides the samples.

    Examples:
        >>> [(client.name, tuple(client.train.x.shape)) for client in gaussians().clients]
        [('diagonal', (200, 10)), ('mixed', (200, 10))]
    """
    if not math.isfinite(correlation) or not -1 / (dim - 1) < correlation < 1:
        raise ConfigError(
            f"data.correlation = {correlation}: legal are numbers above {-1 / (dim - 1):.3g} and "
            f"below 1, for which the covariance of {dim} dimensions is positive definite"
        )
    factor = torch.linalg.cholesky(covariance(dim, correlation))
    clients = []
    for name, share in (("diagonal", 0.0), ("mixed", mixed)):
        splits = [
            _split(size, share, factor, generator(seed, f"gaussians {part}", client=name))
            for part, size in (("train", train), ("test", test))
        ]
        clients.append(Client(name, name, splits[0], {name: splits[1]}))
    return Federation("gaussians", tuple(clients), ("0", "1"))


def covariance(dim: int, correlation: float) -> Tensor:
    """Σ₂: ones on the diagonal, the correlation everywhere else.

    Examples:
        >>> covariance(2, 0.5).tolist()
        [[1.0, 0.5], [0.5, 1.0]]
    """
    return torch.full((dim, dim), correlation, dtype=torch.float64).fill_diagonal_(1.0)


def _split(size: int, share: float, factor: Tensor, draws: torch.Generator) -> Split:
    y = torch.arange(size) % 2
    x = torch.randn(size, len(factor), generator=draws, dtype=torch.float64)
    # Samples 2k and 2k + 1 are of either class, so both classes have the same share of each pair.
    second = torch.randperm((size + 1) // 2, generator=draws).repeat_interleave(2)[:size]
    correlated = second < round(share * ((size + 1) // 2))
    x[correlated] = x[correlated] @ factor.T
    return Split((x + (2 * y[:, None] - 1)).float(), y)
