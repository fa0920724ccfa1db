r"""FedAvg with an optimiser at the server: FedAvgM (Hsu et al. 2019), FedOpt (Reddi et al. 2021).

With \(\Delta\) the mean of the clients less the model before the round, FedAvgM takes
\(m \leftarrow \beta m + \Delta,\ x \leftarrow x + \eta m\), and FedAdam, FedYogi and FedAdagrad
take \(m \leftarrow \beta_1 m + (1 - \beta_1)\Delta,\ x \leftarrow x + \eta\, m / (\sqrt v + \tau)\)
with their own v. BatchNorm's statistics take the mean as it is.
"""

from collections.abc import Callable

from fedbn.core import aggregation
from fedbn.core.aggregation import ServerOptimizer
from fedbn.core.method import Method

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]
ABOUT = {
    "fedadagrad": ("everything", "both moments at the server"),
    "fedadam": ("everything", "both moments at the server"),
    "fedavgm": ("everything", "the momentum at the server"),
    "fedyogi": ("everything", "both moments at the server"),
}


def fedavgm(lr: float = 1.0, beta: float = 0.9) -> Method:
    """FedAvg with momentum at the server (Hsu et al. 2019)."""
    return _method("fedavgm", aggregation.server_momentum, lr, beta)


def fedadam(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """FedAvg with Adam at the server (Reddi et al. 2021)."""
    return _method("fedadam", aggregation.server_adam, lr, beta1, beta2, tau)


def fedyogi(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """FedAvg with Yogi at the server (Reddi et al. 2021)."""
    return _method("fedyogi", aggregation.server_yogi, lr, beta1, beta2, tau)


def fedadagrad(lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """FedAvg with Adagrad at the server (Reddi et al. 2021)."""
    return _method("fedadagrad", aggregation.server_adagrad, lr, beta1, tau)


def _method(word: str, build: Callable[..., ServerOptimizer], *numbers: float) -> Method:
    server = build(*numbers)
    said = "" if server == build() else server.label.removeprefix(server.name)
    return Method(f"{word}{said}", server=server)
