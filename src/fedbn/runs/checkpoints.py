"""Checkpoints of one job: the state after a round, every part of it with a checksum.

A checkpoint is a folder of two files. `state.safetensors` holds sections. A section that is kept
whole (`shared`, `server`, `optimizer`) is its tensors under their names. A section of rows
(`local`, `untrained`, `own_statistics`) is one matrix per group of the layout. It has one row per
client, in the order of their names.
`manifest.json` says where an entry lies in a row, and has the sha256 of every section and row, so
that one client's part is read and verified alone.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedbn.core.method import ServerState
from fedbn.core.packing import Pack, StateLayout
from fedbn.core.rounds import ClientStates, RunState
from fedbn.core.state import State
from fedbn.errors import DamagedRun, ModelError
from fedbn.runs.folder import explained, sealed, sync_folder, to_json, unsealed, write_through
from fedbn.runs.metrics import Manifest, read_as

FORMAT = 3
"""Of a manifest and the tensors beside it."""
_MANIFEST = TypeAdapter(Manifest)
_KEEP = 2
_ROWS = ("local", "untrained", "own_statistics")  # the parts of a state that are one per client
_HELD_BYTES = 1 << 28  # of clients' parts that changed since the last checkpoint
_NAME = re.compile(r"round-(\d{6,})")
T = TypeVar("T")
Best = Callable[[int], int]
"""Gives the best round of those up to one; 0 where none is better than the last."""


def save(
    folder: Path,
    state: RunState,
    facts: Mapping[str, Any],
    keep: int | None = _KEEP,
    best: Best = lambda round: 0,
    start: RunState | None = None,
) -> None:
    """Write a checkpoint beside earlier ones; keep the last two (`keep` None: all) and the best.

    Parts that are still those of `start`, the state before the first round, are left out.
    """
    final = place_of(folder, state.round)
    temporary = folder / f".{final.name}.tmp"
    sections = {
        "shared": state.shared.state,
        "server": state.server.hooks,
        "optimizer": state.server.optimizer,
    }
    parts = {name: getattr(state, name) for name in _ROWS}
    if start is not None:
        parts = {
            name: {c: p for c, p in packs.items() if p is not getattr(start, name).get(c)}
            for name, packs in parts.items()
        }
    manifest = {
        **facts,
        "format": FORMAT,
        "round": state.round,
        "sections": {name: digest(tensors) for name, tensors in sections.items() if tensors},
        "rows": {name: _described(packs) for name, packs in parts.items() if packs},
    }
    with explained(final):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_through(temporary / "manifest.json", sealed(manifest))
        _write_tensors(temporary / "state.safetensors", _tensors(sections, parts))
        shutil.copymode(temporary / "manifest.json", temporary / "state.safetensors")
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(folder)
        if keep:
            forget_before(folder, state.round, keep, best)


def _described(packs: Mapping[str, Pack]) -> dict[str, Any]:
    layout = next(iter(packs.values())).layout
    places = [(entry, *layout.places[entry.name]) for entry in layout.entries]
    return {
        "clients": {client: digest(_labelled(pack)) for client, pack in packs.items()},
        "entries": {e.name: [group.label, offset, e.shape] for e, group, offset in places},
    }


def _tensors(sections: Mapping[str, State], parts: Mapping[str, Mapping[str, Pack]]) -> State:
    tensors = {f"{name}/{key}": t for name, state in sections.items() for key, t in state.items()}
    for name, packs in parts.items():
        rows = [_labelled(packs[client]) for client in sorted(packs)]
        for label in rows[0] if rows else ():
            tensors[f"{name}/{label}"] = torch.stack([row[label] for row in rows])
    return tensors


def _write_tensors(file: Path, tensors: State) -> None:
    # `save_file` copies nothing, but lets only the owner read, and says an error in words alone.
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number)) from error
    with file.open("r+b") as stream:
        os.fsync(stream.fileno())


def _labelled(pack: Pack) -> State:
    return {group.label: vector for group, vector in pack.vectors.items()}


def digest(tensors: State) -> str:
    """Hash tensors: names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def forget_before(
    folder: Path, round: int, keep: int = _KEEP, best: Best = lambda round: 0
) -> None:
    """Keep the checkpoint of a round and the last ones before it; a kill may have left more.

    The best round stays of each that is kept: where the newest turns out to be damaged, the run
    is at the one before it, and that one's best is there.
    """
    earlier = {number: path for number, path in rounds(folder) if number < round}
    kept = {round, *list(earlier)[: keep - 1]}
    kept |= {best(number) for number in kept}
    gone = [earlier[number] for number in earlier.keys() - kept]
    for path in (*gone, *folder.glob(".round-*.tmp")):  # what a disk keeps is tried again
        shutil.rmtree(path, ignore_errors=True)


