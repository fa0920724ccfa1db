"""Methods that change what a client does in a round, as their papers' algorithms say it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

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
from fedbn.core.selectors import local, only
from fedbn.core.state import Kind
from fedbn.errors import ConfigError

__all__ = ["ditto", "feddyn", "fedper", "fedrep", "fixbn", "lgfedavg", "scaffold"]
ABOUT = {
    "ditto": ("everything", "a personal model at the client, which it is used with"),
    "feddyn": ("everything", "g_i at the client, h at the server"),
    "fedper": ("everything but the head", "the head at the client"),
    "fedrep": ("everything but the head", "the head at the client"),
    "fixbn": ("everything", "nothing"),
    "lgfedavg": ("the head alone", "all but the head at the client"),
    "scaffold": ("everything, and c of its parameters", "c_i at the client"),
}


@dataclass(frozen=True)
class Scaffold(Rule):
    r"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1 with option II): corrected local steps.

    \[ y_i \leftarrow y_i - \eta\,(g_i(y_i) - c_i + c), \qquad
       c_i^+ = c_i - c + \tfrac{1}{K\eta}(x - y_i), \]
    \[ x \leftarrow \tfrac{1}{|S|}\sum_{i \in S} y_i, \qquad
       c \leftarrow c + \tfrac{|S|}{N}\,\tfrac{1}{|S|}\sum_{i \in S} (c_i^+ - c_i). \]

    The corrections cover what is both shared and trained; the server's step size is 1.
    """

    needs = frozenset[Need]({"plain SGD", "uniform weights"})
    word = "scaffold"

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


@dataclass(frozen=True)
class FedDyn(Rule):
    r"""FedDyn (Acar et al., ICLR 2021, Algorithm 1): a regulariser that moves with the clients.

    \[ \theta_i = \arg\min_\theta L_i(\theta) - \langle g_i, \theta\rangle
       + \tfrac{\alpha}{2}\lVert \theta - \theta_{received}\rVert^2, \qquad
       g_i \leftarrow g_i - \alpha\,(\theta_i - \theta_{received}), \]
    \[ h \leftarrow h - \alpha\,\tfrac{1}{m}\sum_{i \in P}(\theta_i - \theta_{before}), \qquad
       \theta \leftarrow \tfrac{1}{|P|}\sum_{i \in P}\theta_i - \tfrac{1}{\alpha} h. \]

    It covers what is both shared and trained; the minimum is approached by usual local training.
    """

    alpha: float
    word = "feddyn"
    needs = frozenset[Need]({"uniform weights"})
    moves = True

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


