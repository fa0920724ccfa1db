"""Data given from Python: arrays, Datasets and DataFrames, by client or as one to be dealt out.

A client is `(x, y)`, `(x, y, groups)`, a Dataset or a DataFrame; or `(train, test)` or
`(train, valid, test)` of the first three. Arrays stay in memory; where a Dataset is among them,
everything is read lazily.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from fedbn.core.federation import AnySplit, Client, Federation, Origin, Split, Targets
from fedbn.core.findings import Warned
from fedbn.core.randomness import divided, generator, seeded
from fedbn.data import dataset_samples
from fedbn.data.arrays import numbered_groups, samples_of, tensor_of
from fedbn.data.benchmarks import TestShare
from fedbn.data.columns import Missing, Standardized
from fedbn.data.lazy_split import LazySplit, Loader, Workers
from fedbn.data.shared_groups import (
    GroupScope,
    by_index,
    check_sides,
    divided_by_id,
    global_numbers,
    regrouped,
    shared_ids_warning,
)
from fedbn.data.tables import TableOptions, frame_tables, is_frame, table_federation
from fedbn.data.targets import Meaning, RawTargets, StandardTask, meaning_of
from fedbn.errors import ConfigError, DataError
from fedbn.text import listed

Data = Any
"""A `Federation`, a mapping of clients to their data, or one data set to be dealt out."""
_SHAPES = (
    "(x, y), (x, y, groups), a Dataset or a DataFrame; or (train, test) or (train, valid, test)"
)
_PARTS = {2: ("train", "test"), 3: ("train", "valid", "test")}
_FEWEST = 3
_LOG = logging.getLogger("fedbn")
_RANDOM = "gives different samples for one index, as random transforms do"


def federation_of(
    data: Data,
    classes: list[str] | None = None,
    workers: Workers = 0,
    label: str | list[str] | None = None,
    site: str | None = None,
    id: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "error",
    test_share: TestShare = 0.2,
    split_seed: int = 0,
    numbers: bool = False,
    group_scope: GroupScope | None = None,
    task: StandardTask | None = None,
    normalize: Standardized | None = None,
) -> Federation:
    """Make a federation of data that was given from Python: by client, or one client's.

    A client without a test part has a stratified share of it held out. Floats become float32, as
    models are; `uint8` images stay and are scaled to [−1, 1] batch by batch. `classes` names the
    classes where Datasets do not tell them; `workers`, processes that read Datasets ahead, never
    change a result. `task` decides where targets could mean two things. The other options are for
    DataFrames, as the data set `tables` has them.

    Examples:
        >>> x = [[0.0], [1.0], [2.0], [3.0], [4.0]] * 2
        >>> made = federation_of({"a": (x, ["no", "yes", "no", "yes", "no"] * 2)})
        >>> len(made.clients[0].train), len(made.clients[0].tests["a"]), made.classes
        (8, 2, ('no', 'yes'))
    """
    if isinstance(data, Federation):
        return data
    named = data if isinstance(data, Mapping) else {"data": data}
    if not (given := {str(name): each for name, each in named.items()}):
        raise DataError(f"data: no clients; expected a mapping of clients to {_SHAPES}")
    columns = TableOptions(
        label,
        site,
        id,
        group,
        drop,
        categorical,
        missing,
        test_share,
        split_seed,
        numbers=numbers,
        task=task,
        group_scope=group_scope,
        normalize=normalize or "none",
    )
    if any(map(is_frame, given.values())):
        return table_federation("tables", frame_tables(given, site), columns)
    if columns != TableOptions(
        test_share=test_share, split_seed=split_seed, task=task, group_scope=group_scope
    ):
        raise ConfigError("data.label, data.site and the like name columns, which DataFrames have")
    parts = {name: _parts(name, each) for name, each in given.items()}
    if len(orders := {p.columns for own in parts.values() for p in own.values() if p.columns}) > 1:
        told = " and ".join(", ".join(names[:10]) for names in sorted(orders)[:2])
        raise DataError(f"data: DataFrames of other columns, or in another order: {told}")
    return _federation(parts, classes, workers, columns, task)


@dataclass(frozen=True)
class _Part:
    """One part of a client: a Dataset, or arrays; its targets and groups where they are known."""

    where: str
    dataset: Any = None
    x: Tensor | None = None
    y: NDArray[Any] | None = None
    groups: Tensor | None = None
    columns: tuple[str, ...] = ()  # of a DataFrame
    ids: tuple[str, ...] = ()  # of the groups, one a sample

    def __len__(self) -> int:
        return len(self.dataset if self.x is None else self.x)


def _parts(name: str, given: Any) -> dict[str, _Part]:
    """Tell a client's parts apart: `all`, or `train` and `test`, perhaps `valid`."""
    where = f"data, client {name}"
    if isinstance(given, Mapping) and {"train", "test"} <= set(given):  # a DatasetDict
        valid = [given[key] for key in ("valid", "validation") if key in given][:1]
        given = (given["train"], *valid, given["test"])
    several = isinstance(given, tuple | list) and len(given) in _PARTS
    arrays = several and not any(is_dataset(each) or isinstance(each, tuple) for each in given)
    if is_dataset(given) or arrays:
        return {"all": _part(where, given)}
    if not several:
        raise DataError(f"{where}: expected {_SHAPES}, got a {type(given).__name__}")
    pairs = zip(_PARTS[len(given)], given, strict=True)
    return {part: _part(f"{where}, {part}", each) for part, each in pairs}


