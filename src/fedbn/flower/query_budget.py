"""Limits on what a server can learn by asking: how often a site answers, and how exactly.

Every state that a server sends is a question about the site's samples, and the update or the scores
are the answer. A server that chooses the states freely can ask about one patient. Two limits apply:

- `QueryBudget` counts the answers of a site. A round of a run has one state. An order that is
  repeated gets the stored answer, so resuming a run and messages that arrive twice cost nothing.
- `released_scores` and `released_loss` round the numbers that leave the site. The site's own
  records stay exact.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedbn.core.federation import AnySplit, Client
from fedbn.core.metric import PERCENT, Metric
from fedbn.core.packing import Pack
from fedbn.core.plan import Plan
from fedbn.core.rounds import Record
from fedbn.core.scoring import splits_of
from fedbn.errors import DamagedRun
from fedbn.experiments.jobs import Job
from fedbn.flower.messages import KEY, Order, Score
from fedbn.flower.policy import Forbidden, Policy
from fedbn.runs.folder import explained, sealed, unsealed, write_atomically

_FORMAT = 1
_KEPT = 2  # answers of a job that are stored; a server is at most one checkpoint behind
_MOST_STEPS = 100  # of a number that is no share: two significant digits
# Parts of an order that change nothing about its answer.
_OF_NO_MATTER = {"best", "log", "session", "updates"}
# Parts of an experiment that change nothing about one job of it, or that each site sets itself.
_NOT_OF_A_JOB: dict[str, Any] = {
    **dict.fromkeys(("format", "methods", "seeds", "engine", "workers", "checkpoint"), True),
    **dict.fromkeys(("sweep", "quick", "reproduce"), True),
    "training": {"device"},
    "model": {"weights"},
}


def state_index(order: Order) -> int:
    """Return how many rounds were done when the state of an order was made."""
    return order.round - 1 if order.kind == "train" else order.round


def state_hash(pack: Pack) -> str:
    """Return the sha256 of a state, whatever the order of its entries in the message."""
    digest = hashlib.sha256()
    for name, tensor in sorted(pack.state.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_length(policy: Policy, job: Job) -> None:
    """Reject an experiment that needs more answers than the policy allows, before it begins."""
    if not policy.query_budget:
        return
    experiment = job.setting.experiment
    jobs = len(experiment.methods) * len(experiment.seeds)
    needed = jobs * (experiment.training.total_rounds + 1)
    if needed > policy.max_answers_per_run:
        _forbid(f"a run of {needed:,} answers", "max_answers_per_run", policy.max_answers_per_run)


def check_state(policy: Policy, order: Order, sent: Pack, initial: Pack) -> None:
    """Reject a state that cannot be the one of this round.

    Args:
        policy: The site's policy.
        order: The order that came with the state.
        sent: The state that the server sent.
        initial: The state that the approved seed or the approved weights give.

    Raises:
        Forbidden: The round does not exist, the first state is not the approved one, or the state
            contains fewer updates than `min_sites`, unless the site joins with this very state.
    """
    done = state_index(order)
    if done < 0:
        raise Forbidden(f"round {order.round} does not exist: rounds are counted from 1")
    if done == 0 and state_hash(sent) != state_hash(initial):
        source = "the approved weights give" if order.weights else "the approved seed gives"
        raise Forbidden(
            f"the first state is not the one that {source}: expected sha256 "
            f"{state_hash(initial)[:16]}, got {state_hash(sent)[:16]}. Another torch or processor "
            "can draw other numbers from a seed: start from model.weights there"
        )
    came_now = order.joined == done and not order.since  # no update of this site is in the state
    if done > 0 and not came_now and order.updates < policy.min_sites:
        _forbid(f"a state of {order.updates} updates", "min_sites", policy.min_sites)


@dataclass(frozen=True)
class Question:
    """An order and its state, as the budget counts them."""

    run: str  # the run; names that differ in case only are one run
    job: str  # experiment, method and seed
    index: int  # rounds that were done when the state was made
    digest: str  # sha256 of everything that decides the answer
    session: str  # the server process that asks; empty if the server names none

    @classmethod
    def of(cls, order: Order, job: Job, sent: Pack) -> Question:
        """Return the question that an order asks.

        The experiment counts as it is understood, with all defaults: other words for the same
        experiment are no other question. Nor is another name of its setting.
        """
        experiment = job.setting.experiment.model_dump(mode="json", exclude=_NOT_OF_A_JOB)
        experiment["data"] = experiment["data"]["contract"]
        asked = {"experiment": experiment, "method": job.method.name}
        matters = order.model_dump(mode="json", exclude={*_OF_NO_MATTER, "experiment", "method"})
        return cls(
            order.run.casefold(),
            _hash({**asked, "seed": order.seed}),
            state_index(order),
            _hash({**asked, **matters, "state": state_hash(sent)}),
            order.session,
        )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


class QueryBudget:
    """The answers that a site gave, and those that it may still give.

    The counts lie in `day.json` and in one file per run. Every file has a checksum and is replaced
    as a whole. A damaged file is an error, never a new start.

    Args:
        folder: Where the files lie; None keeps them in memory.
        policy: The site's policy.
        today: Returns the current day.
    """

    def __init__(
        self,
        folder: Path | None,
        policy: Policy,
        today: Callable[[], str] = lambda: datetime.datetime.now(datetime.UTC).date().isoformat(),
    ):
        self._folder, self._policy, self._today = folder, policy, today
        self._memory: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, RecordDict] = {}

    def stored(self, question: Question) -> RecordDict | None:
        """Return the answer that the same question got before, or None if it had none.

        Raises:
            Forbidden: The question was answered, and the answer is no longer stored.
            DamagedRun: A file of the budget is damaged.
        """
        if not self._policy.query_budget:
            return None
        with self._locked():
            job = self._run(question)["jobs"].get(question.job)
            slot = job and job["slots"].get(str(question.index))
            if not slot or slot["digest"] != question.digest or not slot["answered"]:
                return None
            if question.index in job["kept"]:
                return self._read_answer(question)
        raise Forbidden(
            f"the state after round {question.index} was answered before, and only the newest "
            f"{_KEPT} answers of a job are stored"
        )

    def resumed(self, question: Question) -> bool:
        """Note which server process asks; return True if another one asked for this job before."""
        if not self._policy.query_budget:
            return False
        with self._locked():
            run = self._run(question)
            job = run["jobs"].get(question.job)
            if not job or job["session"] == question.session:
                return False
            job["session"] = question.session
            self._write(_name(question), run)
        return True

    def charge(self, question: Question) -> None:
        """Count a question before its answer is computed: errors are answers too.

        Raises:
            Forbidden: The policy allows no further answer, or no other state for this round.
            DamagedRun: A file of the budget is damaged.
        """
        policy, index = self._policy, str(question.index)
        if not policy.query_budget:
            return
        with self._locked():
            day, run = self._day(), self._run(question)
            new = {"session": question.session, "slots": {}, "kept": []}
            job = run["jobs"].setdefault(question.job, new)
            slot = job["slots"].get(index)
            if slot and slot["digest"] == question.digest:
                return  # it was counted, and a kill or an error came before the answer
            if slot:
                self._check_change(question, slot, run)
                run["changed"] += 1
            for counted, rule in ((run, "max_answers_per_run"), (day, "max_answers_per_day")):
                if counted["answers"] >= (most := getattr(policy, rule)):
                    _forbid(f"{counted['answers'] + 1:,} answers", rule, most)
                counted["answers"] += 1
            session, digest = question.session, question.digest
            job["slots"][index] = {"digest": digest, "session": session, "answered": False}
            job["kept"] = [one for one in job["kept"] if one != question.index]
            self._write("day", day)
            self._write(_name(question), run)

    def keep(self, question: Question, answer: RecordDict) -> None:
        """Store the answer to a question that was counted, before it leaves the site."""
        if not self._policy.query_budget:
            return
        with self._locked():
            run = self._run(question)
            job = run["jobs"][question.job]
            before = [one for one in job["kept"] if one != question.index]
            job["kept"] = [*before, question.index][-_KEPT:]
            job["slots"][str(question.index)]["answered"] = True
            self._write_answer(question, answer)
            self._write(_name(question), run)
            for index in {*before} - {*job["kept"]}:
                self._forget_answer(question, index)

    def _check_change(
        self, question: Question, slot: Mapping[str, Any], run: Mapping[str, Any]
    ) -> None:
        """Allow another state for an answered round only after a resume, and a few times."""
        if not question.session or question.session == slot["session"]:
            raise Forbidden(
                f"the state after round {question.index} was answered, and this order asks "
                "something else of that round: the site's policy allows one state per round and "
                "run. Another one is possible only after the server resumed the run"
            )
        if run["changed"] >= self._policy.max_changed_states:
            what = f"{run['changed'] + 1} changed states in a run"
            _forbid(what, "max_changed_states", self._policy.max_changed_states)

    def _day(self) -> dict[str, Any]:
        """Return the count of the day; a clock that was set back starts no new day."""
        found = self._read("day")
        if found is None:
            if self._folder is not None and any(self._folder.glob("run-*.json")):
                raise DamagedRun(f"{self._folder / 'day.json'}: missing; bring it back")
            found = {"day": "", "answers": 0}
        if (today := self._today()) > found["day"]:
            return {"day": today, "answers": 0}
        return found

    def _run(self, question: Question) -> dict[str, Any]:
        found = self._read(_name(question))
        if found is None and (self._holds_answers(question)):
            file = f"{_name(question)}.json"
            raise DamagedRun(f"{self._folder and self._folder / file}: missing; bring it back")
        return found or {"answers": 0, "changed": 0, "jobs": {}}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._folder is None:
            yield
            return
        with explained(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self._folder / "budget.lock"):
            yield

    def _read(self, name: str) -> dict[str, Any] | None:
        if self._folder is None:
            found = self._memory.get(name)
            return found and dict(json.loads(json.dumps(found)))
        file = self._folder / f"{name}.json"
        if not file.exists():
            return None
        found = unsealed(file, _FORMAT)
        del found["format"]
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        if self._folder is None:
            self._memory[name] = value
        else:
            write_atomically(self._folder / f"{name}.json", sealed({**value, "format": _FORMAT}))

    def _answer_file(self, question: Question, index: int) -> Path:
        folder = self._folder or Path()
        return folder / _name(question) / f"{question.job}-{index}.answer"

    def _holds_answers(self, question: Question) -> bool:
        folder = self._folder and self._folder / _name(question)
        return folder is not None and folder.is_dir() and any(folder.iterdir())

    def _read_answer(self, question: Question) -> RecordDict:
        file = self._answer_file(question, question.index)
        if self._folder is None:
            return self._answers[str(file)]
        try:
            return _unpacked(file.read_bytes())
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DamagedRun(f"{file}: the stored answer is missing or damaged") from error

    def _write_answer(self, question: Question, answer: RecordDict) -> None:
        file = self._answer_file(question, question.index)
        if self._folder is None:
            self._answers[str(file)] = answer
            return
        with explained(file):
            file.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(file, _packed(answer))

    def _forget_answer(self, question: Question, index: int) -> None:
        file = self._answer_file(question, index)
        self._answers.pop(str(file), None)
        if self._folder is not None:
            file.unlink(missing_ok=True)


def budget_folder(home: Path | None, runs: Path | None) -> Path | None:
    """Return where a site keeps its budget: no name of a run leads there."""
    if home is not None:
        return home / "query-budget"
    return runs / ".query-budget" if runs is not None else None


def _name(question: Question) -> str:
    return f"run-{_hash(question.run)}"


def _packed(answer: RecordDict) -> bytes:
    """Return a message's content as bytes that begin with their sha256."""
    arrays = {name: record[KEY] for name, record in answer.array_records.items()}
    header = {
        "documents": {name: dict(record) for name, record in answer.config_records.items()},
        "arrays": {n: [a.dtype, list(a.shape), a.stype, len(a.data)] for n, a in arrays.items()},
    }
    content = json.dumps(header).encode() + b"\n" + b"".join(a.data for a in arrays.values())
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _unpacked(stored: bytes) -> RecordDict:
    """Return the content that `_packed` stored.

    Raises:
        ValueError: The bytes changed.
    """
    digest, _, content = stored.partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError("its sha256 is not its own")
    text, _, body = content.partition(b"\n")
    header = json.loads(text)
    answer, begin = RecordDict(), 0
    for name, values in header["documents"].items():
        answer[name] = ConfigRecord(values)
    for name, (dtype, shape, kind, size) in header["arrays"].items():
        data = body[begin : begin + size]
        answer[name] = ArrayRecord({KEY: Array(dtype, tuple(shape), kind, data)})
        begin += size
    return answer


