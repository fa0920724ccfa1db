"""The configuration: every key, its type, its range and its default.

The same keys serve TOML files, `--set key=value` and `fedbn.fit`. `fedbn schema` prints this as a
JSON schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.core.training import Training
from fedbn.registry import UNKNOWN, Held


@dataclass(frozen=True)
class Named:
    """Marks a key whose text names code: a registered name, or module:callable.

    `registry.find` must look up the value of every such key. `name_keys` lists them.
    """

    what: str  # what is named, for messages


StandardTask = Literal["classification", "multilabel", "regression", "segmentation"]


def _count_or(word: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value == word or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        raise ValueError(f"legal are whole numbers >= 1, or '{word}'")

    return check


def _normalize(value: Any) -> Any:
    """Constants: a mean and a deviation by channel of pictures, by feature of all else."""
    numbers = [n for part in value if isinstance(part, list) for n in part]
    numeric = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
    if value in ("none", "numeric", "site") or (
        numeric and len(value) == 2 and len(value[0]) * 2 == len(numbers) and min(value[1]) > 0
    ):
        return value
    raise ValueError("legal are 'none', 'numeric', 'site' and [[means], [deviations > 0]]")


def _mu(value: Any) -> Any:
    for number in value if isinstance(value, list) and value else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9:
            raise ValueError("legal are finite numbers >= 0, or a list of them to choose from")
    return value


class Section(BaseModel):
    """A part of the configuration; knows its keys and admits no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    _held: Held = PrivateAttr(UNKNOWN)

    def model_post_init(self, context: Any) -> None:
        """Keep which file the names stand in; the validation's context says so."""
        self._held = context or UNKNOWN

    @property
    def held(self) -> Held:
        """The source of the names in this section."""
        return self._held


_DEFAULT = Training()


class TrainingSection(Section):
    """`[training]`: how clients train and how rounds are made of it."""

    rounds: int = Field(_DEFAULT.rounds, ge=1, le=1_000_000, description="communication rounds")
    epochs: int | None = Field(
        None, ge=1, le=1_000_000, description="epochs in all, the paper's T, in place of rounds"
    )
    local_epochs: int = Field(
        _DEFAULT.local_epochs, ge=1, le=100_000, description="passes a round, the paper's E"
    )
    local_steps: int | None = Field(
        _DEFAULT.local_steps, ge=1, description="batches a round, in place of epochs"
    )
    batch_size: Annotated[int | Literal["full"], BeforeValidator(_count_or("full"))] = Field(
        _DEFAULT.batch_size or "full", description="samples a batch, the paper's B, or 'full'"
    )
    last_batch: Literal["keep", "merge", "drop"] = Field(
        _DEFAULT.last_batch,
        description="samples left over after a pass: joined to the batch before, kept, or left out",
    )
    optimizer: str = Field(_DEFAULT.optimizer, description="name of a class in torch.optim")
    optimizer_args: dict[str, Any] = Field(
        dict(_DEFAULT.optimizer_args), description="its arguments beside lr"
    )
    lr: float = Field(_DEFAULT.lr, gt=0, description="learning rate of the clients")
    unequal: Literal["own", "repeat"] = Field(
        _DEFAULT.unequal,
        description="clients of unequal size: train on what they have, or repeat samples",
    )
    weighting: Literal["uniform", "examples"] = Field(
        _DEFAULT.weighting, description="weight in a mean"
    )
    max_share: float = Field(
        _DEFAULT.max_share, gt=0, le=1, description="most of the weights one client may have"
    )
    participation: float = Field(
        _DEFAULT.participation, gt=0, le=1, description="share of clients a round"
    )
    min_clients: int = Field(
        _DEFAULT.min_clients, ge=1, description="fewer usable updates end the run"
    )
    device: str = Field(
        _DEFAULT.device,
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="cpu, cuda, cuda:N, or auto",
    )
    schedule: str | None = Field(
        _DEFAULT.schedule,
        description="name of a class in torch.optim.lr_scheduler; a step is a round",
    )
    schedule_args: dict[str, Any] = Field(dict(_DEFAULT.schedule_args), description="its arguments")
    clip_norm: float | None = Field(
        _DEFAULT.clip_norm, gt=0, description="the longest that a gradient may be"
    )
    amp: Literal["bfloat16"] | None = Field(
        _DEFAULT.amp, description="mixed precision while training"
    )
    patience: int | None = Field(
        _DEFAULT.patience,
        ge=1,
        description="rounds without a better validation score that end the run",
    )
    fast: bool = Field(_DEFAULT.fast, description="false leaves out all that is for speed alone")

    @model_validator(mode="after")
    def _one_length(self) -> TrainingSection:
        if self.local_steps is not None and "local_epochs" in self.model_fields_set:
            raise ValueError("local_epochs and local_steps exclude each other; give one")
        if self.epochs is not None:
            for other in ("rounds", "local_steps"):
                if other in self.model_fields_set and getattr(self, other) is not None:
                    raise ValueError(f"epochs and {other} exclude each other; give one")
        if self.schedule_args and self.schedule is None:
            raise ValueError("schedule_args without a schedule; give training.schedule")
        return self

    @property
    def total_rounds(self) -> int:
        """The communication rounds: ⌈T/E⌉ where epochs are given.

        Examples:
            >>> TrainingSection(epochs=300, local_epochs=16).total_rounds
            19
        """
        return self.rounds if self.epochs is None else math.ceil(self.epochs / self.local_epochs)


