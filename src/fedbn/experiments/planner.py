"""From a job to a plan: everything loaded, everything checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from fedbn.core.engine import one_torch_thread
from fedbn.core.federation import Federation, Split
from fedbn.core.findings import Detail, check_federation
from fedbn.core.plan import Plan, named, remarks
from fedbn.core.randomness import with_validation
from fedbn.core.training import Training
from fedbn.data.python_data import augmented_validation
from fedbn.errors import ConfigError, unknown
from fedbn.experiments import sources
from fedbn.experiments.column_scales import scale_warning
from fedbn.experiments.configuration import with_absolute_paths
from fedbn.experiments.jobs import Job, axes
from fedbn.experiments.schema import DataSection, Experiment, TrainingSection
from fedbn.experiments.shared_data import share, shared
from fedbn.fast.stacked_training import unbatchable, unknown_rules
from fedbn.runs.messages import Level
from fedbn.tasks.making import TaskChoice

_WORTH_STACKING = 10
_MANY = 1000  # clients
OF_DATA = " of data "
_SAMPLED = Detail(
    "Datasets are read a batch at a time. Their length and 64 samples of each tell whether they "
    "changed"
)
EngineName = Literal["plain", "batched"]


class Planner:
    """Makes the plans of an experiment; data that several jobs use is loaded once.

    What is given as an object takes the place of what the configuration names.
    """

    def __init__(
        self,
        federation: Federation | None = None,
        make_model: Callable[..., nn.Module] | None = None,
        task: TaskChoice | None = None,
    ):
        self.warnings: list[str] = []
        self.information: set[str] = set()  # those of `warnings` that ask nobody to do anything
        self._newest: tuple[Job, Plan] | None = None  # not more: each plan holds a model
        self._data: dict[str, Federation] = {}
        self._given = federation
        self._make_model = make_model
        self._task = task

    @one_torch_thread()  # some ways to draw first weights depend on the threads
    def plan(self, job: Job) -> Plan:
        """Make a job's plan and check it, once where it is asked for several times in a row."""
        if self._newest is None or self._newest[0] is not job:
            self._newest = None  # before another model is made
            self._newest = (job, self._planned(job))
        plan = self._newest[1]
        asked = job.setting.experiment.engine
        engine = _engine(asked, plan)
        if asked == "auto" and _worth_stacking(plan) and (why := unknown_rules(plan)):
            said = Detail(f"clients train one by one: {why}")
            if unbatchable(plan) == why and said not in self.warnings:
                self.warnings.append(said)
        return plan if engine == plan.engine else replace(plan, engine=engine)

    def _planned(self, job: Job) -> Plan:
        experiment = job.setting.experiment
        federation, share = self.federation(experiment), experiment.evaluation.validation
        if share:
            federation = with_validation(federation, share, job.seed)
            _check_validation(federation, share)
        if experiment.evaluation.report == "best":
            check_choosing(share, [c.name for c in federation.clients if c.valid is None])
        least, count = experiment.training.min_clients, len(federation.clients)
        if least > count:
            raise ConfigError(
                f"training.min_clients = {least}: {federation.name} has {count} clients"
            )
        plan = plan_of(job, federation, self._make_model, task=self._task, evaluates=True)
        if plan.clients_a_round < plan.updates_needed:  # sites of a federation may come later
            raise ConfigError(
                f"{plan.method.name} needs at least {plan.updates_needed} clients a round, "
                f"there are {plan.clients_a_round}"
            )
        named = sources.named_files(experiment.model.weights, experiment.model)
        self.information.update(named)
        if not plan.score_all and experiment.evaluation.clients is None:
            text = f"{count:,} clients: those that take part are scored, all at the end"
            self.information.add(text)
            named.append(text)
        suggested = experiment.model.name or sources.suggested_for(federation)
        network = job.method.baseline is None and self._make_model is None
        if suggested == "mlp" and network:
            named += filter(None, [scale_warning(federation)])
        self.warnings += [t for t in [*named, *remarks(plan)] if t not in self.warnings]
        return plan

    def federation(self, experiment: Experiment) -> Federation:
        """Load the data of an experiment, once for equal sections and tasks."""
        section, task = experiment.data, sources.named_task(experiment.task, self._task)
        key = _key(section, task)
        if key not in self._data:
            found = self._given or sources.load_federation(section, task=task)
            files = sources.named_files(section.path, section)
            recognized = sources.data_name(section)[1]
            self.information.update(filter(None, [recognized, *files]))
            said = [recognized, *files, *found.remarks]
            if self._given is not None and _is_lazy(found):
                said.append(_SAMPLED)
                said += augmented_validation(found) if experiment.evaluation.validation else []
            self.warnings += [text for text in [*said, *check_federation(found)] if text]
            self._data[key] = found
        return self._data[key]

    def level(self, text: str) -> Level:
        """Return how a message of `warnings` is told."""
        if isinstance(text, Detail):
            return "debug"
        return "info" if text in self.information else "warning"

    def shared(self, todo: Sequence[Job]) -> int | None:
        """Move the data of some jobs to memory that other processes map; gives its descriptor."""
        experiments = {job.setting.name: job.setting.experiment for job in todo}
        descriptor = share({name: self.federation(one) for name, one in experiments.items()})
        if descriptor is not None:
            self._newest = None  # which holds the data where it was
            self.take(descriptor, todo)
        return descriptor

    def take(self, descriptor: int, todo: Sequence[Job]) -> None:
        """Take the data of some jobs, checked before, from where it is shared."""
        found = shared(descriptor)
        for job in todo:
            if one := found.get(job.setting.name):
                experiment = job.setting.experiment
                task = sources.named_task(experiment.task, self._task)
                key = _key(experiment.data, task)
                self._data[key] = replace(self._data.get(key, one), clients=one.clients)

    def fingerprint(self) -> dict[str, str]:
        """Hash every client's data, of all the data that was loaded."""
        marked = zip(data_marks(self._data).values(), self._data.values(), strict=True)
        return {f"{c}{mark}": h for mark, one in marked for c, h in one.fingerprint().items()}


