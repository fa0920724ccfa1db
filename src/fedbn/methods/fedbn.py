"""FedBN (Li et al. 2021), Algorithm 1: the paper's method."""

from fedbn.core.method import Method
from fedbn.core.selectors import BATCHNORM, all_but


def fedbn() -> Method:
    """Share everything but BatchNorm: its affine part and its statistics stay with the client."""
    return Method("fedbn", share=all_but(*BATCHNORM))