def is_dataset(value: Any) -> bool:
    """Tell a map-style Dataset from arrays and collections of them."""
    array = isinstance(value, Sequence | Mapping | Tensor) or hasattr(value, "__array__")
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not array


def _part(where: str, given: Any) -> _Part:
    if is_dataset(given):
        return _Part(where, dataset=given, y=dataset_samples.known_targets(given))
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= 3:
        raise DataError(f"{where}: a {type(given).__name__}; expected (x, y) or a Dataset")
    x = samples_of(given[0], f"{where}, x")
    y, groups, ids = given[1], None, tuple[str, ...]()
    names = y.numpy(force=True) if isinstance(y, Tensor) else np.asarray(y)
    if names.dtype.kind == "O" and all(isinstance(v, str) for v in names.flat):
        names = names.astype(str)
    y = names if names.dtype.kind in "USb" else tensor_of(y, f"{where}, y").numpy(force=True)
    if len(given) == 3:
        groups = numbered_groups(np.asarray(given[2]), len(x), f"{where}, groups")
        ids = tuple(np.asarray(given[2]).astype(str).tolist())
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples but {len(y)} labels")
    columns = tuple(map(str, given[0].columns)) if is_frame(given[0]) else ()
    return _Part(where, None, x, y, groups, columns, ids)


def _federation(
    given: Mapping[str, Mapping[str, _Part]],
    classes: Sequence[str] | None,
    workers: int,
    options: TableOptions,
    task: str | None,
) -> Federation:
    parts = {(name, part): each for name, own in given.items() for part, each in own.items()}
    lazy = any(part.dataset is not None for part in parts.values())
    for name, own in given.items():
        if "all" in own and len(own["all"]) < _FEWEST:
            count = len(own["all"])
            raise DataError(f"data, client {name}: {count} samples; at least {_FEWEST} are needed")
    meaning, parts, remarks = _meaning(parts, classes, task)
    splits = _splits(parts, meaning, workers if lazy else None)
    clients, sides = [], _sides_by_id(parts, splits, options)
    trained, tested = _ids(parts, "train"), _ids(parts, "test")
    if sides is not None:
        numbers = global_numbers({key: part.ids for key, part in parts.items()})
        splits = {key: regrouped(split, numbers[key]) for key, split in splits.items()}
    for name, own in given.items():
        mine = {part: splits[name, part] for part in own}
        if "all" in mine:
            whole = mine["all"]
            if sides is not None:
                rest, held = sides[name]
            else:
                draws = generator(options.split_seed, "test split", client=name)
                rest, held = divided(whole, options.test_share, draws)
            ids = parts[name, "all"].ids
            trained[name], tested[name] = by_index(ids, rest), by_index(ids, held)
            if isinstance(whole, Split):
                whole = replace(whole, origin=Origin(torch.arange(len(whole))))
            mine = {"train": whole.take(rest), "test": whole.take(held)}
        clients.append(Client(name, name, mine["train"], {name: mine["test"]}, mine.get("valid")))
    remarks += _augmented_tests(parts)
    remarks += shared_ids_warning(trained, tested, options.group_scope)
    columns = {part.columns for part in parts.values()}  # one, or none where a part is no frame
    told: dict[str, Any] = (
        {"frame": next(iter(columns))} if len(columns) == 1 and columns != {()} else {}
    )
    if sides is not None:
        told["group_scope"] = "global"
    return Federation("arrays", tuple(clients), meaning.names, tuple(remarks), told)


