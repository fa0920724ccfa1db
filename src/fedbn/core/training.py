"""How clients train: the options of a run that the core knows. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

Weighting = Literal["uniform", "examples"]


@dataclass(frozen=True)
class Training:
    """How clients train, and how rounds are made of it.

    Each field is the key of `[training]` of that name, which `docs/configuration.md` describes. A
    `batch_size` of None takes all samples at once. These are the only defaults: the configuration
    and `fit` take them from here.
    """

    rounds: int = 40  # communication rounds
    local_epochs: int = 1  # passes over its data that a client makes a round: the paper's E
    local_steps: int | None = None  # batches a round, in place of `local_epochs`
    batch_size: int | None = 16  # samples a batch: the paper's B
    last_batch: Literal["keep", "merge", "drop"] = "merge"  # what is left over after a pass
    optimizer: str = "SGD"  # a class of `torch.optim`
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 0.01
    unequal: Literal["own", "repeat"] = "own"  # `repeat`: as many steps as the largest, as in E.5
    weighting: Weighting = "uniform"  # of a client in a mean
    max_share: float = 1.0  # of the weights, that one client may have
    participation: float = 1.0  # the share of clients that takes part in a round
    min_clients: int = 1  # a round with fewer usable updates ends the run
    device: str = "cpu"  # where the model trains
    schedule: str | None = None  # a class of `torch.optim.lr_scheduler`, a step of which is a round
    schedule_args: Mapping[str, Any] = field(default_factory=dict)
    clip_norm: float | None = None  # the longest gradient, after all that rules change
    amp: Literal["bfloat16"] | None = None  # what passes compute in where torch's autocast takes it
    patience: int | None = None  # rounds without a better validation score that end the run
    fast: bool = True  # whether anything may be done for speed that changes last bits

    @cached_property
    def _rates(self) -> tuple[float, ...]:
        from fedbn.core.schedule import rates  # torch's schedulers

        assert self.schedule is not None
        return rates(self.schedule, self.schedule_args, self.lr, self.rounds)

    def in_round(self, round: int) -> Training:
        """The training of one round, counted from 1, with its own learning rate.

        Examples:
            >>> halved = {"schedule": "ExponentialLR", "schedule_args": {"gamma": 0.5}}
            >>> Training(rounds=2, lr=0.1, **halved).in_round(2).lr
            0.05
        """
        if self.schedule is None:
            return self
        return replace(self, lr=self._rates[round - 1], schedule=None, schedule_args={})

    def steps(self, samples: int, largest: int) -> int:
        """Count the batches of a round, for a client and the largest client's samples."""
        if self.local_steps is not None:
            return self.local_steps
        return self.local_epochs * len(self.sizes(largest if self.unequal == "repeat" else samples))

    def sizes(self, n: int) -> list[int]:
        """Cut a pass over n samples into batches.

        BatchNorm cannot train on one sample, so a last batch of one is never kept.

        Examples:
            >>> for last in ("merge", "keep", "drop"):
            ...     print(last, Training(batch_size=3, last_batch=last).sizes(8))
            merge [3, 5]
            keep [3, 3, 2]
            drop [3, 3]
        """
        if self.batch_size is None or n <= self.batch_size:
            return [n]
        whole, left = divmod(n, self.batch_size)
        sizes = [self.batch_size] * whole
        if self.last_batch == "merge" or (self.last_batch == "keep" and left == 1):
            sizes[-1] += left
        elif self.last_batch == "keep" and left:
            sizes.append(left)
        return sizes