class MethodSection(Section):
    """`[method]`: values for the methods."""

    mu: Annotated[float | list[float], BeforeValidator(_mu)] = Field(
        0.01, description="FedProx's mu; a list is a grid, chosen from on validation data"
    )
    allow_no_batchnorm: bool = Field(
        False, description="let FedBN or SiloBN run on a model without BatchNorm, as FedAvg"
    )


class ColumnSection(Section):
    """`[[data.contract.columns]]`: one column of every site's table."""

    name: str = Field(description="as it stands in the header")
    values: list[str] | None = Field(None, min_length=1, description="categories; none: a number")
    unit: str = Field("", description="for people")
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="legal numbers: the lowest and the highest"
    )


class ContractSection(Section):
    """`[data.contract]`: what the data of all sites has in common; each is read by it."""

    task: StandardTask | None = Field(None, description="what the data of all sites is for")
    classes: list[str] = Field(min_length=1, description="the classes, in their order")
    label: str | None = Field(None, description="the column of classes, unless a site says another")
    missing: Literal["error", "mean"] = Field("error", description="empty cells of tables")
    columns: list[ColumnSection] = Field([], description="the features of tables, in their order")
    size: int | None = Field(None, ge=4, le=4096, description="side of pictures, in pixels")
    depth: int | None = Field(None, ge=255, description="largest value of 16-bit pictures")
    channels: Literal[1, 3] | None = Field(None, description="of pictures: 1 for grey, else 3")
    normalize: Annotated[Any, BeforeValidator(_normalize)] = Field(
        "none",
        description="by each site's own training data: 'numeric', columns of numbers, or 'site', "
        "every feature or channel; or [[means], [deviations]]",
    )
    shape: list[int] | None = Field(None, min_length=1, description="of a sample")
    dtype: Literal["uint8", "float32"] | None = Field(
        None, description="of samples: uint8 is scaled to −1 to 1, floats are taken as they are"
    )
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="legal values of samples: the lowest and the highest"
    )


class DataSection(Section):
    """`[data]`: which data; further keys are the data set's own options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    name: Annotated[str | None, Named("data set")] = Field(
        None, description="a registered data set, or module:callable"
    )
    path: str | None = Field(None, description="a folder or file of your own")
    contract: ContractSection | None = Field(None, description="what all sites' data is read by")
    partition: str | None = Field(
        None, description="deal all samples into clients: iid, dirichlet(a) or shards(k)"
    )
    clients: int | None = Field(None, ge=1, description="into how many; 10 unless given")

    @model_validator(mode="after")
    def _dealt(self) -> DataSection:
        if self.clients is not None and self.partition is None:
            raise ValueError("clients says into how many data is dealt; set partition too")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The data set's own options."""
        own = dict(self.__pydantic_extra__ or {})
        return own if self.path is None else {"path": self.path, **own}