def released_scores(
    policy: Policy, plan: Plan, client: Client, records: Iterable[Record]
) -> tuple[Score, ...]:
    """Return the scores that leave the site, as exact as the policy allows.

    A number about fewer than `min_test_samples` samples stays at the site. With `round_scores` the
    others leave in steps of 1/⌊√n⌋, where n is the number of samples that the number is about. The
    loss on a split stays at the site, because one sample can dominate a mean loss.
    """
    data = {(split, domain): found for split, domain, found in splits_of(client)}
    metrics = {metric.name: metric for metric in plan.task.metrics}
    released = []
    for record in records:
        metric = metrics.get(record.metric.removeprefix("group_")) or metrics.get(record.metric)
        value = record.value
        if policy.round_scores or policy.min_test_samples > 1:
            behind = samples_behind(record.metric, metric, data[record.split, record.domain])
            if behind < policy.min_test_samples:
                continue
        if policy.round_scores:
            if metric is None:
                continue
            value = None if value is None else rounded(value, max(behind, 1), metric)
        about = {"domain": record.domain, "split": record.split, "metric": record.metric}
        released.append(Score(**about, value=value))
    return tuple(released)


def released_loss(policy: Policy, loss: float, samples: int) -> float | None:
    """Return the mean training loss that leaves the site: two significant digits, or None."""
    if samples < policy.min_test_samples or not math.isfinite(loss):
        return None
    return float(f"{loss:.1e}") if policy.round_scores else loss