def _key(section: DataSection, task: str | None) -> str:
    """Return what tells the data of settings apart."""
    return f"{section.model_dump_json()}{task or ''}"


def data_marks(sections: Iterable[str]) -> dict[str, str]:
    """What tells the clients of a run's data sets apart, in the order in which they are swept."""
    found = dict.fromkeys(sections)
    return {one: f"{OF_DATA}{i}" if len(found) > 1 else "" for i, one in enumerate(found, 1)}


def plan_of(
    job: Job,
    federation: Federation,
    make_model: Callable[..., nn.Module] | None = None,
    device: str | None = None,
    task: TaskChoice | None = None,
    evaluates: bool = False,
) -> Plan:
    """Make and check a job's plan for data that is split into training and validation already.

    What is given takes the place of what the configuration names; who trains nothing needs no GPU.
    Only a plan that `evaluates` scores clients with other statistics than running ones.
    """
    experiment, pooled = job.setting.experiment, job.method.pooled
    chosen = {} if device is None else {"device": device}
    training = training_of(experiment.training.model_copy(update=chosen))
    plan = Plan(
        method=job.method,
        federation=federation.pooled() if pooled else federation,
        model=sources.model_builder(experiment.model, federation, make_model),
        training=replace(training, min_clients=1) if pooled else training,  # pooled: one client
        seed=job.seed,
        setting=job.setting.name,
        evaluate_every=experiment.evaluation.every,
        score_all=scores_all(experiment, len(federation.clients)),
        score_train=experiment.evaluation.train,
        task=sources.task_of(experiment, federation, task),
    )
    if evaluates:
        final = experiment.evaluation.final_statistics
        plan = replace(
            plan,
            statistics=tuple(experiment.evaluation.statistics),
            final_statistics=None if final == "auto" else tuple(final),
        )
    plan.check(experiment.method.allow_no_batchnorm)
    return plan


def scores_all(experiment: Experiment, clients: int) -> bool:
    """Whether clients that rest are scored: of many not, unless rounds are compared by scores."""
    evaluation = experiment.evaluation
    chooses = evaluation.report == "best" or isinstance(experiment.method.mu, list)
    few = evaluation.clients is None and clients <= _MANY
    return chooses or few or evaluation.clients == "all"


