r"""FedDyn (Acar et al., ICLR 2021, Algorithm 1): a regulariser that moves with the clients.

\[ \theta_i = \arg\min_\theta L_i(\theta) - \langle g_i, \theta\rangle
   + \tfrac{\alpha}{2}\lVert \theta - \theta_{received}\rVert^2, \qquad
   g_i \leftarrow g_i - \alpha\,(\theta_i - \theta_{received}), \]
\[ h \leftarrow h - \alpha\,\tfrac{1}{m}\sum_{i \in P}(\theta_i - \theta_{before}), \qquad
   \theta \leftarrow \tfrac{1}{|P|}\sum_{i \in P}\theta_i - \tfrac{1}{\alpha} h. \]

It covers what is both shared and trained; the minimum is approached by the usual local training.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fedbn.core.method import Method
from fedbn.core.rule import (
    ClientRound,
    LocalTraining,
    Memory,
    ModelParts,
    Need,
    Rule,
    ServerRound,
    Trained,
)
from fedbn.errors import ConfigError

__all__ = ["feddyn"]
ABOUT = {"feddyn": ("everything", "g_i at the client, h at the server")}


@dataclass(frozen=True)
class FedDyn(Rule):
    """The dynamic regulariser of strength alpha."""

    alpha: float
    needs = frozenset[Need]({"uniform weights"})
    moves = True

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"feddyn({self.alpha:g})"

    def declare(self, model: ModelParts) -> Iterator[Memory]:
        """The client's last gradient, and the server's sum of moves."""
        for entry in model.trained_for(self.label):
            yield Memory("g", entry, "local")
            yield Memory("h", entry, "server")

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train with the regulariser, then take over its new gradient."""
        own, received = client.memory["g"], client.received

        def regularise() -> None:
            for name in own:
                weight = client.tensors[name]
                term = self.alpha * (weight.detach() - received[name]) - own[name]
                weight.grad = term if weight.grad is None else weight.grad + term

        done = train(change=regularise)
        for name in own:
            own[name] = own[name] - self.alpha * (client.tensors[name] - received[name])
        return done

    def server(self, server: ServerRound) -> None:
        """Move h by all clients' moves, and the model by h."""
        h, share = server.memory["h"], server.accepted / server.clients
        for name in h:
            mean = server.combined[name]
            h[name] = h[name] - self.alpha * share * (mean - server.before[name])
            mean.sub_(h[name], alpha=1 / self.alpha)


def feddyn(alpha: float = 0.01) -> Method:
    """Align clients' optima with the federation's by a moving regulariser (Acar et al. 2021)."""
    if not 0 < alpha < float("inf"):
        raise ConfigError(f"alpha = {alpha!r} of feddyn: legal are finite numbers > 0")
    rule = FedDyn(float(alpha))
    return Method("feddyn" if alpha == 0.01 else rule.label, rules=(rule,))
