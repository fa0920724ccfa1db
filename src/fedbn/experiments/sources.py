"""Data and models by the names a configuration gives them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
from pydantic import ConfigDict, ValidationError, create_model
from torch import Tensor, nn

import fedbn.datasets
from fedbn import registry
from fedbn.core.bn_replacement import with_groupnorm
from fedbn.core.federation import Federation, Targets
from fedbn.core.packing import StateLayout
from fedbn.core.state import entries, unwrap
from fedbn.core.task import FITTING, Task
from fedbn.core.user_code import contained
from fedbn.data.checks import recognize
from fedbn.data.partitions import dealt
from fedbn.data.preparation import prepared
from fedbn.data.python_data import Data, federation_of
from fedbn.errors import ConfigError, DataError, Misfit, ModelError, blamed, unknown
from fedbn.experiments.configuration import IN_PYTHON, explained
from fedbn.experiments.data_contract import check_options, fitting, own_classes, reader_of
from fedbn.experiments.schema import DataSection, Experiment, ModelSection, TaskSection
from fedbn.models import suggested
from fedbn.tasks.making import TaskChoice
from fedbn.text import one_line

_WRAPPERS = ("module.", "_orig_mod.")
_CLIENTS = 10


def data_name(section: DataSection) -> tuple[str, str | None]:
    """The data set that a section means, and, where a path's kind was recognised, a sentence."""
    if section.name:
        return section.name, None
    return recognize(section.path) if section.path else ("digits_mini", None)


def named_files(path: str | None, section: DataSection | ModelSection) -> list[str]:
    """Say that a path was opened which a file names and nobody typed; a sentence or none."""
    held = section.held
    return [f"read {path}, which {held.file} names"] if path and held.announced else []


def load_federation(
    section: DataSection,
    site: str | None = None,
    task: str | None = None,
    most_bytes: float | None = None,
) -> Federation:
    """Read the data that a configuration names, and prepare it for training; see `read_federation`.

    Every client's samples are completed by what its own training samples decide.
    """
    federation = read_federation(section, site, task, most_bytes)
    with blamed(DataError, f"data {federation.name}"):
        return prepared(federation)


def read_federation(
    section: DataSection,
    site: str | None = None,
    task: str | None = None,
    most_bytes: float | None = None,
) -> Federation:
    """Read the data that a configuration names, encoded as at every site.

    Args:
        section: The data.
        site: Whose data it is, where it is one site's.
        task: The task that decides between two readings of targets, where one is named.
        most_bytes: How many bytes samples may have that are read by a contract; None for any.
    """
    name, _ = data_name(section)
    _check_named(name, "data")
    build = registry.find(fedbn.datasets, name, "data set", section.held)
    options = options_of(build, section.options, f"data {name}")
    contract, by_contract = section.contract, reader_of(name)
    if site is not None and options.get("group_scope") == "global":
        raise ConfigError(
            "data.group_scope = 'global' compares the ids of all sites, and one site has its own "
            "alone: divide the data before (train/ and test/), or set 'site'"
        )
    if not (contract and by_contract):  # which read targets as the contract says
        options = _with_task(options, build, contract.task if contract else task)
    if name == "arrays":
        options = {"partial": site is not None, **options}
        options |= {"classes": list(contract.classes)} if contract else {}
    if contract:
        check_options(options, contract)
    with blamed(DataError, f"data {name}"):
        try:
            if contract and by_contract:
                federation = by_contract(options, contract, site, most_bytes)
            else:
                federation = build(**options)
        except OSError as error:
            said = error.strerror or one_line(error)
            raise DataError(f"data {name}: {said}: {error.filename}") from error
    if not isinstance(federation, Federation):
        raise ConfigError(f"data {name} gives a {type(federation).__name__}, not a Federation")
    return _dealt(fitting(federation, contract) if contract else federation, section)


