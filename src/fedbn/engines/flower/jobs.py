"""Plans where no machine has all the data: a stand-in for every site but one's own.

The only module of this package that knows about configurations. A stand-in has a site's name, its
domain and its number of samples, and no samples: the core counts steps and weights by it as it does
by real data.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.plan import Plan
from fedbn.engines.flower.wire import Member, Order
from fedbn.errors import ConfigError
from fedbn.experiments.loading import checked
from fedbn.experiments.plans import training_of
from fedbn.experiments.settings import Job, Setting
from fedbn.experiments.sources import model_builder
from fedbn.methods import parse_method


def job_of(order: Order) -> Job:
    """Read the job that an order is about."""
    experiment = checked(order.experiment, "the server's configuration")
    method = parse_method(order.method, {"mu": experiment.method.mu})
    return Job(method, Setting(order.setting, experiment), order.seed)


def check_job(job: Job) -> None:
    """Refuse what cannot run where data stays at the sites."""
    if job.method.pooled:
        raise ConfigError(
            f"method {job.method.name} brings all data together; in a federation of machines data "
            "stays at its site: choose fedbn, fedavg, fedprox, silobn or singleset"
        )


def plan_of(job: Job, federation: Federation) -> Plan:
    """Make a plan for a federation that is already split into training and validation data."""
    check_job(job)
    experiment = job.setting.experiment
    plan = Plan(
        method=job.method,
        federation=federation,
        model=model_builder(experiment.model, federation),
        training=training_of(experiment.training),
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
