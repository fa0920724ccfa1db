"""What a site allows: a TOML file at the site.

`update_bounds` has the rules about how much one batch may count in an update.
An order is examined by the policy before anything is trained, whatever the server was told before.
How many sites take part in a round, and which, is the server's word: the policy believes it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import fedbn.methods
import fedbn.models
from fedbn import registry
from fedbn.core.federation import Client
from fedbn.core.plan import Plan
from fedbn.core.state import entries, schema_hash
from fedbn.errors import ConfigError, FedbnError
from fedbn.experiments.configuration import checked, explained, read_toml
from fedbn.experiments.jobs import Job
from fedbn.experiments.sources import suggested_for
from fedbn.flower.messages import Order
from fedbn.flower.update_bounds import OPTIMIZERS, class_weight_fault, forbidden, undecided
from fedbn.methods import baseline_names, pieces_of

_SHORTEST_HASH = 16
_EPOCHS = 100  # of its own that a site trains a round, at most, unless the policy says steps
# The server's correction of SCAFFOLD moves the model in every step. A crafted one keeps units of
# the model silent until the last step, so that the last batch alone trains them.
_STEERED = ("scaffold",)
_FEDERATED = [name for name in registry.names(fedbn.methods) if name not in baseline_names()]
_TITLE = "# What this site allows. `fedbn federation join` reads it when it starts.\n"


class Forbidden(FedbnError):  # noqa: N818 - the name says what happened
    """The site's policy does not allow what was asked."""


class ForbiddenByLabels(Forbidden):
    """A refusal that depends on the labels of the site's samples: the server is not told why."""


class Policy(BaseModel):
    """What a site allows; strict unless it says otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    methods: list[str] = Field(
        default_factory=lambda: [name for name in _FEDERATED if name not in _STEERED],
        description="by name",
    )
    models: list[str] = Field(
        default_factory=lambda: registry.names(fedbn.models),
        description="by name, or by the hash that `federation check` shows",
    )
    optimizers: list[str] = Field(
        list(OPTIMIZERS),
        description="of torch.optim; one that is added has torch's default arguments",
    )
    min_batch: int = Field(8, ge=1, description="samples in a batch, at least, the last one too")
    min_samples: int = Field(32, ge=1, description="distinct samples behind an update, at least")
    min_sites: int = Field(2, ge=1, description="sites in a round, at least")
    max_rounds: int = Field(1000, ge=1, description="rounds of a run, at most")
    max_runs: int = Field(100, ge=1, description="runs whose folders lie here, at most")
    max_steps: int = Field(0, ge=0, description="batches a round, at most; 0: 100 own epochs")
    max_class_weight: float = Field(
        2.0, ge=1, description="how much more a class may count than another in the loss"
    )
    bound_updates: bool = Field(
        True,
        description="the last batch has at most twice its share of an update; false: anything goes",
    )
    query_budget: bool = Field(True, description="one state per round and run, answers counted")
    max_answers_per_run: int = Field(10_000, ge=1, description="answers of a run, at most")
    max_answers_per_day: int = Field(10_000, ge=1, description="answers of all runs, at most")
    max_changed_states: int = Field(
        5, ge=0, description="other states for answered rounds, after a resume, at most per run"
    )
    round_scores: bool = Field(True, description="scores leave in steps of 1/sqrt(samples)")
    min_test_samples: int = Field(10, ge=1, description="samples behind a score, at least")
    max_model_mb: int = Field(512, ge=1, description="MB of a model's parameters, at most")
    max_data_mb: int = Field(
        2048, ge=1, description="MB of memory for samples as a contract shapes them, at most"
    )
    sends: list[Literal["loss", "scores", "names"]] = Field(
        ["loss", "scores", "names"],
        description="numbers that go to the server; names: of columns, classes and categories",
    )
    approval: bool = Field(True, description="a person approves every new experiment")
    approval_days: int = Field(
        90, ge=0, le=36500, description="an approval ends after so many days; 0: never"
    )

    @field_validator("optimizers")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if not isinstance(getattr(torch.optim, name, None), type):
                raise ValueError(f"{name!r} is no class of torch.optim")
        return names

    def to_toml(self) -> str:
        """Render with a remark at every key."""
        fields = type(self).model_fields
        lines = [  # what JSON writes of numbers, words and lists is TOML too
            f"{name} = {json.dumps(value)}  # {fields[name].description}"
            for name, value in self.model_dump().items()
        ]
        return _TITLE + "\n".join(lines) + "\n"


# Where everything runs on one machine for trying out: no site is another's.
OPEN = Policy(
    min_batch=1, min_samples=1, min_sites=1, max_rounds=10**6, max_runs=10**6, max_steps=10**9,
    max_model_mb=10**6, max_data_mb=10**6,
    methods=_FEDERATED, bound_updates=False, approval=False,
    query_budget=False, round_scores=False, min_test_samples=1,
)  # fmt: skip


# Where a person tries out every method on one machine: all methods, exact scores, no approval.
DEMO = Policy(
    approval=False, methods=_FEDERATED, round_scores=False, min_test_samples=1,
)  # fmt: skip


# Where every site of a simulation runs on one machine: its numbers are those of one process.
SIMULATED = Policy(
    approval=False, methods=_FEDERATED, bound_updates=False,
    query_budget=False, round_scores=False, min_test_samples=1,
)  # fmt: skip


def read_policy(file: Path) -> Policy:
    """Read a site's policy; a key that is not known or not legal is named."""
    try:
        return Policy.model_validate(read_toml(file))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigError(f"{file}: {explained(problem, Policy)}") from error


