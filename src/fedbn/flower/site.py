"""What a site does with an order: say what it is, train a round, score; its data stays here."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, RecordDict

from fedbn import __version__
from fedbn.core.federation import Federation
from fedbn.core.findings import check_federation
from fedbn.core.plan import Plan
from fedbn.core.randomness import with_validation
from fedbn.core.state import entries, schema_hash
from fedbn.data.checks import examine
from fedbn.errors import (
    ConfigError,
    DamagedRun,
    DataError,
    FedbnError,
    Misfit,
    TooMuchData,
    Untrusted,
    reason,
)
from fedbn.experiments.data_survey import SiteReport, report_of
from fedbn.experiments.jobs import Job
from fedbn.experiments.planner import plan_of
from fedbn.experiments.schema import ContractSection
from fedbn.experiments.sources import alone
from fedbn.flower import messages
from fedbn.flower.approvals import Approvals, asked_by, contract_of
from fedbn.flower.messages import Hello, Member, Order, digest, job_of
from fedbn.flower.model_size import (
    MEGABYTE,
    ModelTooLarge,
    check_model_size,
    limited_model,
)
from fedbn.flower.policy import (
    Forbidden,
    ForbiddenByLabels,
    check_order,
    check_rounds,
    check_runs,
)
from fedbn.flower.query_budget import check_length
from fedbn.flower.site_job import Desk, Failed, SiteOptions, run_folder
from fedbn.runs.folder import check_name
from fedbn.text import shown

log = logging.getLogger("fedbn")
_REST = r"[^\s'\"()\[\]:;,<>`]*"
# An absolute path. Paths with spaces in them are found by the folders that are known to be here;
# `…` stands for a folder of the site, and what follows it may be told.
_PATH = re.compile(r"(?<![\w.…])(?:[A-Za-z]:[\\/]|/)" + _REST)
# The same words whether the data fits an experiment that nobody approved, or does not.
_WAITS = "waits for approval by a person at the site, or is refused there: its own log says which"


class Site:
    """One site: its data, loaded once, and the models of the jobs it takes part in."""

    def __init__(self, options: SiteOptions):
        check_name(options.name, "site")
        self.options = options
        self.log = options.log
        self.desks: dict[str, Desk] = {}
        self._contracted: tuple[ContractSection, Federation] | None = None

    def answer(self, content: RecordDict, state: RecordDict) -> RecordDict:
        """Do what a message asks, or raise why not; `state` is Flower's memory of this site."""
        training = messages.SHARED in content
        order = messages.get(content, Order, *([messages.SHARED] if training else []))
        self._check(order)
        if order.kind == "report":
            return messages.put(messages.Reported(report=self.report(), log=self.log.newest))
        job = self._job(order)  # what is wrong whatever the data is, is said
        try:
            desk = None if order.kind == "hello" else self._desk(order, job)
            plan = desk.plan if desk else self._plan(order, job)
            self._allow(order, plan)
        except Exception as error:
            if self._tells(order, error):
                raise
            raise messages.NotYet(_said(error)) from error
        if desk is None:
            return messages.put(self.hello(order, plan))
        if order.kind == "end":
            desk.end(order)
            return messages.put(messages.Noted(log=self.log.newest))
        if not training:
            raise messages.Unreadable(f"an order to {order.kind} without the shared part")
        return desk.work(order, content.array_records[messages.SHARED], state)

    def report(self) -> SiteReport:
        """Say what the site's data is, in counts and names."""
        if "names" not in self.options.policy.sends:
            raise Forbidden("the site's policy forbids to name columns and classes (sends)")
        with _own_data(self.options.data):
            return report_of(self.options.section, self.options.name)

    def check_data(self) -> None:
        """Raise what is wrong with the site's data, whatever a contract says about it."""
        try:
            count = len(self._federation.clients[0].train)
            log.debug("%d samples to train with", count)
        except DataError as error:
            if not isinstance(error.__cause__, ConfigError):
                raise
            try:
                report_of(self.options.section, self.options.name)
            except ConfigError as missing:
                # A setting is missing, such as the column of labels: a contract may name it.
                log.debug("%s", missing)

    def examined(self, order: Order) -> Iterator[tuple[bool, str]]:
        """Say what the site would answer, and whether it may: without a server."""
        job = self._job(order)
        plan = self._plan(order, job)
        yield True, self.hello(order, plan).text
        try:
            self._allow(order, plan)
            yield True, "the site's policy allows it"
        except FedbnError as error:
            yield False, str(error)

    def _plan(self, order: Order, job: Job) -> Plan:
        """Make the model for the site's data, once the run and the model are not too large."""
        policy = self.options.policy
        check_rounds(policy, job)  # first: the learning rate of every round is computed
        check_length(policy, job)
        federation, most = self._alone(order, job), policy.max_model_mb
        try:
            check_model_size(job.setting.experiment, federation, most)
            with limited_model(most):
                return plan_of(job, federation)
        except ModelTooLarge as error:
            raise Forbidden(str(error)) from error

    def _allow(self, order: Order, plan: Plan) -> None:
        """Refuse what the policy forbids, and what no person at the site has approved."""
        options, policy = self.options, self.options.policy
        check_order(policy, order, plan, options.name)
        if options.folder is not None:
            check_runs(policy, options.folder, run_folder(options.folder, order).path)
        self._check_approval(order, plan)

    def _check_approval(self, order: Order, plan: Plan) -> None:
        """Refuse what no person at the site has approved, where the policy asks for that."""
        options = self.options
        if options.policy.approval:
            if options.home is None:
                raise ConfigError("the policy asks for approval, and the site has no folder")
            Approvals(options.home).require(asked_by(order, plan), options.policy.approval_days)

    def _tells(self, order: Order, error: Exception) -> bool:
        """Whether the server may hear what comes of its order, which tells of the data."""
        options, contract = self.options, contract_of(order)
        if isinstance(error, ForbiddenByLabels) and options.policy.approval:
            return False
        # Later orders name classes and shapes, and would be questions as a contract is.
        named = order.kind != "hello" or contract
        if not options.policy.approval or (isinstance(error, Forbidden) and not named):
            return True
        if options.home is None:
            return False
        return Approvals(options.home).has_approved(contract, options.policy.approval_days)

    @cached_property
    def _federation(self) -> Federation:
        return self._read(None)

    def _read(self, contract: ContractSection | None) -> Federation:
        section = self.options.section.model_copy(update={"contract": contract})
        most = self.options.policy.max_data_mb
        try:
            with _own_data(self.options.data):
                found = alone(section, self.options.name, most * MEGABYTE)
                check_federation(found)
        except TooMuchData as error:
            rule = f"max_data_mb = {most:,}"
            raise Forbidden(f"the site's policy forbids {error} ({rule})") from error
        return found

    def _fitting(self, contract: ContractSection | None) -> Federation:
        """The site's data, read by a contract where there is one."""
        if contract is None:
            return self._federation
        if self._contracted is None or self._contracted[0] != contract:
            self._contracted = contract, self._read(contract)
        return self._contracted[1]

    def described(self, order: Order | None = None) -> list[tuple[bool, str]]:
        """Say what the site would bring, and what is odd or wrong about its data."""
        contract = self._job(order).setting.experiment.data.contract if order else None
        federation = self._fitting(contract)
        (client,) = federation.clients
        found = [
            (True, f"fedbn {__version__}, torch {torch.__version__}"),
            (True, f"{len(client.train):,} training samples of shape {federation.input_shape}"),
            (True, f"{len(federation.classes)} classes, hash {digest(federation.classes)}"),
        ]
        found += [(True, text) for text in federation.remarks] if contract else []
        for one in examine(federation):
            found.append((one.severity != "error", f"data, {one.severity}: {one.text}"))
        return found

    def _check(self, order: Order) -> None:
        if self.options.federation not in (None, order.federation):
            raise ConfigError(f"an order of another federation ({order.federation})")
        if order.version != __version__:
            raise ConfigError(f"fedbn {__version__} here, fedbn {order.version} at the server")

    def hello(self, order: Order, plan: Plan) -> Hello:
        """Say what the site brings to a job: its model is made for that, nothing is trained."""
        federation = plan.federation
        (client,) = federation.clients
        return Hello(
            member=Member(name=client.name, domain=client.domain, examples=len(client.train)),
            version=__version__,
            torch=str(torch.__version__),
            device=plan.training.device,
            schema_hash=schema_hash(entries(plan.initial_model)),
            experiment=asked_by(order, plan).hash,
            min_sites=self.options.policy.min_sites,
            classes=federation.classes,
            input_shape=federation.input_shape,
            target=federation.target,
            log=self.log.newest,
        )

    def _alone(self, order: Order, job: Job) -> Federation:
        """The site's data as a federation of one, as an order wants it split."""
        experiment = job.setting.experiment
        federation = self._fitting(experiment.data.contract)
        share = experiment.evaluation.validation
        return with_validation(federation, share, order.seed) if share else federation

    def _job(self, order: Order) -> Job:
        try:
            return job_of(order, self.options.device, self.options.weights)
        except ConfigError as error:
            error.__cause__ = None  # it is about the server's own words, which it may hear
            raise

    def _desk(self, order: Order, job: Job) -> Desk:
        """The job's model, made anew when its members change; one job at a time has one."""
        of_a_message = {"kind", "round", "since", "best", "scores", "last", "log"}
        of_a_message |= {"session", "updates"}
        key = order.model_dump_json(exclude=of_a_message)
        if key not in self.desks:
            # Before the copies of a model that training needs.
            self._check_approval(order, self._plan(order, job))
            self.desks = {key: Desk(self.options, job, self._alone(order, job), order)}
        return self.desks[key]