def _check_named(name: str, part: str) -> None:
    """Refuse what stands in the configuration of a run for an object that only Python had."""
    if name == IN_PYTHON:
        raise ConfigError(
            f"{part}.name = {name!r}: the run was made in Python, and its {part} is in no file; "
            f"name the {part} with --{part}, or call fedbn.fit in Python"
        )


def at_site(site: str, source: dict[str, Any]) -> Federation:
    """The data of one site, by the `[data]` that it joined with and the contract it was read by."""
    held = registry.Held("the configuration of a site's run")
    return alone(DataSection.model_validate(source, context=held), site)


def alone(section: DataSection, site: str, most_bytes: float | None = None) -> Federation:
    """Load a site's data as a federation of one: the client of its name, or the only one."""
    found = load_federation(own_section(section), site, most_bytes=most_bytes)
    for client in found.clients:
        if client.name == site or len(found.clients) == 1:
            return replace(found, clients=(replace(client, name=site),))
    names = [client.name for client in found.clients]
    text = f"data {found.name}: {unknown('site', site, names)}"
    raise Misfit(text, f"its data has several clients, and unknown site {site!r}")


def own_section(section: DataSection) -> DataSection:
    """Recognise a site's own class folders, PATH/CLASS/*.png, beside what is anybody's."""
    if section.name is None and section.path and own_classes(Path(section.path)):
        return section.model_copy(update={"name": "folders"})
    return section


def _with_task(
    options: dict[str, Any], build: Callable[..., Any], task: str | None
) -> dict[str, Any]:
    """Add the task to the options of a data set that reads targets by it."""
    takes = registry.signature_of(build, "data").parameters.get("task")
    ours = takes is not None and takes.kind is not takes.VAR_KEYWORD and takes.default is None
    return {"task": task, **options} if ours and task else options


def named_task(section: TaskSection, own: TaskChoice | None = None) -> str | None:
    """Return the standard task of an experiment, or None where the data decides it.

    A task of the user's own counts as the standard task with the same kind of targets.
    """
    given = own.task if own is not None and own.task is not None else section.name
    if given is None or given == IN_PYTHON:
        return None
    if given in FITTING.values():
        return str(given)
    return FITTING[TaskChoice(given, held=section.held).make().targets]


def given_federation(data: Data, section: DataSection, task: str | None = None) -> Federation:
    """Make a federation of data given from Python, prepared for training."""
    return prepared(read_given(data, section, task))


def read_given(data: Data, section: DataSection, task: str | None = None) -> Federation:
    """Make a federation of data given from Python, with the options a configuration gives.

    Its samples are encoded as at every site.
    """
    build = partial(federation_of, data)
    options = _with_task(options_of(build, section.options, "data"), build, task)
    flat = not isinstance(data, Mapping | Federation)
    if flat and section.partition is None and "site" not in options:
        raise DataError(
            f"data is a {type(data).__name__}; expected a mapping of clients to data; one data set "
            "is dealt into clients by data.partition, a DataFrame by its column data.site"
        )
    return _dealt(federation_of(data, **options), section)


def _dealt(federation: Federation, section: DataSection) -> Federation:
    """Deal all samples into clients, where that is asked for."""
    if section.partition is None:
        return federation
    if federation.preparation.get("group_scope") == "global" and len(federation.clients) > 1:
        raise ConfigError(
            "data.group_scope = 'global' and data.partition exclude each other: a partition deals "
            "the groups of every site on their own"
        )
    seed = section.options.get("split_seed", 0)
    return dealt(federation, section.partition, section.clients or _CLIENTS, seed)