def place_of(folder: Path, round: int) -> Path:
    """Where the checkpoint of a round lies."""
    return folder / f"round-{round:06d}"


def rounds(folder: Path) -> list[tuple[int, Path]]:
    """List the checkpoints of a job, newest first."""
    found = [
        (match, path) for path in folder.glob("round-*") if (match := _NAME.fullmatch(path.name))
    ]
    return sorted(((int(match[1]), path) for match, path in found), reverse=True)


class Checkpoint:
    """A checkpoint, opened; what is read of it is verified."""

    def __init__(self, path: Path):
        self.path = path
        self.manifest = read_manifest(path)
        self._file = path / "state.safetensors"
        self._tensors = _opened(self._file)

    def section(self, name: str) -> State:
        """Read a section that is kept whole; empty where there is none of this name."""
        if name not in self.manifest["sections"]:
            return {}
        found = _named(self._tensors, f"{name}/")
        return _verified(found, self.manifest["sections"][name], f"{self._file}, {name}")

    @cached_property
    def clients(self) -> dict[str, dict[str, int]]:
        """Of each section of rows, the clients and where their rows are."""
        found: dict[str, dict[str, int]] = {}
        for name, about in self.manifest["rows"].items():
            found[name] = {client: row for row, client in enumerate(about["clients"])}
            for key in {label for label, _, _ in about["entries"].values()}:
                with _whole(self._file):
                    rows = self._tensors.get_slice(f"{name}/{key}").get_shape()[0]
                if rows > len(found[name]):
                    raise DamagedRun(f"{self._file}: {name}/{key} has rows of clients not named")
        return found

    def row(self, section: str, client: str) -> State:
        """Read one client's part, and no other's."""
        about, number = self.manifest["rows"][section], self.clients[section][client]
        labels = {label for label, _, _ in about["entries"].values()}
        where = f"{self._file}, the {section} part of {client}"
        with _whole(where):
            row = {key: self._tensors.get_slice(f"{section}/{key}")[number] for key in labels}
            _verified(row, about["clients"][client], where)
            return {
                name: row[label][offset : offset + math.prod(shape)].view(shape)
                for name, (label, offset, shape) in about["entries"].items()
            }

    def verify(self) -> int:
        """Read everything; returns the round."""
        for section in self.manifest["sections"]:
            self.section(section)
        for section, clients in self.clients.items():
            for client in clients:
                self.row(section, client)
        return int(self.manifest["round"])


def read_tensors(file: Path, known: str) -> State:
    """Read a safetensors file of which the `digest` is known."""
    return _verified(_named(_opened(file)), known, str(file))


def _opened(file: Path) -> Any:
    with _whole(file):
        return safe_open(file, framework="pt")


