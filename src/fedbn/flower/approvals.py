"""The experiments that a site was asked for, and which of them a person there approved.

What is approved is everything that decides what is computed from the site's data: the whole
configuration with its defaults, the seeds, the contract, the model, and what torch makes of the
optimizer and the schedule.
"""

from __future__ import annotations

import datetime
import getpass
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbn.core.plan import Plan
from fedbn.core.state import entries, schema_hash
from fedbn.errors import ConfigError, FedbnError
from fedbn.experiments.configuration import checked
from fedbn.experiments.schema import Experiment
from fedbn.experiments.sources import suggested_for
from fedbn.flower.messages import NotYet, Order
from fedbn.flower.update_bounds import group_of
from fedbn.methods import parse_method, pieces_of
from fedbn.registry import Held
from fedbn.runs.folder import to_json, write_atomically

# Sections and keys that change nothing that is computed at a site. Of `data` only the contract is
# the server's.
_OF_NO_MATTER = {"workers", "engine", "data", "sweep", "quick", "reproduce", "checkpoint"}
_MOST_WAITING = 20  # experiments that nobody approved yet
_HELD = Held("the server's configuration")


@dataclass(frozen=True)
class Asked:
    """An experiment that a site was asked to take part in."""

    # the configuration without the run's name, and what the model is for
    experiment: dict[str, Any]
    run: str  # the run that asked first
    asked: str  # when
    approved: str = ""  # when and by whom; empty while it waits

    @property
    def hash(self) -> str:
        """What is approved."""
        text = json.dumps(self.experiment, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def expires(self, days: int) -> datetime.datetime | None:
        """Return when the approval ends; None where it does not, or nobody approved."""
        if not (self.approved and days):
            return None
        begun = datetime.datetime.fromisoformat(self.approved.split()[0])
        return begun + datetime.timedelta(days=days)

    def is_approved(self, days: int) -> bool:
        """Return True if a person approved it, at most so many days ago where `days` is not 0."""
        end = self.expires(days)
        return bool(self.approved) and (end is None or datetime.datetime.now(datetime.UTC) < end)


def asked_by(order: Order, plan: Plan) -> Asked:
    """Return the experiment of an order, as a person approves it."""
    experiment = checked(order.experiment, _HELD.file, _HELD)
    facts: dict[str, Any] = experiment.model_dump(mode="json", exclude=_OF_NO_MATTER)
    model, federation = plan.initial_model, plan.federation
    # Where a site's files lie and what it trains on is its own affair.
    for section, key in (("model", "weights"), ("training", "device")):
        del facts[section][key]
    facts["contract"] = contract_of(order)
    facts["data"] = {
        "classes": list(federation.classes),
        "number of classes": len(federation.classes),
        "shape of a sample": list(federation.input_shape),
    }
    facts["rules"] = _rules_of(experiment)
    facts["model"] |= {
        "name": facts["model"]["name"] or suggested_for(federation),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "hash": schema_hash(entries(model)),
        "initial weights": f"sha256 {order.weights}" if order.weights else "random, by the seed",
    }
    facts["training"] |= _training_of(plan)
    facts["task"]["name"] = plan.task.name
    return Asked(facts, order.run, _now())


def contract_of(order: Order) -> dict[str, Any]:
    """Return the contract of an order with all its defaults, empty where there is none."""
    contract = checked(order.experiment, _HELD.file, _HELD).data.contract
    return {} if contract is None else contract.model_dump(mode="json", exclude_none=True)


def _rules_of(experiment: Experiment) -> dict[str, list[str]]:
    """Return the rules of each method with their numbers, as far as fedbn ships the method."""
    found = {}
    for spec in experiment.methods:
        if any(":" in piece.partition("(")[0] for piece in pieces_of(spec)):
            continue  # written out in `methods`; the code is imported only where it is needed
        with suppress(FedbnError, TypeError):  # an order of that method is refused, and says why
            method = parse_method(spec, {"mu": experiment.method.mu}, _HELD)
            found[spec] = [rule.label for rule in method.rules]
    return found


def _training_of(plan: Plan) -> dict[str, Any]:
    """Return what torch makes of the optimizer and of the schedule."""
    training = plan.training
    group = group_of(training.in_round(1))
    rates = [training.in_round(number).lr for number in range(1, training.rounds + 1)]
    return {
        "rounds": training.rounds,
        "optimizer": training.optimizer,
        "optimizer_args": {key: _plain(value) for key, value in group.items() if key != "lr"},
        "lr of the first round": rates[0],
        "lr of the last round": rates[-1],
        "lowest lr": min(rates),
        "highest lr": max(rates),
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


class Approvals:
    """Experiments that a site was asked for: one file each, approved by a person or waiting."""

    def __init__(self, home: Path):
        self._folder = home / "experiments"

    def require(self, asked: Asked, days: int = 0) -> None:
        """Go on with an experiment that was approved; another one waits for a person.

        Args:
            asked: The experiment.
            days: How long an approval lasts; 0 for ever.
        """
        file = self._folder / f"{asked.hash}.json"
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, to_json(vars(asked)))
            forget_oldest(self._folder, file)
        known = _read(file)
        if known.is_approved(days):
            return
        command = f"`fedbn federation approve SITE {asked.hash[:16]}`"
        if end := known.expires(days):
            raise NotYet(
                f"the approval of {known.approved.split()[0][:10]} expired on {end:%Y-%m-%d} "
                f"(approval_days = {days}): {command} renews it"
            )
        raise NotYet(f"waits for approval by a person at the site: {command}")

    def all(self) -> list[Asked]:
        """All experiments, the oldest first."""
        found = [_read(file) for file in self._folder.glob("*.json")]
        return sorted(found, key=lambda one: one.asked)

    def has_approved(self, contract: Mapping[str, Any], days: int = 0) -> bool:
        """Return True if a person approved an experiment with that contract."""
        return any(
            one.is_approved(days) and one.experiment["contract"] == contract for one in self.all()
        )

    def find(self, start: str) -> Asked:
        """Return the experiment whose hash begins so."""
        found = [one for one in self.all() if start and one.hash.startswith(start.lower())]
        if len(found) != 1:
            known = ", ".join(one.hash[:16] for one in self.all()) or "none yet"
            raise ConfigError(f"experiment {start!r}: {len(found)} begin so; asked for: {known}")
        return found[0]

    def last_approved(self, but: Asked) -> Asked | None:
        """Return the experiment that was approved last, apart from one."""
        found = [one for one in self.all() if one.approved and one.hash != but.hash]
        return max(found, key=lambda one: one.approved, default=None)

    def decide(self, start: str, approve: bool) -> Asked:
        """Approve the experiment whose hash begins so, or take the approval back."""
        found = self.find(start)
        said = f"{_now()} by {_user()}" if approve else ""
        decided = Asked(found.experiment, found.run, found.asked, said)
        write_atomically(self._folder / f"{decided.hash}.json", to_json(vars(decided)))
        return decided


def forget_oldest(folder: Path, newest: Path) -> None:
    """Keep the newest experiments that wait for approval, and every one that was approved.

    Each question of the server leaves a file until a person decides, so their number is limited.
    """
    others = [file for file in folder.glob("*.json") if file != newest]
    waiting = [file for file in others if not _read(file).approved]
    waiting.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in waiting[_MOST_WAITING - 1 :]:
        file.unlink(missing_ok=True)


def _read(file: Path) -> Asked:
    try:
        found = Asked(**json.loads(file.read_bytes()))
        found.is_approved(1)  # the date can be read
        if f"{found.hash}.json" == file.name:
            return found
    except (ValueError, TypeError, AttributeError, IndexError, OSError) as error:
        raise ConfigError(f"{file}: damaged ({error}); delete it") from error
    raise ConfigError(f"{file}: its content is not what its name says; delete it")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "an unknown user"
