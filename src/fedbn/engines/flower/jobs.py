"""Plans where no machine has all the data: a stand-in for every site but one's own.

The only module of this package that knows about configurations. A stand-in has a site's name, its
domain and its number of samples, and no samples: the core counts steps and weights by it as it does
by real data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fedbn._version import __version__
from fedbn.core.federation import Client, Federation, Split
from fedbn.core.plan import Plan
from fedbn.engines.flower.wire import Member, Order
from fedbn.errors import ConfigError
from fedbn.experiments.loading import checked
from fedbn.experiments.plans import training_of
from fedbn.experiments.settings import Job, Setting
from fedbn.experiments.sources import model_builder
from fedbn.methods import parse_method
from fedbn.registry import Held


def order_of(job: Job, federation: str, run: str) -> Order:
    """What all orders of a job have in common; the data is each site's own."""
    training = job.setting.experiment.training
    raw = job.setting.experiment.model_dump(exclude_none=True, exclude={"quick", "reproduce"})
    raw["training"].pop("epochs", None)
    raw["training"]["rounds"] = training.total_rounds
    if training.local_steps is not None:
        del raw["training"]["local_epochs"]
    method, setting, seed = job.key
    return Order(
        kind="hello",
        federation=federation,
        run=run,
        method=method,
        setting=setting,
        seed=seed,
        experiment={**raw, "data": {}, "sweep": {}},
        version=__version__,
        weights=weights_hash(job),
    )


def job_of(order: Order, device: str | None = None, weights: Path | None = None) -> Job:
    """Read the job that an order is about; the device and the place of files are a site's own."""
    raw: dict[str, Any] = dict(order.experiment)
    if device is not None:
        raw["training"] = {**raw.get("training", {}), "device": device}
    if weights is not None and "weights" in raw.get("model", {}):
        raw["model"] = {**raw["model"], "weights": str(weights)}
    held = Held("the server's configuration")
    experiment = checked(raw, held.file, held)
    method = parse_method(order.method, {"mu": experiment.method.mu}, held)
    job = Job(method, Setting(order.setting, experiment), order.seed)
    _check_weights(job, order)
    return job


def weights_hash(job: Job) -> str:
    """Hash the file that a job's model starts from; empty where there is none."""
    file = job.setting.experiment.model.weights
    if file is None:
        return ""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"model.weights {file}: {error.strerror}") from error


def _check_weights(job: Job, order: Order) -> None:
    """Refuse to start from other weights than the server's: BatchNorm starts from them here."""
    file = job.setting.experiment.model.weights
    if file is None:
        return
    if not Path(file).is_file():
        raise ConfigError(
            f"model.weights {file} is not at this site: bring the file here and join with "
            f"--weights FILE (its sha256: {order.weights[:16]})"
        )
    found = weights_hash(job)
    if found != order.weights:
        raise ConfigError(
            f"model.weights {file}: {found[:16]} at this site, {order.weights[:16]} at the server"
        )


def check_job(job: Job) -> None:
    """Refuse what cannot run where data stays at the sites."""
    if job.method.pooled:
        raise ConfigError(
            f"method {job.method.name} brings all data together; in a federation of machines data "
            "stays at its site: choose fedbn, fedavg, fedprox, silobn or singleset"
        )
    if job.setting.experiment.evaluation.report == "best":
        raise ConfigError(
            "evaluation.report = 'best': in a federation of machines a site uses its BatchNorm of "
            "the last round, so no other round's numbers are reported; legal is 'last'"
        )


def plan_of(job: Job, federation: Federation, device: str | None = None) -> Plan:
    """Make a plan for a federation that is already split into training and validation data.

    Args:
        job: What is run.
        federation: Whose data, or stand-ins for it.
        device: In place of the job's; the server trains nothing and needs no GPU.
    """
    check_job(job)
    experiment = job.setting.experiment
    training = experiment.training
    if device is not None:
        training = training.model_copy(update={"device": device})
    plan = Plan(
        method=job.method,
        federation=federation,
        model=model_builder(experiment.model, federation),
        training=training_of(training),
        seed=job.seed,
        setting=job.setting.name,
        evaluate_every=experiment.evaluation.every,
    )
    plan.check(experiment.method.allow_no_batchnorm)
    return plan


def federation_of(
    members: Iterable[Member],
    classes: tuple[str, ...],
    input_shape: tuple[int, ...],
    own: Client | None = None,
) -> Federation:
    """Make a federation of stand-ins, with one's own data where it is given."""
    clients = tuple(
        own if own is not None and member.name == own.name else _stand_in(member, input_shape)
        for member in members
    )
    return Federation("the sites' own data", clients, classes)


def _stand_in(member: Member, input_shape: tuple[int, ...]) -> Client:
    """A client of the right size that takes no memory: one zero, seen many times."""
    x = torch.zeros(()).expand(member.examples, *input_shape)
    y = torch.zeros((), dtype=torch.int64).expand(member.examples)
    return Client(member.name, member.domain, Split(x, y), {})
