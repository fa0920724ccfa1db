"""What server and sites say to each other: one JSON document a message, checked on both sides.

A state travels as one safetensors file inside one Flower array, because Flower sends every array of
a record by requests of its own. What arrives is measured before it is read, and then must have
exactly the names, shapes and dtypes of the layout: a BatchNorm tensor smuggled in is refused.

No machine has all the data: every site but one's own is a stand-in with its name, its domain and
its number of samples, by which the core counts steps and weights as it does by real data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import safetensors
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from safetensors.torch import load as from_bytes, save as to_bytes

from fedbn import __version__
from fedbn.core.federation import A_CLASS, Client, Federation, Target, blank_client
from fedbn.core.packing import Pack, StateLayout
from fedbn.errors import ConfigError, FedbnError, ModelError
from fedbn.experiments.configuration import checked
from fedbn.experiments.data_survey import SiteReport
from fedbn.experiments.environment import weights_hash
from fedbn.experiments.jobs import Job, Setting
from fedbn.experiments.planner import check_choosing
from fedbn.methods import parse_method
from fedbn.registry import Held
from fedbn.runs.folder import PLAIN_NAME
from fedbn.runs.metrics import of_sane_size
from fedbn.text import shown

_MAX_BYTES = 4_000_000
_MOST_KEYS = 10_000
_LONGEST_METHOD = 1000  # characters; a method's pieces are combined one by one
_MOST_STATES = 4  # an order has one; more are logged, and refused
_TEXT = "json"
_HASH = re.compile("[0-9a-f]{64}")
SHARED = "shared"
AFFINE = "affine"


class Unreadable(FedbnError):  # noqa: N818 - the name says what happened
    """A message that is not of the form agreed on."""


class NotYet(Unreadable):
    """What was asked may be done later: a person at the site has to approve it."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Name = Annotated[str, Field(pattern=rf"^{PLAIN_NAME}$")]
Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class _Logged(_Document):
    """What carries the newest hash of its sender's log into the other's."""

    log: Sha256 = ""


class Member(_Document):
    """A site as all others know it: enough to weigh it and count its steps, nothing of its data."""

    name: Name  # the site
    domain: str = Field(max_length=100)  # what its features come from
    examples: int = Field(ge=2, le=10**9, strict=True)  # training samples


SampleShape = Annotated[tuple[PositiveInt, ...], Field(max_length=8), AfterValidator(of_sane_size)]
ClassName = Annotated[str, Field(max_length=200)]
ClassNames = Annotated[tuple[ClassName, ...], Field(min_length=1, max_length=100_000)]
TargetType = Literal["bool", "uint8", "int64", "float32", "float64"]


class Order(_Logged):
    """What the server asks of a site."""

    # say what you are; say what your data is; train a round; score the state that is sent; the run
    # is over
    kind: Literal["hello", "report", "train", "score", "end"]
    federation: Name  # the federation's identity
    run: Name  # the run's name at the server
    method: str = Field(max_length=_LONGEST_METHOD)  # the method as one writes it
    setting: str = Field(max_length=_LONGEST_METHOD)  # the point of the sweep
    seed: int  # decides everything random
    experiment: dict[str, Any]  # the configuration; data is the site's own and not part of it
    version: str  # the server's fedbn
    round: int = 0  # the round to train, or whose end is scored
    since: int = 0  # the last round of this site that the server accepted; 0 for none
    joined: int = 0  # rounds that were done when the site came to the run; 0 where it was there
    schema_hash: Sha256 = ""  # what the model must be
    weights: Sha256 = ""  # of the file that the model starts from, its sha256; empty without one
    classes: tuple[str, ...] = ()  # the federation's classes
    input_shape: tuple[int, ...] = ()  # shape of one sample
    target: tuple[str, tuple[int, ...]] = A_CLASS  # type and shape of one target
    members: tuple[Member, ...] = ()  # all sites, in the order in which everything is summed
    scores: bool = False  # whether to score the state that is sent
    last: bool = False  # whether the run ends with this message
    best: int = 0  # the best round so far, where the best one is to be used; 0 for the last
    updates: int = 0  # how many updates the state that is sent contains; 0 before the first round
    session: str = Field("", max_length=64)  # the server's process; a resume has another one


