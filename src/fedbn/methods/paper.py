"""The methods that the paper compares (section 5), and SiloBN."""

from dataclasses import replace

from fedbn.core.method import Method, proximal
from fedbn.core.selectors import BATCHNORM, all_but, everything, nothing
from fedbn.core.state import Kind

__all__ = ["centralized", "fedavg", "fedbn", "fedprox", "silobn", "singleset"]
# What each shares and what is remembered for it, for `fedbn ls`, which reads without importing.
ABOUT = {
    "centralized": ("all data", "nothing"),
    "fedavg": ("everything", "nothing"),
    "fedbn": ("everything but BatchNorm", "BatchNorm at the client"),
    "fedprox": ("everything", "nothing"),
    "silobn": ("everything but BatchNorm's statistics", "these at the client"),
    "singleset": ("nothing", "all of the model at the client"),
}


def centralized() -> Method:
    """Pool all data and train on it as one client, scored on every domain."""
    return Method("centralized", pooled=True)


def fedavg() -> Method:
    """Share everything, the running statistics of BatchNorm included."""
    return Method("fedavg", share=everything())


def fedbn() -> Method:
    """Share everything but BatchNorm: its affine part and its statistics stay with the client."""
    return Method("fedbn", share=all_but(*BATCHNORM))


def fedprox(mu: float = 0.01) -> Method:
    """Share everything, and pull each client towards what it received with strength mu."""
    return replace(fedavg() | proximal(mu), name="fedprox" if mu == 0.01 else f"fedprox({mu:g})")


def silobn() -> Method:
    """Share everything but the statistics of BatchNorm; its affine part is shared."""
    return Method("silobn", share=all_but(Kind.BN_STATISTIC))


def singleset() -> Method:
    """Share nothing: each client trains on its own data only."""
    return Method("singleset", share=nothing())