def samples_behind(name: str, metric: Metric | None, data: AnySplit) -> int:
    """Return how many samples a number is about.

    Groups count for a number about groups. The smallest class counts for a mean over classes: there
    one sample of a rare class weighs most.
    """
    if metric is not None and name != metric.name and data.groups is not None:
        return len(data.groups.unique())
    if metric is None or not metric.by_class:
        return len(data)
    return 0 if data.y is None else min([len(data), *_class_sizes(data.y)])


def _class_sizes(targets: torch.Tensor) -> Sequence[int]:
    """Return how many samples each class has that occurs; labels count with and without."""
    if targets.ndim == 1:
        counts = torch.bincount(targets.long())
    elif targets.ndim == 2 and targets.unique().numel() <= 2:
        there = (targets > 0).sum(dim=0)
        counts = torch.cat([there, len(targets) - there])
    else:
        flat = targets.reshape(len(targets), -1)
        found = [int((flat == label).any(dim=1).sum()) for label in targets.unique() if label > 0]
        counts = torch.tensor(found or [len(targets)])
    return [int(count) for count in counts if count > 0]


def rounded(value: float, samples: int, metric: Metric) -> float:
    """Round a metric in steps of 1/⌊√n⌋.

    A share is rounded as it is. Another number is rounded as a share of the next power of ten, in
    100 steps at most.

    Examples:
        >>> share, error = Metric("accuracy", True, "%", least=0.0, most=1.0), Metric("mae", False)
        >>> [rounded(k / 10, 10, share) for k in (0, 4, 6, 10)]
        [0.0, 0.333333333333, 0.666666666667, 1.0]
        >>> [rounded(value, 100, error) for value in (0.0123, 4.56, 789.0)]
        [0.01, 5.0, 800.0]
    """
    if not math.isfinite(value) or value == 0:
        return value
    steps, unit = math.isqrt(samples), 10.0 ** math.ceil(math.log10(abs(value)))
    if metric.most <= 1 or metric.unit == PERCENT:
        unit = max(unit, 1.0)
    if not 0 <= metric.least < metric.most <= 1:
        steps = min(steps, _MOST_STEPS)
    return float(f"{round(value / unit * steps) / steps * unit:.12g}")


def _forbid(what: str, rule: str, limit: int) -> None:
    raise Forbidden(f"the site's policy forbids {what} ({rule} = {limit:,})")