class Score(_Document):
    """One number about a site's model."""

    domain: str = Field(max_length=100)
    split: Literal["train", "valid", "test"]
    metric: str = Field(max_length=50)
    value: float | None


class Hello(_Logged):
    """What a site is."""

    member: Member  # its name, domain and number of samples
    version: str = Field(max_length=50)  # its fedbn; all must have the same
    torch: str = Field(max_length=50)  # its torch, which may differ
    device: str = Field(max_length=50)  # what it trains on, which may differ
    schema_hash: str = Field(max_length=64)  # of its model
    experiment: Sha256  # what a person at the site approves, as a hash
    min_sites: int = Field(1, ge=1, le=10**6, strict=True)  # updates in a state, at least
    classes: ClassNames  # of its data
    input_shape: SampleShape  # of one of its samples
    # type and shape of one of its targets
    target: tuple[TargetType, SampleShape] = ("int64", ())

    @property
    def text(self) -> str:
        """What a person compares."""
        return (
            f"{self.member.name}: model {self.schema_hash[:16]}, {len(self.classes)} classes "
            f"{digest(self.classes)}, samples of shape {self.input_shape}, "
            f"{self.member.examples:,} to train with; experiment {self.experiment[:16]}; "
            f"fedbn {self.version}, torch {self.torch}, {self.device}"
        )


def digest(classes: Sequence[str]) -> str:
    """Hash a class list, order included."""
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()[:16]


class Answer(_Logged):
    """What a site says with its update."""

    round: int = Field(strict=True)  # the round it is about
    schema_hash: str = Field(max_length=64)  # of its model
    examples: int = Field(strict=True)  # training samples, as at the start
    loss: float | None = None  # the mean training loss, where it trained
    # where its local part came from: new, Flower's memory, its disk
    source: Literal["fresh", "state", "disk"]
    seconds: float = Field(ge=0)  # how long training and scoring took
    # the state that was sent, joined with its own local part, on its data
    scores: tuple[Score, ...] = Field((), max_length=1000)


class Sorry(_Logged):
    """Why a site does not do what was asked; `waiting` where it may do so later."""

    reason: str = Field(max_length=2000)
    waiting: bool = False


class Reported(_Logged):
    """What a site says of its data where there is no contract yet."""

    report: SiteReport


class Noted(_Logged):
    """A site heard that the run is over."""


Said = TypeVar("Said", bound=_Document)


def put(document: _Document, **arrays: ArrayRecord) -> RecordDict:
    """Make a message's content."""
    name = type(document).__name__.lower()
    text = document.model_dump_json()
    return RecordDict({name: ConfigRecord({_TEXT: text}), **arrays})


def get(content: RecordDict, expected: type[Said], *arrays: str) -> Said:
    """Read a message's content: exactly the document and the arrays that are expected."""
    name = expected.__name__.lower()
    if sorry := content.config_records.get("sorry"):
        said = _parsed(sorry, Sorry)
        raise (NotYet if said.waiting else Unreadable)(shown(said.reason))
    wanted, found = {name, *arrays}, set(content)
    if found != wanted:
        raise Unreadable(
            f"the message has {_listed(found)}, expected {_listed(wanted)}: nothing else may travel"
        )
    if name not in content.config_records or set(content.array_records) != set(arrays):
        raise Unreadable("the message's records are of the wrong type")
    return _parsed(content.config_records[name], expected)


def their_log(content: RecordDict) -> str:
    """The newest hash of the sender's log, where a message holds one; it is logged as it came."""
    for record in content.config_records.values():
        with suppress(ValueError, RecursionError, AttributeError):
            said = str(json.loads(str(record.get(_TEXT, ""))[:_MAX_BYTES]).get("log"))
            if _HASH.fullmatch(said):
                return said
    return ""


