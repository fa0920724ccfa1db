"""The evaluation of the round that a job reports: which test samples were classified correctly.

`outcomes.safetensors` in a job's folder has one tensor of 0 and 1 per kind of BatchNorm statistics,
client and domain, in the order of the client's test samples. `evaluated.json` says which round was
evaluated, and with which statistics. It is written last, so a job that has it has ended.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedbn.core.engine import FinalEvaluation
from fedbn.core.statistics_kinds import StatisticsKind
from fedbn.errors import DamagedRun
from fedbn.runs.folder import to_json, write_atomically
from fedbn.runs.metrics import read_as

OUTCOMES, EVALUATED = "outcomes.safetensors", "evaluated.json"


class Evaluated(BaseModel):
    """`evaluated.json`: which round of a job was evaluated, and how."""

    model_config = ConfigDict(extra="forbid", strict=True)
    round: int
    statistics: list[StatisticsKind]


_EVALUATED = TypeAdapter(Evaluated)


def write(place: Path, final: FinalEvaluation) -> None:
    """Write a job's final evaluation into its folder."""
    named = {"/".join(quote(part, safe="") for part in key): t for key, t in final.outcomes.items()}
    write_atomically(place / OUTCOMES, save(named))
    facts = {"round": final.round, "statistics": list(final.statistics)}
    write_atomically(place / EVALUATED, to_json(facts))


def evaluated(place: Path) -> Evaluated | None:
    """Return what was evaluated of a job, or None if nothing was."""
    file = place / EVALUATED
    return read_as(_EVALUATED, file.read_bytes(), str(file)) if file.is_file() else None


def read(place: Path) -> dict[tuple[str, str, str], Tensor]:
    """Return a job's outcomes by statistics, client and domain; empty if there are none."""
    file = place / OUTCOMES
    if not file.is_file():
        return {}
    try:
        named = load(file.read_bytes())
        keys = {name: tuple(map(unquote, name.split("/"))) for name in named}
        return {
            (kind, client, domain): named[name] for name, (kind, client, domain) in keys.items()
        }
    except (SafetensorError, ValueError) as error:
        raise DamagedRun(f"{file}: damaged ({error})") from error


def forget(place: Path) -> None:
    """Remove a job's final evaluation, because the job goes on."""
    for name in (EVALUATED, OUTCOMES):
        (place / name).unlink(missing_ok=True)