class ModelSection(Section):
    """`[model]`: which model."""

    name: Annotated[str | None, Named("model")] = Field(
        None, description="a registered model, or module:callable"
    )
    args: dict[str, Any] = Field({}, description="arguments of the model")
    weights: str | None = Field(None, description="a safetensors file to start from")
    fresh: list[str] = Field([], description="patterns of entries that do not start from weights")
    transform: Literal["none", "groupnorm"] = Field(
        "none", description="groupnorm: no BatchNorm at all, GroupNorm in its place"
    )


class TaskSection(Section):
    """`[task]`: what models learn; the data's targets decide unless it is named."""

    name: Annotated[str | None, Named("task")] = Field(
        None, description="a registered task, or module:callable"
    )
    loss: Annotated[str | None, Named("loss")] = Field(
        None, description="a loss by name, or module:callable"
    )
    metrics: Annotated[list[str] | None, Named("metric")] = Field(
        None, min_length=1, description="metrics by name, or module:callable; the first decides"
    )
    class_weights: Literal["balanced"] | list[float] | None = Field(
        None, description="'balanced' by each client's own counts, or a number a class"
    )


class EvaluationSection(Section):
    """`[evaluation]`: when and on what clients are scored."""

    every: int = Field(1, ge=1, description="score every so many rounds, and at the end")
    clients: Literal["all", "taking part"] | None = Field(
        None, description="whom; at the end all. Unless given, all up to 1,000 clients"
    )
    train: bool = Field(True, description="score training data too, beside the loss seen on it")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of training data held out for choosing"
    )
    report: Literal["last", "best"] = Field(
        "last", description="show the last round, or the best one on validation data"
    )
    statistics: list[StatisticsKind] = Field(
        ["running"],
        min_length=1,
        description="BatchNorm statistics that clients are scored with in every scored round",
    )
    final_statistics: list[StatisticsKind] | Literal["auto"] = Field(
        "auto",
        description="the same for the reported round; [] for none. 'auto': running, local, and "
        "exact (batch where exact would cost over 5 % of the run)",
    )
    metrics: Annotated[list[str], Named("metric")] = Field(
        [], description="metrics by name, or module:callable, beside those of the task"
    )

    @model_validator(mode="after")
    def _kinds_fit(self) -> EvaluationSection:
        if "running" not in self.statistics:
            raise ValueError(
                f"statistics: expected 'running' among them, because scores with running "
                f"statistics choose the best round; got {self.statistics}"
            )
        for key in ("statistics", "final_statistics"):
            kinds = getattr(self, key)
            if kinds != "auto" and len(set(kinds)) < len(kinds):
                raise ValueError(f"{key}: {kinds} names one twice")
        return self


class CheckpointSection(Section):
    """`[checkpoint]`: how often finished rounds are put on disk."""

    every: Annotated[int | Literal["auto"], BeforeValidator(_count_or("auto"))] = Field(
        "auto", description="so many rounds, or 'auto': as often as 5 % of the time allows"
    )


class CostSection(Section):
    """`[reproduce.cost]`: about how long it takes on two cores."""

    quick: str = Field("", description="at quick scale")
    paper: str = Field("", description="at the paper's scale")


class ReproduceSection(Section):
    """`[reproduce]`: how `fedbn reproduce` shows an experiment of the paper."""

    place: str = Field("", description="where in the paper")
    by: str = Field("trained", description="which item of the paper does it")
    paper: list[str] = Field([], description="tables of the paper's numbers to compare with")
    figures: list[Literal["loss", "curves", "against", "bars"]] = Field(
        [], description="kinds of pictures"
    )
    against: str | None = Field(None, description="the swept key on the axis of `against`")
    needs: list[str] = Field([], description="data sets it needs beside data.name")
    without: dict[str, dict[str, Any]] = Field(
        {}, description="what changes where a data set, or 'originals', is not there"
    )
    cost: CostSection = CostSection()
    options: dict[str, Any] = Field({}, description="what only its module knows")


