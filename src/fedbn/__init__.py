"""Federated learning when data looks different at every site: FedBN and its relatives.

>>> import fedbn
>>> method = fedbn.fedbn() | fedbn.proximal(0.01)
>>> method.name
'fedbn+prox(0.01)'

Everything public is a name of this module; it is imported when it is first used, because torch
takes seconds that `fedbn --help` need not wait for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedbn._version import __version__

if TYPE_CHECKING:
    from fedbn.api import Result, fit
    from fedbn.core.aggregators import krum, mean, median, multi_krum, trimmed_mean
    from fedbn.core.federation import Client, Federation, Split
    from fedbn.core.method import Method
    from fedbn.core.penalties import Penalty, proximal
    from fedbn.core.plan import Plan
    from fedbn.core.rounds import RunState
    from fedbn.core.selectors import Selector, all_but, everything, local, nothing
    from fedbn.core.server import server_adagrad, server_adam, server_momentum, server_yogi
    from fedbn.core.state import Entry, Kind, entries, join, kinds, split
    from fedbn.core.training import Training
    from fedbn.errors import FedbnError
    from fedbn.methods import parse_method
    from fedbn.methods.centralized import centralized
    from fedbn.methods.fedavg import fedavg
    from fedbn.methods.fedbn import fedbn
    from fedbn.methods.fedprox import fedprox
    from fedbn.methods.silobn import silobn
    from fedbn.methods.singleset import singleset
    from fedbn.use.opening import jobs_of, open_run

_HOME = {
    "fedbn.api": ("Result", "fit"),
    "fedbn.core.aggregators": ("krum", "mean", "median", "multi_krum", "trimmed_mean"),
    "fedbn.core.federation": ("Client", "Federation", "Split"),
    "fedbn.core.method": ("Method",),
    "fedbn.core.penalties": ("Penalty", "proximal"),
    "fedbn.core.plan": ("Plan",),
    "fedbn.core.rounds": ("RunState",),
    "fedbn.core.selectors": ("Selector", "all_but", "everything", "local", "nothing"),
    "fedbn.core.server": ("server_adagrad", "server_adam", "server_momentum", "server_yogi"),
    "fedbn.core.state": ("Entry", "Kind", "entries", "join", "kinds", "split"),
    "fedbn.core.training": ("Training",),
    "fedbn.errors": ("FedbnError",),
    "fedbn.methods": ("parse_method",),
    "fedbn.methods.centralized": ("centralized",),
    "fedbn.methods.fedavg": ("fedavg",),
    "fedbn.methods.fedbn": ("fedbn",),
    "fedbn.methods.fedprox": ("fedprox",),
    "fedbn.methods.silobn": ("silobn",),
    "fedbn.methods.singleset": ("singleset",),
    "fedbn.use.opening": ("jobs_of", "open_run"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Client",
    "Entry",
    "FedbnError",
    "Federation",
    "Kind",
    "Method",
    "Penalty",
    "Plan",
    "Result",
    "RunState",
    "Selector",
    "Split",
    "Training",
    "__version__",
    "all_but",
    "centralized",
    "entries",
    "everything",
    "fedavg",
    "fedbn",
    "fedprox",
    "fit",
    "jobs_of",
    "join",
    "kinds",
    "krum",
    "local",
    "mean",
    "median",
    "multi_krum",
    "nothing",
    "open_run",
    "parse_method",
    "proximal",
    "server_adagrad",
    "server_adam",
    "server_momentum",
    "server_yogi",
    "silobn",
    "singleset",
    "split",
    "trimmed_mean",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedbn' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