def about(content: RecordDict) -> dict[str, Any]:
    """What a log says of an order."""
    try:
        order = get(content, Order, *([SHARED] if SHARED in content else []))
    except FedbnError as error:
        return {"asked": f"unreadable: {error}"[:500]}
    named = {"run", "method", "seed", "round"} | ({"session"} if order.session else set())
    return {"asked": order.kind, **order.model_dump(include=named)}


def received_state(content: RecordDict) -> dict[str, str]:
    """Return what a site logs of the state in an order: its sha256, whatever comes of the order."""
    record = content.array_records.get(SHARED)
    arrays = [] if record is None else [*record.values()]
    digests = [hashlib.sha256(array.data).hexdigest() for array in arrays]
    return {"state": " ".join(digests[:_MOST_STATES])} if digests else {}


def what_is_in(content: RecordDict) -> dict[str, Any]:
    """What a log says of a message: bytes, and the names and the hash of what is in its arrays."""
    arrays = {
        name: {
            "entries": _keys(array.data[8 : 8 + int.from_bytes(array.data[:8], "little")]),
            "sha256": hashlib.sha256(array.data).hexdigest(),
        }
        for name, record in content.array_records.items()
        for array in record.values()
    }
    fields = {
        name: _keys(str(record.get(_TEXT, "{}")).encode())
        for name, record in content.config_records.items()
    }
    return {"bytes": length(content), "fields": fields, "arrays": arrays}


def _keys(text: bytes) -> list[str]:
    """The keys of a document or of a safetensors header; none where a stranger sent no such thing.

    What came is logged before it is believed; who reads it refuses it and says why.
    """
    try:
        found = json.loads(text) if len(text) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        return []
    return sorted(map(shown, found))[:_MOST_KEYS] if isinstance(found, dict) else []


def length(content: RecordDict) -> int:
    """Bytes of a message: its document and its arrays."""
    texts = (str(record.get(_TEXT, "")) for record in content.config_records.values())
    arrays = (a for record in content.array_records.values() for a in record.values())
    return sum(len(text.encode()) for text in texts) + sum(len(a.data) for a in arrays)


def _parsed(record: ConfigRecord, expected: type[Said]) -> Said:
    text = record.get(_TEXT)
    if not isinstance(text, str) or list(record) != [_TEXT] or len(text) > _MAX_BYTES:
        raise Unreadable(f"not a document of at most {_MAX_BYTES:,} characters")
    try:
        return expected.model_validate(json.loads(text, parse_constant=_refuse))
    except (ValidationError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a legal {expected.__name__.lower()}: {_first(error)}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        where = shown(".".join(map(str, problem["loc"])))
        return f"{where} = {str(problem['input'])[:60]!r}: {problem['msg'].lower()}"
    return str(error)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(repr(name[:60]) for name in names)[:6]) or "nothing"


KEY = "state"
_KIND = "safetensors"
# What a safetensors header may cost beside the names: shape, dtype and offsets of an entry.
_HEADER_BYTES = 512


def to_record(pack: Pack) -> ArrayRecord:
    """Make a record of a pack."""
    data = to_bytes(pack.state)
    return ArrayRecord({KEY: Array("uint8", (len(data),), _KIND, data)})