def one_thread() -> None:
    """Sums inside an operation depend on its threads: one, for the same bits everywhere."""
    torch.set_num_threads(1)


@contextmanager
def _own_data(data: Mapping[str, Any]) -> Iterator[None]:
    """How a site's files are named and written is its own affair, and told of as data is."""
    try:
        yield
    except ConfigError as error:
        if "path" not in data and ":" not in str(data.get("name")):  # a data set that fedbn ships
            raise
        raise DataError(str(error)) from error


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, FedbnError) else reason(error)


def _public(error: Exception, options: SiteOptions) -> str:
    """Why not, as far as it is the server's business: nothing of a file, a row or a value."""
    if isinstance(error, messages.NotYet):
        return _WAITS
    if isinstance(error, DataError):
        names = "names" in options.policy.sends
        said = f": {error.public}" if names and isinstance(error, Misfit) else ""
        return f"its data does not fit{said}; `fedbn federation check` at the site says more"
    if kind := _unforeseen(error):
        return f"not foreseen: {kind}; `fedbn federation log` at the site says more"
    if isinstance(error, Untrusted):
        return (
            f"the order names module {error.module}, imported here only with --trust {error.module}"
        )
    text = shown(error)
    for place in (options.folder, options.home, options.weights, options.data.get("path")):
        text = text.replace(shown(place), "…") if place and os.sep in str(place) else text
    return _without_paths(text)


