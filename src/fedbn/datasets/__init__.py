"""The data sets by name. Adding a file here adds a data set.

A data set is a function of keyword options that returns a `Federation`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from fedbn import registry

if TYPE_CHECKING:
    from fedbn.data.storage import Info

# Not for choosing: what the configuration of a joining run names, and that of a site's run.
ELSEWHERE = {"joined": "fedbn.trained.joining", "at_site": "fedbn.experiments.sources"}

# Public data sets of pictures. Pictures of any other data may show patients, so figures and reports
# show them only if somebody asks for it.
PUBLIC_PICTURES = frozenset(
    {
        "digits",
        "digits_mini",
        "domainnet",
        "morpho_mnist",
        "office_caltech10",
        "shifted_digits",
        "synth_digits",
    }
)


def info_of(name: str) -> Info:
    """The facts about a registered data set."""
    return cast("Info", registry.facts(sys.modules[__name__], name, "INFO"))