def check_order(policy: Policy, order: Order, plan: Plan, site: str) -> None:
    """Refuse what the policy does not allow, naming the rule; the plan has the known sites."""
    own = next(client for client in plan.federation.clients if client.name == site)
    _check_method(policy, order, plan)
    _check_model(policy, order, plan)
    if order.round > plan.training.rounds:
        raise Forbidden(f"round {order.round} of {plan.training.rounds}: the run is over")
    if order.kind == "train" and order.round < 1:
        raise Forbidden(f"round {order.round} to train: the first one is round 1")
    _check_samples(policy, plan, own)
    if order.members:
        _bounded(policy, "min_sites", plan.clients_a_round, "sites a round")
    _check_steps(policy, plan, own)
    _check_update(policy, order, plan, own)  # counts steps one by one, so not before their limit


def check_rounds(policy: Policy, job: Job) -> None:
    """Refuse a run of more rounds than the policy allows."""
    _bounded(policy, "max_rounds", job.setting.experiment.training.total_rounds, "rounds")


def check_runs(policy: Policy, root: Path, run: Path) -> None:
    """Refuse one run more than the policy allows."""
    others = [path.parent for path in root.glob("*/config.toml") if path.parent != run]
    _bounded(policy, "max_runs", len(others) + 1, "runs")


def _check_method(policy: Policy, order: Order, plan: Plan) -> None:
    written = ["+".join(pieces_of(spec)) for spec in order.experiment.get("methods", [])]
    if plan.method.name not in written:
        raise Forbidden(f"method {plan.method.name} is not in the experiment's list")
    if order.seed not in checked(order.experiment, "the server's configuration").seeds:
        raise Forbidden(f"seed {order.seed} is not in the experiment's list")
    found = {piece.partition("(")[0].strip() for piece in pieces_of(order.method)}
    known = registry.names(fedbn.methods)  # other pieces are parts; `--trust` decides of own code
    for name in sorted(found.intersection(known).difference(policy.methods)):
        raise _forbidden(f"method {name}", f"methods = {policy.methods}")


def _check_model(policy: Policy, order: Order, plan: Plan) -> None:
    name = order.experiment.get("model", {}).get("name") or suggested_for(plan.federation)
    found = schema_hash(entries(plan.initial_model))
    by_hash = [one for one in policy.models if len(one) >= _SHORTEST_HASH]
    if ":" in name or name in policy.models or any(found.startswith(one) for one in by_hash):
        return
    raise _forbidden(f"model {name} ({found[:16]})", f"models = {policy.models}")


def _check_samples(policy: Policy, plan: Plan, own: Client) -> None:
    """Refuse batches and updates of few samples."""
    sizes = plan.training.sizes(len(own.train))[: plan.steps(own)]
    _bounded(policy, "min_batch", sizes[0], "samples a batch")
    if sizes[-1] < policy.min_batch:
        rest = f"{sizes[-1]:,} samples in the last batch of a pass"
        raise _forbidden(
            rest,
            f"min_batch = {policy.min_batch:,}; training.last_batch = 'merge' joins them to the "
            "batch before",
        )
    _bounded(policy, "min_samples", sum(sizes), "samples behind an update")


def _check_update(policy: Policy, order: Order, plan: Plan, own: Client) -> None:
    """Refuse what lets one batch, or one class, stand out in an update."""
    if not policy.bound_updates:
        return
    if key := next(undecided(order.experiment), None):
        raise _forbidden(f"{key}, a key that it has no decision for", "bound_updates = true")
    if reason := class_weight_fault(plan, own, policy.max_class_weight):
        # "balanced" weighs by the site's own counts. A server that holds out other samples with
        # every seed would read labels out of the refusals.
        balanced = order.experiment.get("task", {}).get("class_weights") == "balanced"
        kind = ForbiddenByLabels if balanced else Forbidden
        raise kind(f"the site's policy forbids {reason}")
    round = order.round if order.kind == "train" else 0
    if reason := next(forbidden(plan, own, policy.optimizers, round), None):
        raise Forbidden(f"the site's policy forbids {reason}")


def _check_steps(policy: Policy, plan: Plan, own: Client) -> None:
    """Refuse a round that is too long; where another site's size asks for it, name that site."""
    training, steps = plan.training, _steps(plan, own)
    most = policy.max_steps or _EPOCHS * len(training.sizes(len(own.train)))
    if steps <= most:
        return
    largest = max(plan.federation.clients, key=lambda client: len(client.train))
    asks = training.unequal == "repeat" and training.local_steps is None
    why = f", because {largest.name} says it has {len(largest.train):,} samples" if asks else ""
    raise _forbidden(f"{steps:,} batches a round{why}", f"max_steps = {most:,}")


def _steps(plan: Plan, own: Client) -> int:
    """Count a round's batches: a rule may train twice, and rules wrap each other.

    Trainings are counted by their epochs, because rules that wrap each other double them.
    """
    trainings: Counter[int | None] = Counter({None: 1})
    for rule in plan.method.rules:
        if rule.several:
            asked = [(getattr(rule, "epochs", None) or e, n) for e, n in trainings.items()]
            for epochs, count in asked:
                trainings[epochs] += count
    return sum(count * plan.steps(own, epochs) for epochs, count in trainings.items())


def _bounded(policy: Policy, rule: str, found: int, what: str) -> None:
    """Hold a number to the rule of that name, the least or the most."""
    limit = getattr(policy, rule)
    if found < limit if rule.startswith("min") else found > limit:
        raise _forbidden(f"{found:,} {what}", f"{rule} = {limit:,}")


def _forbidden(what: str, rule: str) -> Forbidden:
    return Forbidden(f"the site's policy forbids {what} ({rule})")
