"""Tables and pictures from run folders: reads record files, never a model.

Here stand the colours that all pictures share: Okabe and Ito's, which colour-blind readers can
tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedbn.core.statistics_kinds import RUNNING, STATISTICS_KINDS

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, BLACK, GREY = "#56B4E9", "#D55E00", "#000000", "#7F7F7F"

_METHODS = {
    "fedbn": VERMILION,
    "fedavg": BLUE,
    "fedprox": GREEN,
    "singleset": GREY,
    "silobn": PURPLE,
    "centralized": BLACK,
}

NAMES = {
    "singleset": "SingleSet",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedbn": "FedBN",
    "silobn": "SiloBN",
    "centralized": "Centralized",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "ditto": "Ditto",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "fixbn": "FixBN",
}
"""Methods as papers write them."""


def display_name(label: str) -> str:
    """Write a method as papers do.

    Examples:
        >>> display_name("fedbn+prox(0.1)"), display_name("mine (mu=1)")
        ('FedBN+prox(0.1)', 'mine (mu=1)')
    """
    return re.sub(r"^\w+", lambda found: NAMES.get(found[0], found[0]), label)


def with_statistics(name: str, kind: str) -> str:
    """Name a row by its method and the statistics that it is scored with, unless running ones.

    Examples:
        >>> with_statistics("fedbn", "running"), with_statistics("fedbn", "exact")
        ('fedbn', 'fedbn, exact statistics')
    """
    return name if kind == RUNNING else f"{name}, {kind} statistics"


def name_and_statistics(label: str) -> tuple[str, str]:
    """Return the two parts that `with_statistics` made a label of.

    Examples:
        >>> name_and_statistics("fedbn, exact statistics"), name_and_statistics("fedbn")
        (('fedbn', 'exact'), ('fedbn', 'running'))
    """
    for kind in STATISTICS_KINDS:
        name = label.removesuffix(f", {kind} statistics")
        if name != label:
            return name, kind
    return label, RUNNING


def colours(names: Sequence[str]) -> dict[str, str]:
    """Give each method its colour, the same in every picture; others take what is left in order.

    A method has one colour, whatever the statistics that it is scored with.

    Examples:
        >>> colours(["mine", "fedbn", "fedbn, exact statistics"])
        {'mine': '#0072B2', 'fedbn': '#D55E00', 'fedbn, exact statistics': '#D55E00'}
    """
    name_of = {label: name_and_statistics(label)[0] for label in names}
    methods = list(dict.fromkeys(name_of.values()))
    known = {_METHODS.get(name) for name in methods}
    palette = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BLACK)
    left = [colour for colour in palette if colour not in known]
    own = {name: _METHODS.get(name) or left[i % len(left)] for i, name in enumerate(methods)}
    return {label: own[name] for label, name in name_of.items()}
