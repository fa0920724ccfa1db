"""What the JSON files of a run folder hold, checked once, where they are read.

`metrics.jsonl` has one record a line, appended as rounds end: ten values and nothing else. A line
without the tenth, `statistics`, is an older fedbn's and was scored with running statistics.
`environment.json` has what a run was begun with; keys that are not known here are another fedbn's
and are left alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config as configured,
)
from pydantic_core import to_json

from fedbn.core.rounds import Record
from fedbn.core.statistics_kinds import RUNNING, StatisticsKind
from fedbn.errors import DamagedRun
from fedbn.runs.folder import explained, write_atomically

T = TypeVar("T")
Shape = TypeVar("Shape", list[int], tuple[int, ...])
_LARGEST_SAMPLE = 2**28
_LONGEST_VALUE = 60


@configured(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
@dataclass(frozen=True)
class Line(Record):
    """A record, as a line of `metrics.jsonl` holds it."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    round: Annotated[int, Field(ge=0, le=10**9)]
    statistics: StatisticsKind = RUNNING


RECORD = TypeAdapter(Line)


def line(record: Record | Mapping[str, Any]) -> str:
    """Render a record as its line; pydantic takes a quarter of `json`'s time."""
    values = record if isinstance(record, Mapping) else vars(record)
    return to_json(values, inf_nan_mode="null").decode() + "\n"


def append(file: Path, content: bytes, wait: bool = True) -> None:
    """Add lines at the end of a file, and wait until all of it is on disk."""
    with explained(file), file.open("ab") as stream:
        stream.write(content)
        stream.flush()
        if wait:
            os.fsync(stream.fileno())


def keep_until(file: Path, round: int, kind: TypeAdapter[Any] = RECORD) -> None:
    """Drop the records of later rounds, and a last line that a crash cut off.

    Records of a round before must be there: its checkpoint came after them.
    """
    lines = list(_lines(file, kind)) if file.exists() else []
    if missing := set(range(1, round + 1)) - {record.round for _, record in lines}:
        raise DamagedRun(f"{file}: the records of round {min(missing)} are missing")
    if file.exists():
        write_atomically(file, b"".join(text for text, record in lines if record.round <= round))


def read(file: Path) -> list[dict[str, Any]]:
    """Read all whole records of a file."""
    return [vars(record) for _, record in _lines(file)] if file.exists() else []


def salvage(file: Path) -> tuple[list[dict[str, Any]], int]:
    """Read the records of a file that may be damaged; gives also how many lines are none."""
    found, texts = [], _texts(file)
    for text in texts:
        with suppress(DamagedRun):
            found.append(vars(read_as(RECORD, text, str(file))))
    return found, len(texts) - len(found)


def _lines(file: Path, kind: TypeAdapter[Any] = RECORD) -> Iterator[tuple[bytes, Any]]:
    for number, text in enumerate(_texts(file), 1):
        yield text + b"\n", read_as(kind, text, f"{file}, line {number}")


def _texts(file: Path) -> list[bytes]:
    *lines, _cut_off = file.read_bytes().split(b"\n")
    return lines


def of_sane_size(shape: Shape) -> Shape:
    """Refuse the shape of a sample that no memory holds; whoever says it."""
    if math.prod(shape) > _LARGEST_SAMPLE:
        raise ValueError(f"legal are samples of at most {_LARGEST_SAMPLE:,} numbers")
    return shape


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Table(_Part):
    columns: list[tuple[str, list[str] | None]]
    label: str | list[str]
    site: str | None = None
    group: str | None = None
    missing: str
    numbers: bool = False


class _Preparation(_Part):
    aliases: dict[str, str] = {}
    depth: float | None = None
    group: str | None = None  # the pattern that finds whose a picture is
    levels: dict[str, tuple[list[float], list[float]]] = {}
    masks: list[int] | None = None
    table: _Table | None = None


class _Inputs(_Part):
    name: str
    classes: list[str] = Field(min_length=1)
    clients: list[tuple[str, str]] = Field(min_length=1)
    dtype: Literal["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    input_shape: Annotated[list[Annotated[int, Field(ge=1)]], AfterValidator(of_sane_size)]
    target: tuple[
        Literal["bool", "uint8", "int64", "float32", "float64"],
        Annotated[list[Annotated[int, Field(ge=1)]], AfterValidator(of_sane_size)],
    ] = ("int64", [])
    preparation: _Preparation
    range: tuple[float, float]
    remarks: list[str]
    sizes: dict[str, tuple[int, int]] = {}
    stand_ins: list[str] = []


class _Metric(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    higher: bool
    unit: str = ""


class _Task(_Part):
    name: str
    metrics: list[_Metric] = Field(min_length=1)


class Environment(_Part):
    """`environment.json`: what a run's result depends on, and what helps to explain one."""

    config: dict[str, Any]
    data: dict[str, Any]
    directory: str = Field(".", pattern=r"^[^\x00]*$")
    inputs: dict[str, _Inputs] = {}
    modules: str | None = Field(None, pattern=r"^[^\x00]*$")
    task: _Task | None = None
    threads: dict[str, Any] = {}
    versions: dict[str, str] = {}
    weights: dict[str, str] = {}


_Whole = Annotated[int, Field(ge=0)]


class _Rows(_Part):
    clients: dict[str, str]
    entries: dict[str, tuple[str, _Whole, list[_Whole]]]


class Manifest(_Part):
    """`manifest.json` of a checkpoint."""

    round: _Whole
    best: int | None = None
    rows: dict[str, _Rows]
    sections: dict[str, str]


def read_as(kind: TypeAdapter[T], content: bytes, where: str) -> T:
    """Read JSON as what it must be; damage is named by place, key and what it should hold."""
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise DamagedRun(f"{where}: damaged ({_fault(error)})") from error


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key, text = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if not key or first["type"] == "missing":
        return f"{key}: {text}".removeprefix(": ")
    return f"{key} = {repr(first['input'])[:_LONGEST_VALUE]}: {text}"