def model_builder(
    section: ModelSection, federation: Federation, own: Callable[..., nn.Module] | None = None
) -> Callable[[], nn.Module]:
    """Give a function that makes the model for some data; it is called anew for every seed."""
    name = section.name or suggested_for(federation)
    if own is None:
        _check_named(name, "model")
    build = own or registry.find(fedbn.models, name, "model", section.held)
    given = {"classes": len(federation.classes), "input_shape": federation.input_shape}
    signature = registry.signature_of(build, f"model {name}")
    arguments = {key: value for key, value in given.items() if key in signature.parameters}
    arguments |= section.args
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"model {name}: {error}; model.args fits {signature}") from error
    weights = read_weights(Path(section.weights)) if section.weights else None

    def make() -> nn.Module:
        with blamed(ModelError, f"model {name}"), contained():
            model = build(**arguments)
        if not isinstance(model, nn.Module):
            raise ModelError(f"model {name} gives a {type(model).__name__}, not an nn.Module")
        if weights is not None:
            load_weights(model, weights, str(section.weights), section.fresh)
        return with_groupnorm(unwrap(model)) if section.transform == "groupnorm" else model

    return make


def task_of(experiment: Experiment, federation: Federation, own: TaskChoice | None = None) -> Task:
    """Make the task: the one named or given, or the one that the data's targets are for."""
    section, further = experiment.task, experiment.evaluation.metrics
    named = TaskChoice(
        section.name or FITTING[federation.targets or Targets.CLASS],
        section.loss,
        section.metrics,
        section.class_weights,
        further,
        experiment.held,
    )
    return (named if own is None else own.over(named)).make()


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file; a pickle is refused."""
    if file.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl"):
        raise ConfigError(
            f"{file}: a pickle can run code and is refused. Convert it where you trust it: "
            "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')"
        )
    try:
        return safetensors.torch.load(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"model.weights {file}: {error.strerror}") from error
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(
            f"model.weights {file}: not a whole safetensors file ({error})"
        ) from error


def suggested_for(federation: Federation) -> str:
    """Name a model that fits the data."""
    return suggested(federation.input_shape, federation.targets is Targets.MASK)


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], where: str, fresh: Sequence[str] = ()
) -> None:
    """Put weights into a model; every entry must be there, and fit, but for `fresh` patterns."""
    kept = [e for e in entries(model) if not any(fnmatchcase(e.name, p) for p in fresh)]
    names = [e.name for e in entries(model)]
    for pattern in fresh:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"model.fresh: {unknown('entry', pattern, names[-8:])}")
    weights = {n: w for n, w in weights.items() if not any(fnmatchcase(n, p) for p in fresh)}
    layout = StateLayout.of(kept)
    expected = {entry.name for entry in layout.entries}
    aliases = {entry.name for entry in kept} - expected
    state = {_unwrapped(name, expected | aliases): value for name, value in weights.items()}
    state = {name: value for name, value in state.items() if name not in aliases}
    packed = layout.pack(state, where)
    if name := packed.unusable():
        raise ModelError(f"{where}: NaN or infinity in {name}")
    unwrap(model).load_state_dict(packed.state, strict=False)


def _unwrapped(name: str, expected: set[str]) -> str:
    """Take `module.` and `_orig_mod.` off a name, as wrapped models save them."""
    while name not in expected and name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def options_of(build: Callable[..., Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check options against a data set's signature."""
    parameters = registry.signature_of(build, where).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(given)
    if "path" in given and "path" not in parameters:
        raise ConfigError(f"{where} takes no data.path")
    for key in given:
        if key not in parameters:
            raise ConfigError(
                f"{where}: {unknown('option', f'data.{key}', [f'data.{p}' for p in parameters])}"
            )
    hints: dict[str, Any] = {}
    with suppress(Exception):  # a user's names may be nowhere to be looked up
        function = build.func if isinstance(build, partial) else build
        hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if p.default is p.empty else p.default)
        for name, p in parameters.items()
    }
    model = create_model(
        "Options", __config__=ConfigDict(strict=True, arbitrary_types_allowed=True), **fields
    )
    try:
        model.model_validate(dict(given))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigError(f"{where}: data.{explained(problem, model)}") from error
    return dict(given)