def with_earlier_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the defaults of the version that wrote it.

    A run writes every key and `format` to its configuration. A file with `format` but without
    `training.last_batch` was written before this key existed. Such a run kept its last batches.
    In the same way a run from before `evaluation.final_statistics` has no second evaluation.

    Examples:
        >>> with_earlier_defaults({"format": 1, "training": {"lr": 0.1}})["training"]
        {'last_batch': 'keep', 'lr': 0.1}
        >>> with_earlier_defaults({"format": 1})["evaluation"]
        {'final_statistics': []}
        >>> with_earlier_defaults({"training": {"lr": 0.1}})["training"]
        {'lr': 0.1}
    """
    if "format" not in raw:
        return dict(raw)
    earlier: dict[str, dict[str, Any]] = {
        "training": {"last_batch": "keep"},
        "evaluation": {"final_statistics": []},
    }
    found = dict(raw)
    for section, defaults in earlier.items():
        given = raw.get(section, {})
        if isinstance(given, Mapping) and (section in raw or section == "evaluation"):
            found[section] = {**defaults, **given}
    return found


class Experiment(Section):
    """A whole configuration."""

    format: Literal[1] = Field(1, description="version of this schema")
    methods: Annotated[list[str], Named("method")] = Field(
        ["singleset", "fedavg", "fedprox", "fedbn"], min_length=1, description="what to compare"
    )
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(
        [0, 1, 2], min_length=1, description="one run each"
    )
    engine: Literal["auto", "plain", "batched"] = Field(
        "auto", description="plain; or batched, which stacks small dense models of many clients"
    )
    workers: int = Field(
        0, ge=0, le=1024, description="cores to use; 0 for all; never changes results"
    )
    training: TrainingSection = TrainingSection()
    method: MethodSection = MethodSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    task: TaskSection = TaskSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    sweep: dict[str, Any] = Field({}, description="key = [values]: one setting a combination")
    quick: dict[str, Any] = Field({}, description="what --scale quick changes")
    reproduce: ReproduceSection | None = Field(None, description="how fedbn reproduce shows it")

    @model_validator(mode="before")
    @classmethod
    def _read_earlier_defaults(cls, raw: Any) -> Any:
        """Read the configuration of an earlier run with the defaults that it was run with."""
        return with_earlier_defaults(raw) if isinstance(raw, dict) else raw

    @model_validator(mode="before")
    @classmethod
    def _patience_gives_the_best(cls, raw: Any) -> Any:
        """A run that ends by `training.patience` gives its best round, and says so."""
        training, evaluation = (
            raw.get(name) or {} if isinstance(raw, dict) else {}
            for name in ("training", "evaluation")
        )
        both = isinstance(training, dict) and isinstance(evaluation, dict)
        if not both or training.get("patience") is None:
            return raw
        if evaluation.get("report", "best") == "last":
            raise ValueError(
                "training.patience gives the best round: evaluation.report = 'last' excludes it"
            )
        return {**raw, "evaluation": {**evaluation, "report": "best"}}

    @model_validator(mode="after")
    def _keys_agree(self) -> Experiment:
        agreed = self.data.contract.task if self.data.contract else None
        if agreed and self.task.name in get_args(StandardTask) and self.task.name != agreed:
            raise ValueError(f"task.name = {self.task.name!r}: data.contract.task is {agreed!r}")
        grid = isinstance(self.method.mu, list)
        if grid and not self.evaluation.validation:
            raise ValueError(
                "a list for method.mu chooses on validation data: "
                "set evaluation.validation, for example to 0.2"
            )
        if (grid or self.evaluation.report == "best") and self.evaluation.clients == "taking part":
            raise ValueError(
                "evaluation.clients = 'taking part' excludes choosing on validation data, which "
                "compares rounds of the same clients"
            )
        for name, values in (("methods", self.methods), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: {values} names one twice")
        return self


def name_keys(section: type[BaseModel] = Experiment, above: str = "") -> dict[str, str]:
    """Return what is named by each key that names code, for example `model` by `model.name`.

    Examples:
        >>> name_keys()["task.loss"]
        'loss'
    """
    found: dict[str, str] = {}
    for key, field in section.model_fields.items():
        found |= {f"{above}{key}": one.what for one in field.metadata if isinstance(one, Named)}
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= name_keys(kind, f"{above}{key}.")
    return found
