"""A peer of the benchmark: FedBN in JAX, jit over vmap in chunks of clients; needs jax alone.

`python benchmarks/jax_round.py CLIENTS PASSES` prints the seconds of each round, the compiling one
left out. The arrays are those of `benchmarks/sites.py`.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
WIDTHS = (32, 64, 32, 10)
BATCH, LR, CHUNK, MOMENTUM, EPS = 32, 0.01, 50, 0.1, 1e-5


def start(draws: np.random.Generator) -> tuple[list, list]:
    """Shared dense layers, and a client's own BatchNorm: scale, shift, mean, variance."""
    shared, local = [], []
    for inputs, outputs in pairwise(WIDTHS):
        bound = inputs**-0.5
        weight = draws.uniform(-bound, bound, (inputs, outputs)).astype("float32")
        shared.append((jnp.asarray(weight), jnp.zeros(outputs)))
    for width in WIDTHS[1:-1]:
        affine = (jnp.ones(width), jnp.zeros(width))
        local.append((affine, (jnp.zeros(width), jnp.ones(width))))
    return shared, local


def loss_of(shared, affine, statistics, x, y):
    """Cross entropy of a batch, and the moved statistics."""
    moved = []
    for number, (weight, bias) in enumerate(shared):
        x = x @ weight + bias
        if number < len(affine):
            mean, var = x.mean(0), x.var(0)
            old_mean, old_var = statistics[number]
            unbiased = var * len(x) / (len(x) - 1)
            new_mean = old_mean + MOMENTUM * (mean - old_mean)
            moved.append((new_mean, old_var + MOMENTUM * (unbiased - old_var)))
            scale, shift = affine[number]
            x = jax.nn.relu((x - mean) / jnp.sqrt(var + EPS) * scale + shift)
    picked = jax.nn.log_softmax(x)[jnp.arange(len(y)), y]
    return -picked.mean(), moved


SLOPES = jax.grad(loss_of, argnums=(0, 1), has_aux=True)


def train(shared, local, x, y, key):
    """One client's round."""
    affine, statistics = [a for a, _ in local], [s for _, s in local]
    order = jax.random.permutation(key, len(y))
    for index in order.reshape(-1, BATCH):
        batch = (statistics, x[index], y[index])
        slopes, statistics = SLOPES(shared, affine, *batch)
        shared, affine = jax.tree.map(lambda w, g: w - LR * g, (shared, affine), slopes)
    return shared, list(zip(affine, statistics, strict=True))


@partial(jax.jit, static_argnums=5)
def rounded(shared, local, x, y, keys, chunks):
    """A round of all clients, chunk by chunk."""
    cut = jax.tree.map(lambda a: a.reshape(chunks, -1, *a.shape[1:]), (local, x, y, keys))
    each = jax.lax.map(lambda c: jax.vmap(train, (None, 0, 0, 0, 0))(shared, *c), cut)
    new, local = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), each)
    return jax.tree.map(lambda a: a.mean(0), new), local


def main(clients: int, passes: int) -> None:
    """Time rounds."""
    from benchmarks.sites import site

    given = [site(number) for number in range(clients)]
    x, y = (jnp.asarray(np.stack([one[f"train_{part}"] for one in given])) for part in "xy")
    shared, local = start(np.random.default_rng(0))
    local = jax.tree.map(lambda a: jnp.broadcast_to(a, (clients, *a.shape)), local)
    key = jax.random.key(0)
    for number in range(passes + 1):
        keys = jax.random.split(jax.random.fold_in(key, number), clients)
        begin = time.perf_counter()
        shared, local = jax.block_until_ready(rounded(shared, local, x, y, keys, clients // CHUNK))
        if number:
            print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
