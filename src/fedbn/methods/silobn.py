"""SiloBN (Andreux et al. 2020), the closest relative of FedBN (section 2 of the paper)."""

from fedbn.core.method import Method
from fedbn.core.selectors import all_but
from fedbn.core.state import Kind


def silobn() -> Method:
    """Share everything but the statistics of BatchNorm; its affine part is shared."""
    return Method("silobn", share=all_but(Kind.BN_STATISTIC))
