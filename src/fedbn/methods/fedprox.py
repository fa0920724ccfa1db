"""FedProx (Li et al. 2018): FedAvg with a proximal term in the local loss."""

from dataclasses import replace

from fedbn.core.method import Method
from fedbn.core.penalties import proximal
from fedbn.methods.fedavg import fedavg


def fedprox(mu: float = 0.01) -> Method:
    """Share everything, and pull each client towards what it received with strength mu."""
    return replace(fedavg() | proximal(mu), name="fedprox" if mu == 0.01 else f"fedprox({mu:g})")