def _without_paths(text: str) -> str:
    """Take every path of this machine out of a text, as the file that an import error names."""
    places = sorted({shown(place) for place in (Path.cwd(), *sys.path)}, key=len, reverse=True)
    for place in places:
        if os.sep in place.strip(os.sep):
            text = re.sub(re.escape(place) + _REST, "…", text)
    return _PATH.sub("…", text)


def _unforeseen(error: BaseException) -> str:
    """The kind of an error that others' code raised, first or last: its text may hold a value."""
    if isinstance(error, Failed):
        return error.kind
    if isinstance(error, messages.Unreadable | DamagedRun):  # of a message, of a run's files
        return ""
    if error.__cause__ is not None:
        return _unforeseen(error.__cause__)
    return "" if isinstance(error, FedbnError) else type(error).__name__


def reply(site: Site, message: Message, state: RecordDict) -> Message:
    """Answer a message; what goes wrong is said, not raised, so that the server can name it."""
    about = {**messages.about(message.content), "theirs": messages.their_log(message.content)}
    about |= messages.received_state(message.content)
    try:
        content = site.answer(message.content, state)
        site.log.write("answered", **about, sent=messages.what_is_in(content))
    except Exception as error:
        log.debug("site %s", site.options.name, exc_info=not isinstance(error, FedbnError))
        content = _sorry(site, about, error)
    return Message(content, reply_to=message)


def _sorry(site: Site, about: Mapping[str, Any], error: Exception) -> RecordDict:
    """Say why not: all of it in the site's own log, what is the server's business to the server."""
    said, told = _said(error), _public(error, site.options)[:2000]
    event = "refused" if isinstance(error, FedbnError) else "failed"
    site.log.write(event, **about, reason=said[:500], told=told[:500])
    for desk in site.desks.values():
        desk.remark(said)
    if said != told:
        log.warning("%s", said)
    waiting = isinstance(error, messages.NotYet)
    return messages.put(messages.Sorry(reason=told, waiting=waiting, log=site.log.newest))