def _ids(parts: Mapping[Any, _Part], *which: str) -> dict[str, list[str]]:
    """Return the ids of each client's samples, in some of its parts."""
    found: dict[str, list[str]] = {}
    for (name, part), each in parts.items():
        if part in which and each.ids:
            found.setdefault(name, []).extend(each.ids)
    return found


def _sides_by_id(
    parts: Mapping[Any, _Part], splits: Mapping[Any, AnySplit], options: TableOptions
) -> dict[str, tuple[Tensor, Tensor]] | None:
    """Return the division of samples where ids are global; None where they are not."""
    if options.group_scope != "global":
        return None
    if any(not part.ids for part in parts.values()):
        raise ConfigError(
            "data.group_scope = 'global' needs groups at every client: (x, y, groups), or "
            "data.group for DataFrames"
        )
    check_sides(_ids(parts, "train"), _ids(parts, "test", "valid"))
    whole = _ids(parts, "all")
    known = {name: splits[name, "all"].y for name in whole}
    labels = {
        name: torch.zeros(len(whole[name]), dtype=torch.int64) if y is None else y
        for name, y in known.items()
    }
    sides = divided_by_id(labels, whole, options.test_share, options.split_seed)
    tested = {n: [whole[n][at] for at in held.tolist()] for n, (_, held) in sides.items()}
    trained = {n: [whole[n][at] for at in rest.tolist()] for n, (rest, _) in sides.items()}
    check_sides(_ids(parts, "train"), tested)
    check_sides(trained, _ids(parts, "test", "valid"))
    return sides


def _augmented_tests(parts: Mapping[Any, _Part]) -> list[Warned]:
    """Warn about random transforms of samples that models are scored on."""
    scored_on = {
        key: each.dataset
        for key, each in parts.items()
        if key[1] != "train" and each.dataset is not None and len(each)
    }
    differ = {
        key: dataset_samples.reads_differ(one)
        for key, one in {id(one): one for one in scored_on.values()}.items()
    }
    random = [key for key, one in scored_on.items() if differ[id(one)]]
    divided = [name for name, part in random if part == "all"]
    scored = [f"{name} ({part})" for name, part in random if part != "all"]
    found = []
    if divided:
        found.append(
            f"the Dataset of {listed(divided)} {_RANDOM}. The part that is held out for testing "
            "goes through the same transforms; give two Datasets, (train, test), of which the "
            "second has none"
        )
    if scored:
        found.append(
            f"the Dataset of {listed(scored)} {_RANDOM}, so models are scored on changed samples; "
            "leave random transforms out of it"
        )
    return [Warned(text) for text in found]


def _datasets_of(split: LazySplit) -> list[Any]:
    """Return the Datasets that samples of a split are read from."""
    return [split.loader.sources[which].dataset for which in split.rows[:, 0].unique().tolist()]


def augmented_validation(federation: Federation) -> list[Warned]:
    """Warn about random transforms of training Datasets that a validation part is held out of."""
    found = [
        client.name
        for client in federation.clients
        if client.valid is None
        and isinstance(client.train, LazySplit)
        and any(map(dataset_samples.reads_differ, _datasets_of(client.train)))
    ]
    if not found:
        return []
    return [
        Warned(
            f"the training Dataset of {listed(found)} {_RANDOM}. The part that "
            "evaluation.validation holds out goes through the same transforms; give three "
            "Datasets, (train, valid, test), of which only the first has random transforms"
        )
    ]


