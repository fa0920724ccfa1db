"""FedAvg (McMahan et al. 2017), section 3 of the paper."""

from fedbn.core.method import Method
from fedbn.core.selectors import everything


def fedavg() -> Method:
    """Share everything, the running statistics of BatchNorm included."""
    return Method("fedavg", share=everything())
