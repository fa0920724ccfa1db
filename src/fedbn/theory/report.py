"""What a study found, as plain frozen values that turn into JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """What was studied: the sizes, α, the step η (shared by all runs), δ and the seed."""

    clients: int
    samples: int
    dim: int
    width: int
    alpha: float
    eta: float
    steps: int
    delta: float
    seed: int


@dataclass(frozen=True)
class Bound:
    """A Gram matrix, and Theorem 4.4 (Corollary 4.5 for FedBN) as it would hold with it.

    Attributes:
        spectrum: Eigenvalues of the matrix, smallest first.
        mu: The least of them.
        curve: `(1 − η μ/2)^t ‖f(0) − y‖²`.
        violation: First t at which joint descent is above the curve; None where it never is.
        rounds_violation: The same for federated rounds.
        width: The width asked for, its unknown constant taken as 1.
        width_met: Whether the width of the study is as large.
        kernel_holds: Whether `λmin(Λ(t)) ≥ μ/2` at every time looked at.
    """

    spectrum: tuple[float, ...]
    mu: float
    curve: tuple[float, ...]
    violation: int | None
    rounds_violation: int | None
    width: float
    width_met: bool
    kernel_holds: bool


@dataclass(frozen=True)
class Kernels:
    """Least eigenvalues along joint descent, and the formulas against autograd.

    Attributes:
        times: The steps looked at.
        total: λmin of Λ(t).
        magnitude: λmin of G(t).
        direction: λmin of V(t)/α².
        of_rounds: λmin of what federated rounds follow (N·G* in place of G*).
        autograd_error: Largest difference between formula and autograd, relative to the largest
            entry, over V, G and the times.
    """

    times: tuple[int, ...]
    total: tuple[float, ...]
    magnitude: tuple[float, ...]
    direction: tuple[float, ...]
    of_rounds: tuple[float, ...]
    autograd_error: float


@dataclass(frozen=True)
class Branch:
    """One of the two methods.

    Attributes:
        printed: The bound with G∞ as the paper defines it.
        start: The bound with G°, what G(0) tends to.
        measured: `‖f(t) − y‖²` under joint gradient descent.
        rounds: The same in federated rounds with E = 1.
        kernels: The evolution matrices along joint descent.
    """

    printed: Bound
    start: Bound
    measured: tuple[float, ...]
    rounds: tuple[float, ...]
    kernels: Kernels


@dataclass(frozen=True)
class Checks:
    """Claims of the paper on these samples.

    Attributes:
        assumption: No sample is zero or a multiple of another (Assumption 4.1).
        definite: G∞ and G*∞ are positive definite (Lemma 4.3).
        corollary: `λmin(G*∞) ≥ λmin(G∞)` (Corollary 4.6).
        start_corollary: The same for G°.
        monte_carlo_sigmas: Largest distance of sampled G∞ from the closed form, in standard errors.
        start_distance: `‖G(0) − G°‖ / ‖G°‖` at the width of the study.
        ratio: `λmin(G∞) / λmin(G°)`; `alpha_squared_dim` where every `S_i = I`.
        alpha_squared_dim: `α² d`.
        crossover_alpha: The α beyond which G(0) has the larger least eigenvalue than V(0)/α².
        rounds_are_joint: Largest relative difference of FedAvg's rounds from joint descent.
    """

    assumption: bool
    definite: bool
    corollary: bool
    start_corollary: bool
    monte_carlo_sigmas: float
    start_distance: float
    ratio: float
    alpha_squared_dim: float
    crossover_alpha: float
    rounds_are_joint: float


@dataclass(frozen=True)
class Study:
    """Everything one call of `study` computed."""

    setting: Setting
    fedavg: Branch
    fedbn: Branch
    checks: Checks

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers; a number that is not finite becomes None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def to_json(self) -> str:
        """The same as a JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