def _engine(asked: str, plan: Plan) -> EngineName:
    """Choose the engine: stacks pay from about ten clients on, where the model can be stacked.

    Left to us, only with SGD: adaptive optimisers blow rounding differences up (the gradient of a
    bias before BatchNorm is nothing but rounding), so that both engines drift apart.
    """
    worth = _worth_stacking(plan)
    lazy = _is_lazy(plan.federation)
    alone = plan.method.pooled or plan.method.baseline is not None
    if asked == "plain" or alone or (asked == "auto" and (lazy or not worth)):
        return "plain"
    reason = "the data is not in memory" if lazy else unbatchable(plan)
    if reason and asked == "batched":
        raise ConfigError(f"engine = 'batched': {reason}; 'plain' and 'auto' work")
    return "plain" if reason else "batched"


def _is_lazy(federation: Federation) -> bool:
    """True if samples are read when they are needed."""
    return any(not isinstance(client.train, Split) for client in federation.clients)


def _worth_stacking(plan: Plan) -> bool:
    return len(plan.federation.clients) >= _WORTH_STACKING and plan.training.optimizer == "SGD"


def training_of(section: TrainingSection) -> Training:
    """Turn the `[training]` section into what the core takes."""
    values: dict[str, Any] = section.model_dump(exclude={"epochs"})
    values["rounds"] = section.total_rounds
    values["batch_size"] = None if section.batch_size == "full" else section.batch_size
    values["optimizer"] = _optimizer(section)
    values["device"] = device = device_of(section)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device != "cpu" and int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(f"training.device = {device!r}: {count} CUDA device(s) here; 'cpu' works")
    made = Training(**values)
    made.in_round(1)  # a schedule that cannot be is refused here
    return made


def device_of(section: TrainingSection) -> str:
    """The device that is meant: `auto` is the first GPU where there is one."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return found if section.device == "auto" else section.device


def resolved(experiment: Experiment, federation: Federation) -> dict[str, Any]:
    """Write a configuration out in full: all defaults, absolute paths, the names chosen."""
    raw = experiment.model_dump(exclude_none=True, exclude={"quick", "reproduce"})
    varied = axes(experiment)
    if not any(key.startswith("data.") for key in varied):  # else each setting has its own
        raw["data"] = {**federation.settled, **raw["data"]}
        raw["data"].setdefault("name", sources.data_name(experiment.data)[0])
        raw["model"].setdefault("name", sources.suggested_for(federation))
    for given, other in (("local_steps", "local_epochs"), ("epochs", "rounds")):
        if getattr(experiment.training, given) is not None or f"training.{given}" in varied:
            del raw["training"][other]
    return with_absolute_paths({key: value for key, value in raw.items() if value != {}})


def check_choosing(share: float, without: Sequence[str]) -> None:
    """Refuse to choose a round where clients hold nothing to choose by."""
    if not share and without:
        raise ConfigError(
            "evaluation.report = 'best' and training.patience choose on validation data, and "
            f"{named(without)} brought none: set evaluation.validation, for example to 0.2"
        )


def _check_validation(federation: Federation, share: float) -> None:
    for client in federation.clients:
        rest, held = len(client.train), len(client.valid) if client.valid is not None else 0
        if not held or rest < 2:
            raise ConfigError(
                f"evaluation.validation = {share}: of {rest + held} training samples, client "
                f"{client.name} would hold out {held} and train on {rest}; legal are shares that "
                "hold out 1 and leave 2"
            )


def _optimizer(section: TrainingSection) -> str:
    known = {
        name.lower(): name
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer)
        if name not in ("Optimizer", "LBFGS", "SparseAdam")  # not of dense batches
    }
    if (name := known.get(section.optimizer.lower())) is None:
        said = unknown("optimizer", section.optimizer, known.values())
        raise ConfigError(f"training.optimizer: {said}")
    build = getattr(torch.optim, name)
    legal = [p for p in inspect.signature(build).parameters if p not in ("params", "lr")]
    for key in section.optimizer_args:
        if key not in legal:
            raise ConfigError(f"training.optimizer_args: {unknown('argument', key, legal)}")
    if name == "SGD" and not section.optimizer_args:
        return name
    try:
        build([torch.nn.Parameter(torch.zeros(1))], lr=section.lr, **section.optimizer_args)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ConfigError(f"training.optimizer_args: {error}") from error
    return name
