"""Five kinds of handwritten digits, made from the 1,797 real ones inside scikit-learn.

A stand-in for the paper's five digit data sets that needs no download: the same ten classes, the
same number of samples at every client, and features that differ from client to client.

| domain | what was done to the scan | what it is like |
|---|---|---|
| plain | nothing: light strokes on black | MNIST |
| inverted | dark ink on cream paper, lit from one side | a scanned form |
| photo | the absolute difference to a patch of a colour photograph | MNIST-M |
| faded | blurred, contrast cut to a quarter, grey noise | a bad camera |
| painted | strokes thickened, one colour, on noise of another colour | a sign in the street |

Every original goes to one client and to one of train and test, so nothing is seen twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy import ndimage
from sklearn.datasets import load_digits, load_sample_images

from fedbn.core.federation import Client, Federation, Origin, Split
from fedbn.data import benchmarks
from fedbn.data.storage import Info

INFO = {
    "digits_mini": Info(
        title="Five renderings of scikit-learn's handwritten digits",
        clients="5 of 215",
        classes=10,
        shape="3×28×28",
        source="inside scikit-learn; no download",
        licence="BSD-3-Clause (scikit-learn), photographs CC BY",
    )
}
Images = NDArray[np.float32]
_SEED = 2021


def digits_mini(
    test_share: benchmarks.TestShare = 0.4,
    percent: Annotated[int, Field(ge=5, le=100)] = 100,
    clients_per_domain: benchmarks.ClientsPerDomain = 1,
    sizes: list[int] | None = None,
    test_limit: benchmarks.Count | None = None,
    domains: list[str] | None = None,
) -> Federation:
    """Render the five domains, one client or more each; 28×28×3 in [−1, 1].

    Args:
        test_share: The part of each domain's originals that is held out for testing.
        percent: The share of its domain's training samples that a client has, 5 to 100.
        clients_per_domain: Clients of each domain, 1 to 10; several need `percent = 10`.
        sizes: The number of training samples of each domain, in place of a share.
        test_limit: Score on so many test samples only.
        domains: Which to take, in this order; all five by default. A domain's images are the same
            whichever others are taken.
    """
    benchmarks.check_tenths(percent, clients_per_domain)
    chosen = benchmarks.checked_domains(domains, DOMAINS)
    originals, labels = load_digits(return_X_y=True)
    # 8×8 to 24×24 by cubic splines, with a border of 2.
    large = np.clip(ndimage.zoom(originals.reshape(-1, 8, 8) / 16, (1, 3, 3), order=3), 0, 1)
    strokes = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    dealt = by_class(labels)
    wholes = []
    for name in chosen:
        number, render = list(DOMAINS).index(name), DOMAINS[name]
        mine = dealt[number :: len(DOMAINS)][: len(dealt) // len(DOMAINS)]
        images = np.clip(render(strokes[mine], np.random.default_rng([_SEED, number])), 0, 1)
        train, test = train_and_test(images, labels[mine], 1 - test_share, mine)
        wholes.append(Client(name, name, train, {name: benchmarks.thinned(test, test_limit)}))
    lengths = {whole.name: len(whole.train) for whole in wholes}
    wanted = benchmarks.checked_sizes(sizes, lengths, clients_per_domain)
    clients: list[Client] = []
    for whole in wholes:
        if percent == 10 and not wanted:
            clients += benchmarks.tenths(whole, clients_per_domain)
            continue
        count = wanted.get(whole.name, lengths[whole.name] * percent // 100)
        clients.append(replace(whole, train=benchmarks.thinned(whole.train, count)))
    return Federation("digits_mini", tuple(clients), tuple(str(digit) for digit in range(10)))


def train_and_test(
    images: Images, labels: NDArray[np.int64], share: float, rows: NDArray[np.int64]
) -> tuple[Split, Split]:
    """Bring images (n, h, w, 3) to [−1, 1], and keep an evenly spread share of them to train on.

    `rows` are the numbers of the originals.
    """
    x = torch.from_numpy(images * 2 - 1).permute(0, 3, 1, 2).float().contiguous()
    y = torch.from_numpy(labels).long()
    train = torch.from_numpy(np.diff(np.floor(np.arange(len(y) + 1) * share)) > 0)
    whole = Split(x, y, origin=Origin(torch.from_numpy(rows)))
    kept, held = (whole.take(some.nonzero().flatten()) for some in (train, ~train))
    return kept, held


def by_class(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Shuffle the originals, then sort by class: dealt out like cards, all get equal shares."""
    shuffled = np.random.default_rng(_SEED).permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def _grey(images: Images) -> Images:
    return np.repeat(images[..., None], 3, axis=-1)


def _inverted(strokes: Images, draws: np.random.Generator) -> Images:
    angle = draws.uniform(0, 2 * np.pi, (len(strokes), 1, 1))
    across = np.linspace(-0.5, 0.5, 28)
    light = 0.85 + 0.15 * (np.cos(angle) * across[:, None] + np.sin(angle) * across[None, :])
    paper = light[..., None] * np.array([1.0, 0.97, 0.88])
    return np.asarray(paper * (1 - 0.9 * strokes[..., None]), np.float32)


def patches(count: int, side: int, draws: np.random.Generator) -> Images:
    """Cut squares (count, side, side, 3) out of the photographs inside scikit-learn."""
    photographs = [image / 255 for image in load_sample_images().images]
    found = np.empty((count, side, side, 3), np.float32)
    for patch in found:
        source = photographs[draws.integers(len(photographs))]
        top, left = (draws.integers(size - side) for size in source.shape[:2])
        patch[:] = source[top : top + side, left : left + side]
    return found


def _faded(strokes: Images, draws: np.random.Generator) -> Images:
    soft = ndimage.gaussian_filter(strokes, (0, 1.6, 1.6))
    return _grey(0.45 + 0.25 * soft + draws.normal(0, 0.03, strokes.shape).astype(np.float32))


def _painted(strokes: Images, draws: np.random.Generator) -> Images:
    thick = ndimage.grey_dilation(strokes, size=(1, 3, 3))[..., None]
    hue = draws.uniform(0, 1, (len(strokes), 1, 1, 1))
    ink, ground = colour(hue), colour(hue + draws.uniform(0.3, 0.7, hue.shape))
    noise = draws.normal(0, 0.12, (*strokes.shape, 3))
    return np.asarray(thick * ink + (1 - thick) * (0.7 * ground + noise), np.float32)


def colour(hue: NDArray[np.float64]) -> NDArray[np.float64]:
    """A saturated colour for a hue in turns."""
    turns = hue - np.array([0, 1 / 3, 2 / 3])
    return np.asarray(0.5 + 0.5 * np.cos(2 * np.pi * turns))


DOMAINS: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "plain": lambda strokes, _: _grey(strokes),
    "inverted": _inverted,
    "photo": lambda strokes, draws: np.abs(patches(len(strokes), 28, draws) - strokes[..., None]),
    "faded": _faded,
    "painted": _painted,
}
