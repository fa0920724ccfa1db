"""The experiments that a site was asked for, and which of them a person there approved."""

from __future__ import annotations

import datetime
import getpass
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbn.core.plan import Plan
from fedbn.core.state import entries, schema_hash
from fedbn.errors import ConfigError
from fedbn.flower.messages import NotYet, Order
from fedbn.runs.folder import to_json, write_atomically

_OF_NO_MATTER = ("seeds", "workers", "engine", "data", "sweep", "quick", "reproduce")


@dataclass(frozen=True)
class Asked:
    """An experiment that a site was asked to take part in."""

    # the configuration, without run name and seeds, and what the model is for
    experiment: dict[str, Any]
    run: str  # the run that asked first
    asked: str  # when
    approved: str = ""  # when and by whom; empty while it waits

    @property
    def hash(self) -> str:
        """What is approved."""
        text = json.dumps(self.experiment, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def asked_by(order: Order, plan: Plan) -> Asked:
    """The experiment of an order, as a person approves it."""
    facts = {key: value for key, value in order.experiment.items() if key not in _OF_NO_MATTER}
    fits = {
        "classes": list(plan.federation.classes),
        "input_shape": list(plan.federation.input_shape),
        "schema_hash": schema_hash(entries(plan.initial_model)),
        "weights": order.weights,
    }
    # Where a site's files lie and what it trains on is its own affair.
    facts["model"] = {key: v for key, v in facts.get("model", {}).items() if key != "weights"}
    facts["contract"] = order.experiment.get("data", {}).get("contract", {})
    facts["training"] = {k: v for k, v in facts.get("training", {}).items() if k != "device"}
    return Asked({**facts, "fits": fits}, order.run, _now())


class Approvals:
    """Experiments that a site was asked for: one file each, approved by a person or waiting."""

    def __init__(self, home: Path):
        self._folder = home / "experiments"

    def require(self, asked: Asked) -> None:
        """Go on with an experiment that was approved; another one waits for a person."""
        file = self._folder / f"{asked.hash}.json"
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, to_json(vars(asked)))
        if not _read(file).approved:
            raise NotYet(
                f"waits for approval by a person at the site: `fedbn federation approve SITE "
                f"{asked.hash[:16]}`"
            )

    def all(self) -> list[Asked]:
        """All experiments, the oldest first."""
        found = [_read(file) for file in self._folder.glob("*.json")]
        return sorted(found, key=lambda one: one.asked)

    def decide(self, start: str, approve: bool) -> Asked:
        """Approve the experiment whose hash begins so, or take the approval back."""
        found = [one for one in self.all() if start and one.hash.startswith(start.lower())]
        if len(found) != 1:
            known = ", ".join(one.hash[:16] for one in self.all()) or "none yet"
            raise ConfigError(f"experiment {start!r}: {len(found)} begin so; asked for: {known}")
        said = f"{_now()} by {_user()}" if approve else ""
        decided = Asked(found[0].experiment, found[0].run, found[0].asked, said)
        write_atomically(self._folder / f"{decided.hash}.json", to_json(vars(decided)))
        return decided


def _read(file: Path) -> Asked:
    try:
        found = Asked(**json.loads(file.read_bytes()))
        if f"{found.hash}.json" == file.name:
            return found
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"{file}: damaged ({error}); delete it") from error
    raise ConfigError(f"{file}: its content is not what its name says; delete it")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "an unknown user"
