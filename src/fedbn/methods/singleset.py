"""SingleSet: every client alone (the paper's first baseline, section 5.1)."""

from fedbn.core.method import Method
from fedbn.core.selectors import nothing


def singleset() -> Method:
    """Share nothing: each client trains on its own data only."""
    return Method("singleset", share=nothing())