@contextmanager
def _whole(where: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DamagedRun(f"{where}: missing or unreadable") from error
    except (SafetensorError, IndexError, RuntimeError) as error:
        raise DamagedRun(f"{where}: damaged ({error})") from error


def _named(tensors: Any, start: str = "") -> State:
    names = [name for name in sorted(tensors.keys()) if name.startswith(start)]
    return {name.removeprefix(start): tensors.get_tensor(name) for name in names}


def _verified(tensors: State, known: str, where: str) -> State:
    if digest(tensors) != known:
        raise DamagedRun(f"{where}: damaged (its sha256 is not the manifest's)")
    return tensors


@dataclass(frozen=True)
class ClientParts(Mapping[str, Pack]):
    """What some clients hold, each part read and verified when it is asked for.

    A client that never took part has the one it began with. Copied or pickled it is a dictionary
    of all parts: what is on disk here may not be there.
    """

    checkpoint: Checkpoint
    section: str
    start: Mapping[str, Pack]

    def __getitem__(self, client: str) -> Pack:
        start = self.start[client]
        if client not in self.checkpoint.clients.get(self.section, ()):
            return start
        row = self.checkpoint.row(self.section, client)
        return _packed(start.layout, row, self.checkpoint.path)

    def __contains__(self, client: object) -> bool:
        return client in self.start

    def __iter__(self) -> Iterator[str]:
        return iter(self.start)

    def __len__(self) -> int:
        return len(self.start)

    def __reduce__(self) -> tuple[type[dict[str, Pack]], tuple[dict[str, Pack]]]:
        return dict, (dict(self),)


def load(path: Path, like: RunState) -> RunState:
    """Read and verify a checkpoint of a run that began so; a client's part when it is asked for."""
    found = Checkpoint(path)
    hooks = found.section("server")
    for name, value in like.server.hooks.items():
        if name not in hooks or hooks[name].shape != value.shape:
            raise DamagedRun(
                f"{path}: {name} is not there as a rule declares it now: was the rule another when "
                "the run began?"
            )
    held, measured = (found.clients.get(name, {}) for name in ("local", "untrained"))
    untrained = {
        client: pack
        for client, pack in like.local.items()
        if client in measured or (client in like.untrained and client not in held)
    }
    return RunState(
        found.manifest["round"],
        _packed(like.shared.layout, found.section("shared"), path),
        ClientParts(found, "local", like.local),
        ServerState(
            {name: tensor.clone() for name, tensor in hooks.items()},
            {name: tensor.clone() for name, tensor in found.section("optimizer").items()},
        ),
        ClientParts(found, "untrained", untrained),
        ClientParts(found, "own_statistics", like.own_statistics),
    )


def read_from_disk(state: RunState, folder: Path, start: RunState) -> RunState:
    """Return a saved state whose local states are read from its checkpoint when they are needed.

    Small states are returned as they are: they stay in memory.
    """
    if not isinstance(state.local, ClientStates) or state.local.new_bytes <= _HELD_BYTES:
        return state
    saved = load(place_of(folder, state.round), start).local
    return replace(state, local=ClientStates({}, saved))


def _packed(layout: StateLayout, state: State, path: Path) -> Pack:
    try:
        return layout.pack(state)
    except ModelError as error:
        rule = "/" in str(error).partition(": ")[2]  # as no entry of a model has in its name
        hint = "; that is a rule's: was the rule another when the run began?" if rule else ""
        raise DamagedRun(f"{path}: {error}{hint}") from error


def newest(folder: Path, like: RunState, lazy: bool = False) -> tuple[RunState | None, list[str]]:
    """Find the newest checkpoint that is whole, if any was written, and say which ones were not.

    Clients' parts are read and verified when they are asked for. Unless it is lazy all are read
    once before, and kept where they take little memory.
    """

    def read(path: Path) -> RunState:
        state = load(path, like)
        if lazy:
            return state
        packs = itertools.chain.from_iterable(getattr(state, name).values() for name in _ROWS)
        if sum(v.nbytes for pack in packs for v in pack.vectors.values()) > _HELD_BYTES:
            return state
        return replace(
            state,
            local=dict(state.local),
            untrained=dict(state.untrained),
            own_statistics=dict(state.own_statistics),
        )

    return _first_whole(folder, read)


def whole_round(folder: Path) -> int:
    """The newest round whose checkpoint has all its bytes; 0 where none was ever written."""
    found, _ = _first_whole(folder, lambda path: Checkpoint(path).verify())
    return found or 0


def _first_whole(folder: Path, read: Callable[[Path], T]) -> tuple[T | None, list[str]]:
    damaged: list[str] = []
    for _, path in rounds(folder):
        try:
            return read(path), damaged
        except DamagedRun as error:
            damaged.append(str(error))
    if damaged:
        raise DamagedRun("; ".join(damaged) + "; no whole checkpoint is left")
    return None, []


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest, which has a checksum of its own."""
    manifest = unsealed(path / "manifest.json", FORMAT)
    read_as(_MANIFEST, to_json(manifest), str(path / "manifest.json"))
    if place_of(path.parent, manifest["round"]) != path:
        raise DamagedRun(f"{path}: another round's checkpoint (round {manifest['round']})")
    return manifest
