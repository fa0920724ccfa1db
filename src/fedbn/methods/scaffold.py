r"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1 with option II): corrected local steps.

\[ y_i \leftarrow y_i - \eta\,(g_i(y_i) - c_i + c), \qquad
   c_i^+ = c_i - c + \tfrac{1}{K\eta}(x - y_i), \]
\[ x \leftarrow \tfrac{1}{|S|}\sum_{i \in S} y_i, \qquad
   c \leftarrow c + \tfrac{|S|}{N}\,\tfrac{1}{|S|}\sum_{i \in S} (c_i^+ - c_i). \]

The corrections cover what is both shared and trained; the server's step size is 1.
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

__all__ = ["scaffold"]
ABOUT = {"scaffold": ("everything, and c of its parameters", "c_i at the client")}


@dataclass(frozen=True)
class Scaffold(Rule):
    """Steps corrected by the difference of the clients' gradients and one's own."""

    needs = frozenset[Need]({"plain SGD", "uniform weights"})
    label = "scaffold"

    def declare(self, model: ModelParts) -> Iterator[Memory]:
        """C, which travels, and c_i, which does not."""
        for entry in model.trained_for(self.label):
            yield Memory("c", entry, "shared")
            yield Memory("c_i", entry, "local")

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train with corrected gradients; send c moved by what c_i moved."""
        c, own = client.memory["c"], client.memory["c_i"]

        def correct() -> None:
            for name in c:
                weight, correction = client.tensors[name], c[name] - own[name]
                weight.grad = correction if weight.grad is None else weight.grad + correction

        done = train(change=correct)
        for name in c:
            moved = client.received[name] - client.tensors[name].detach()
            new = own[name] - c[name] + moved / (done.steps * done.lr)
            c[name] = c[name] + new - own[name]
            own[name] = new
        return done

    def server(self, server: ServerRound) -> None:
        """Clients that were not there did not move c."""
        c, before = server.memory["c"], server.earlier["c"]
        for name in c:
            moved = c[name] - before[name]
            c[name] = before[name] + moved * (server.accepted / server.clients)


def scaffold() -> Method:
    """Correct each client's steps for its drift from the others (Karimireddy et al. 2020)."""
    return Method("scaffold", rules=(Scaffold(),))
