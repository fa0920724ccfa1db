"""Federated learning when data looks different at every site: FedBN and its relatives.

>>> import fedbn
>>> method = fedbn.fedbn() | fedbn.proximal(0.01)
>>> method.name
'fedbn+prox(0.01)'

Everything public is a name of this module; it is imported when it is first used, because torch
takes seconds that `fedbn --help` need not wait for.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedbn.api import Result as Result, Results as Results, RoundDone as RoundDone, fit as fit
    from fedbn.core.aggregation import (
        krum as krum,
        mean as mean,
        median as median,
        multi_krum as multi_krum,
        server_adagrad as server_adagrad,
        server_adam as server_adam,
        server_momentum as server_momentum,
        server_yogi as server_yogi,
        trimmed_mean as trimmed_mean,
    )
    from fedbn.core.federation import (
        Client as Client,
        Federation as Federation,
        Split as Split,
        Targets as Targets,
    )
    from fedbn.core.method import Method as Method, Penalty as Penalty, proximal as proximal
    from fedbn.core.metric import Metric as Metric
    from fedbn.core.plan import Plan as Plan
    from fedbn.core.rounds import RunState as RunState
    from fedbn.core.rule import (
        ClientRound as ClientRound,
        LocalTraining as LocalTraining,
        Memory as Memory,
        Rule as Rule,
        ServerRound as ServerRound,
    )
    from fedbn.core.selectors import (
        Selector as Selector,
        all_but as all_but,
        everything as everything,
        local as local,
        nothing as nothing,
        only as only,
    )
    from fedbn.core.state import (
        Entry as Entry,
        Kind as Kind,
        entries as entries,
        join as join,
        kinds as kinds,
        register_batchnorm as register_batchnorm,
        split as split,
    )
    from fedbn.core.task import Task as Task
    from fedbn.core.training import Training as Training
    from fedbn.errors import FedbnError as FedbnError
    from fedbn.exchange_audit import Audit as Audit, audit as audit
    from fedbn.flower import keep_local as keep_local
    from fedbn.methods import parse_method as parse_method
    from fedbn.methods.baselines import (
        local_boosting as local_boosting,
        local_linear as local_linear,
    )
    from fedbn.methods.fedopt import (
        fedadagrad as fedadagrad,
        fedadam as fedadam,
        fedavgm as fedavgm,
        fedyogi as fedyogi,
    )
    from fedbn.methods.paper import (
        centralized as centralized,
        fedavg as fedavg,
        fedbn as fedbn,
        fedprox as fedprox,
        silobn as silobn,
        singleset as singleset,
    )
    from fedbn.methods.rules import (
        ditto as ditto,
        feddyn as feddyn,
        fedper as fedper,
        fedrep as fedrep,
        fixbn as fixbn,
        lgfedavg as lgfedavg,
        scaffold as scaffold,
    )
    from fedbn.tasks.making import metric as metric
    from fedbn.trained.opening import jobs_of as jobs_of, open_run as open_run

# Read from the imports above, which Python itself never runs: each name is written once.
_MODULE_OF = {
    name.name: str(node.module)
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedbn.")
    for name in node.names
}

# `from fedbn import *` must also work where the extra that a name needs is not installed.
_MISSING = set() if importlib.util.find_spec("flwr") else {"keep_local"}

__all__ = sorted({*_MODULE_OF, "__version__"} - _MISSING)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedbn' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