def _meaning(
    parts: Mapping[Any, _Part], given: Sequence[str] | None, task: str | None
) -> tuple[Meaning, dict[Any, _Part], list[str]]:
    """Return what all targets mean; the parts, with targets that were read; and messages."""
    names = given or _agreed(parts.values())
    found, raw = dict(parts), list[RawTargets]()
    for key, part in parts.items():
        if not len(part):
            continue
        y = part.y
        if y is None:
            y = _target(part, 0)[None]
            if names is None and (y.dtype.kind != "f" or task != "regression"):
                y = _read_targets(part)
                if len(y) == len(part):
                    found[key] = replace(part, y=y)
        shape = () if part.x is None else tuple(part.x.shape[1:])
        raw.append(RawTargets(part.where, y, shape))
    meaning = meaning_of(raw, names, task)
    return meaning, found, [*meaning.notes]


def _target(part: _Part, index: int) -> NDArray[Any]:
    if part.y is not None:
        return np.asarray(part.y[index])
    try:
        with seeded(0):
            return np.asarray(dataset_samples.parts_of(part.dataset[index])[1])
    except Exception as error:
        raise DataError(f"{part.where}, sample {index}: {dataset_samples.told(error)}") from error


def _agreed(parts: Iterable[_Part]) -> list[str] | None:
    """The names of classes that Datasets tell, which must be the same; None where none does."""
    named = {
        part.where: names for part in parts if (names := dataset_samples.class_names(part.dataset))
    }
    first = next(iter(named), "")
    for where, names in named.items():
        if names != named[first]:
            raise DataError(
                f"{where}: classes {names} differ in name or order from {named[first]} of {first}"
            )
    return named.get(first)


def _read_targets(part: _Part) -> NDArray[Any]:
    """Read the targets of a Dataset that tells neither them nor its classes.

    Reading stops at the first float with a fraction: the targets are numbers then.

    Returns:
        All targets; or one, where they are numbers.
    """
    found: list[NDArray[Any]] = []
    for index in range(len(part)):
        found.append(_target(part, index))
        if found[-1].dtype.kind == "f" and bool((found[-1] % 1 != 0).any()):
            return found[-1][None]
        if index == 1:
            _LOG.warning(
                f"{part.where}: reading all {len(part)} samples to find their labels. This is not "
                "needed where the Dataset has an attribute `targets`, where data.classes names "
                "the classes, or where the task is 'regression'"
            )
    try:
        values = np.stack(found)
    except ValueError as error:
        raise DataError(f"{part.where}: targets of different shapes") from error
    return dataset_samples.in_one_column(values)


def _targets(meaning: Meaning, part: _Part) -> Tensor:
    """Return known targets of a part as a model takes them."""
    assert part.y is not None
    y = meaning.tensor(part.y, part.where)
    negative = (y < 0).nonzero() if meaning.kind is Targets.CLASS else ()
    for sample in negative[:1]:  # before the division class by class, which counts labels from 0
        raise DataError(
            f"{part.where}: label {int(y[sample])} of sample {int(sample)}; expected 0 or more, "
            "because classes are numbered from 0"
        )
    return y


def _splits(
    parts: Mapping[Any, _Part], meaning: Meaning, workers: int | None
) -> dict[Any, AnySplit]:
    """Make the splits: in memory, or read by so many workers."""
    known = {k: None if p.y is None else _targets(meaning, p) for k, p in parts.items()}
    held = {
        k: (p.x, y) for k, p in parts.items() if p.x is not None and (y := known[k]) is not None
    }
    if workers is None:
        return {key: Split(*held[key], groups=part.groups) for key, part in parts.items()}
    sources = []
    for key, part in parts.items():
        dataset = TensorDataset(*held[key]) if key in held else part.dataset
        sources.append(dataset_samples.Source.of(dataset, part.where, meaning.names, meaning.kind))
    loader = Loader(sources, workers)
    return {
        key: LazySplit.of(loader, which, known[key], part.groups)
        for which, (key, part) in enumerate(parts.items())
    }