def from_record(record: ArrayRecord, layout: StateLayout) -> Pack:
    """Read a record that must fit the layout exactly: names, shapes and dtypes."""
    if list(record) != [KEY] or record[KEY].stype != _KIND:
        raise ModelError(f"expected one array {KEY!r} of {_KIND}, got {sorted(record)[:5]}")
    data = record[KEY].data
    if len(data) > largest(layout):
        raise ModelError(f"{len(data):,} bytes, where at most {largest(layout):,} are expected")
    try:
        state = from_bytes(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ModelError(f"not a whole safetensors file ({error})") from error
    return layout.pack(state, "what was sent")


def largest(layout: StateLayout) -> int:
    """The most bytes that a state of this layout may take; a little more than it does."""
    entries = layout.entries
    return 4096 + sum(e.bytes + len(e.name.encode()) + _HEADER_BYTES for e in entries)


def order_of(job: Job, federation: str, run: str) -> Order:
    """What all orders of a job have in common; the data is each site's own."""
    training = job.setting.experiment.training
    raw = job.setting.experiment.model_dump(exclude_none=True, exclude={"quick", "reproduce"})
    raw["training"].pop("epochs", None)
    raw["training"]["rounds"] = training.total_rounds
    if training.local_steps is not None:
        del raw["training"]["local_epochs"]
    method, setting, seed = job.key
    weights = job.setting.experiment.model.weights
    contract = {key: value for key, value in raw["data"].items() if key == "contract"}
    return Order(
        kind="hello",
        federation=federation,
        run=run,
        method=method,
        setting=setting,
        seed=seed,
        experiment={**raw, "data": contract, "sweep": {}},
        version=__version__,
        weights=weights_hash(weights) if weights else "",
    )


def report_order(federation: str) -> Order:
    """Ask sites what their data is."""
    about = {"run": "report", "method": "", "setting": "", "seed": 0, "experiment": {}}
    return Order(kind="report", federation=federation, version=__version__, **about)


def job_of(order: Order, device: str | None = None, weights: Path | None = None) -> Job:
    """Read the job that an order is about; the device and the place of files are a site's own."""
    raw: dict[str, Any] = dict(order.experiment)
    held = Held("the server's configuration", foreign=True)
    if not all(isinstance(raw.get(key, {}), dict) for key in ("training", "model", "data")):
        checked(raw, held.file, held)  # says so
    if other := raw.get("data", {}).keys() - {"contract"}:
        raise ConfigError(f"an order names data.{min(other)}: all but the contract is a site's own")
    if device is not None:
        raw["training"] = {**raw.get("training", {}), "device": device}
    if "weights" in raw.get("model", {}):
        raw["model"] = {**raw["model"], "weights": _own_weights(weights, order)}
    experiment = checked(raw, held.file, held)
    if long := next((spec for spec in experiment.methods if len(spec) > _LONGEST_METHOD), None):
        most = f"expected at most {_LONGEST_METHOD:,} characters, got {len(long):,}"
        raise ConfigError(f"method {long[:60]!r} ...: {most}")
    method = parse_method(order.method, {"mu": experiment.method.mu}, held)
    job = Job(method, Setting(order.setting, experiment), order.seed)
    check_job(job)
    return job


def _own_weights(file: Path | None, order: Order) -> str:
    """The file that a person here gave for the server's weights: that one, or none is opened.

    A site looks at no path that the server names, and says of its own file only that it differs.
    """
    if file is None or not file.is_file():
        raise ConfigError(
            "the model starts from weights: bring the server's file to this site and join with "
            f"--weights FILE (its sha256: {order.weights[:16]})"
        )
    if weights_hash(str(file)) != order.weights:
        raise ConfigError(
            f"the file given with --weights differs from the server's ({order.weights[:16]})"
        )
    return str(file)


def check_job(job: Job) -> None:
    """Refuse what cannot run where data stays at the sites."""
    if job.method.pooled:
        raise ConfigError(
            f"method {job.method.name} brings all data together; in a federation of machines data "
            "stays at its site: choose fedbn, fedavg, fedprox, silobn or singleset"
        )
    if job.method.baseline is not None:
        raise ConfigError(
            f"method {job.method.name} is a baseline, which each site fits alone, so there is "
            "nothing to send in a federation of machines: leave it out, or run it with `fedbn run` "
            "on a site's own data"
        )
    evaluation = job.setting.experiment.evaluation
    if evaluation.report == "best":
        check_choosing(evaluation.validation, ["the server"])


def federation_of(
    members: Iterable[Member],
    classes: tuple[str, ...],
    input_shape: tuple[int, ...],
    target: Target = A_CLASS,
    own: Client | None = None,
) -> Federation:
    """Make a federation of stand-ins, with one's own data where it is given."""
    clients = tuple(
        own
        if own is not None and member.name == own.name
        else blank_client(member.name, member.domain, input_shape, member.examples, target=target)
        for member in members
    )
    return Federation("the sites' own data", clients, classes)