@dataclass(frozen=True)
class Ditto(Rule):
    r"""Ditto (Li et al., ICML 2021, Algorithm 1): a model of one's own beside the joint one.

    The joint model w is trained as FedAvg trains it. Beside it each client has a personal model
    \(v_i\), which starts from what it received in its first round and is what it is used with:

    \[ v_i \leftarrow v_i - \eta\,\bigl(\nabla F_i(v_i) + \lambda\,(v_i - w_{received})\bigr). \]

    The personal model has all entries of the model, BatchNorm among them; the pull is on what is
    both shared and trained.
    """

    lam: float
    word = "ditto"
    used = "personal"
    several = True

    def declare(self, model: ModelParts) -> Iterator[Memory]:
        """All of the model once more."""
        for entry in model.shared + model.local:
            yield Memory("personal", entry, "local", start="entry")

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train the joint model, then the personal one."""
        done = train()

        @torch.no_grad()
        def pull() -> None:
            for weight, received in zip(client.trained, client.anchor, strict=True):
                if weight.grad is not None:
                    weight.grad.add_(weight - received, alpha=self.lam)

        train(change=pull, on=client.memory["personal"], draws="personal")
        return done


def ditto(lam: float = 0.1) -> Method:
    """Train a personal model beside the joint one, drawn towards it (Li et al. 2021)."""
    if not 0 <= lam < float("inf"):
        raise ConfigError(f"lam = {lam!r} of ditto: legal are finite numbers >= 0")
    rule = Ditto(float(lam))
    return Method("ditto" if lam == 0.1 else rule.label, rules=(rule,))


@dataclass(frozen=True)
class FixedStatistics(Rule):
    """FixBN (Zhong et al. 2023): BatchNorm's statistics are learned, then fixed.

    In the first rounds everything is trained and shared as by FedAvg. Then the statistics stay as
    they are, and clients normalise with them while they train, as one does when a model is
    fine-tuned; all parameters, BatchNorm's affine among them, go on being trained and shared.
    """

    share: float
    word = "fixbn"
    depends_on_rounds = True

    def declare(self, model: ModelParts) -> tuple[Memory, ...]:
        """Nothing is remembered, but there must be something to fix."""
        if not any(e.kind is Kind.BN_STATISTIC for e in model.shared + model.local):
            raise ConfigError(f"{self.label}: the model has no BatchNorm statistics to fix")
        return ()

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train all, or all but the statistics once a client has some of its own."""
        own = [client.tensors[e.name] for e in client.parts.local if e.kind is Kind.BN_STATISTIC]
        new = any(not (count.is_floating_point() or count.any()) for count in own)
        if new or client.round <= self.share * client.rounds + 1e-9:
            return train()
        every = client.parts.shared + client.parts.local
        return train(only=[e.name for e in every if e.kind is not Kind.BN_STATISTIC])


def fixbn(share: float = 0.5) -> Method:
    """Fix BatchNorm's statistics after a share of the rounds (Zhong et al. 2023)."""
    if not 0 <= share <= 1:
        raise ConfigError(f"share = {share!r} of fixbn: legal are numbers from 0 to 1")
    rule = FixedStatistics(float(share))
    return Method("fixbn" if share == 0.5 else rule.label, rules=(rule,))


@dataclass(frozen=True)
class HeadFirst(Rule):
    """First the client's own weights alone, for so many passes, then all others alone.

    Of a model in two, a body and a head, one part is shared and the other stays at home. The head
    is the last module with parameters in a pass (`last`), or a module that is named.
    """

    epochs: int
    word = "head_first"
    several = True

    def declare(self, model: ModelParts) -> tuple[Memory, ...]:
        """Nothing is remembered but what the method keeps local anyway."""
        if not _head(model):
            raise ConfigError("fedrep: the method keeps no weight at the client to train first")
        return ()

    def round(self, client: ClientRound, train: LocalTraining) -> Trained:
        """Train the head, then the body."""
        head = _head(client.parts)
        train(only=head, epochs=self.epochs, draws="head")
        return train(only=client.tensors.keys() - head)


def _head(model: ModelParts) -> set[str]:
    return {e.name for e in model.local if e.trainable and e.kind is Kind.WEIGHT}


def fedper(head: str = "last") -> Method:
    """Share everything but the head, trained together (Arivazhagan et al. 2019)."""
    return Method(_called("fedper", head), share=local(head))


def fedrep(head: str = "last", head_epochs: int = 10) -> Method:
    """Share everything but the head, trained before the body each round (Collins et al. 2021)."""
    if not isinstance(head_epochs, int) or head_epochs < 1:
        raise ConfigError(f"head_epochs = {head_epochs!r} of fedrep: legal are whole numbers >= 1")
    name = "fedrep" if (head, head_epochs) == ("last", 10) else f"fedrep({head!r}, {head_epochs})"
    return Method(name, share=local(head), rules=(HeadFirst(head_epochs),))


def lgfedavg(head: str = "last") -> Method:
    """Share the head alone; each client has a body of its own (Liang et al. 2020)."""
    return Method(_called("lgfedavg", head), share=only(head))


def _called(word: str, head: str) -> str:
    return word if head == "last" else f"{word}({head!r})"
