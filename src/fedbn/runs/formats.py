"""What the files of a run folder must hold: checked once, where they are read.

Keys that are not known here are another fedbn's and are left alone, but for records: a line is
nine values and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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

from fedbn.core.rounds import Record
from fedbn.errors import DamagedRun

T = TypeVar("T")
_LARGEST_SAMPLE = 2**28
_LONGEST_VALUE = 60


@configured(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
@dataclass(frozen=True)
class Line(Record):
    """A record, as a line of `metrics.jsonl` holds it."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    round: Annotated[int, Field(ge=0, le=10**9)]


def _of_sane_size(shape: list[int]) -> list[int]:
    if math.prod(shape) > _LARGEST_SAMPLE:
        raise ValueError(f"legal are samples of at most {_LARGEST_SAMPLE:,} numbers")
    return shape


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Table(_Part):
    columns: list[tuple[str, list[str] | None]]
    label: str
    missing: str


class _Preparation(_Part):
    aliases: dict[str, str] = {}
    depth: float | None = None
    table: _Table | None = None


class _Inputs(_Part):
    name: str
    classes: list[str] = Field(min_length=1)
    clients: list[tuple[str, str]] = Field(min_length=1)
    dtype: Literal["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    input_shape: Annotated[list[Annotated[int, Field(ge=1)]], AfterValidator(_of_sane_size)]
    preparation: _Preparation
    range: tuple[float, float]
    remarks: list[str]
    stand_ins: list[str] = []


class Environment(_Part):
    """`environment.json`: what a run's result depends on, and what helps to explain one."""

    config: dict[str, Any]
    data: dict[str, Any]
    directory: str = Field(".", pattern=r"^[^\x00]*$")
    inputs: dict[str, _Inputs] = {}
    threads: dict[str, Any] = {}
    versions: dict[str, str] = {}
    weights: dict[str, str] = {}


def read_as(kind: TypeAdapter[T], content: bytes, where: str) -> T:
    """Read JSON as what it must be.

    Raises:
        DamagedRun: Naming the place, the key and what it should hold.
    """
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise DamagedRun(f"{where}: damaged ({_fault(error)})") from error


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key, text = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if not key or first["type"] == "missing":
        return f"{key}: {text}".removeprefix(": ")
    given = repr(first["input"])
    return f"{key} = {given[:_LONGEST_VALUE]}: {text}"
