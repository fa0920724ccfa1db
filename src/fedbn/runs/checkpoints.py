"""Checkpoints of one job: the state after a round, as safetensors with checksums."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load as from_bytes, save as to_bytes

from fedbn.core.rounds import RunState
from fedbn.core.state import State
from fedbn.errors import DamagedRun, ModelError
from fedbn.runs.folder import explained, sealed, sync_folder, unsealed, write_through

FORMAT = 2
_KEEP = 2
_NAME = re.compile(r"round-(\d{6,})")
Best = Callable[[int], int]
"""Gives the best round of those up to one; 0 where none is better than the last."""


def no_best(round: int) -> int:
    """Where only the last rounds count."""
    return 0


def save(
    folder: Path,
    state: RunState,
    facts: Mapping[str, Any],
    keep: int | None = _KEEP,
    best: Best = no_best,
) -> None:
    """Write a checkpoint beside the job's earlier ones, and keep the last two and the best.

    Args:
        folder: The job's folder.
        state: What to save.
        facts: What else the manifest should hold.
        keep: How many of the last checkpoints stay; None for all.
        best: Which round stays beside them.
    """
    final = place_of(folder, state.round)
    temporary = folder / f".{final.name}.tmp"
    with explained(final):
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "local").mkdir(parents=True)
        hashes = {}
        for name, tensors in _contents(state).items():
            content = to_bytes(tensors)
            hashes[name] = hashlib.sha256(content).hexdigest()
            (temporary / name).parent.mkdir(exist_ok=True)
            write_through(temporary / name, content)
        manifest = {"format": FORMAT, "round": state.round, "files": hashes, **facts}
        write_through(temporary / "manifest.json", sealed(manifest))
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(folder)
        if keep:
            forget_before(folder, state.round, keep, best)


def forget_before(folder: Path, round: int, keep: int = _KEEP, best: Best = no_best) -> None:
    """Keep the checkpoint of a round and the last ones before it; a kill may have left more.

    The best round stays of each that is kept: where the newest turns out to be damaged, the run
    is at the one before it, and that one's best is there.
    """
    earlier = {number: path for number, path in rounds(folder) if number < round}
    kept = {round, *list(earlier)[: keep - 1]}
    kept |= {best(number) for number in kept}
    for number in earlier.keys() - kept:
        shutil.rmtree(earlier[number])


def place_of(folder: Path, round: int) -> Path:
    """Where the checkpoint of a round lies."""
    return folder / f"round-{round:06d}"


def rounds(folder: Path) -> list[tuple[int, Path]]:
    """List the checkpoints of a job, newest first."""
    found = [
        (match, path) for path in folder.glob("round-*") if (match := _NAME.fullmatch(path.name))
    ]
    return sorted(((int(match[1]), path) for match, path in found), reverse=True)


def load(path: Path, like: RunState) -> RunState:
    """Read a checkpoint and verify every byte of it.

    Args:
        path: The checkpoint's folder.
        like: A state of the same plan; gives the layouts.

    Raises:
        DamagedRun: Naming the file that is missing, altered or of a newer format.
    """
    manifest = read_manifest(path)
    contents = {name: verified(path / name, digest) for name, digest in manifest["files"].items()}
    try:
        local = {
            client: pack.layout.pack(_taken(contents, f"local/{client}.safetensors", path))
            for client, pack in like.local.items()
        }
        untrained = {
            client: pack.layout.pack(contents[file])
            for client, pack in like.local.items()
            if (file := f"untrained/{client}.safetensors") in contents
        }
        shared = like.shared.layout.pack(_taken(contents, "shared.safetensors", path))
    except ModelError as error:
        raise DamagedRun(f"{path}: {error}") from error
    memory = contents.get("server.safetensors", {})
    return RunState(manifest["round"], shared, local, memory, untrained)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest, which has a checksum of its own."""
    manifest = unsealed(path / "manifest.json", FORMAT)
    if place_of(path.parent, manifest["round"]) != path:
        raise DamagedRun(f"{path}: another round's checkpoint (round {manifest['round']})")
    return manifest


def whole_round(folder: Path) -> int:
    """The newest round whose checkpoint has all its bytes; 0 where none was ever written.

    Raises:
        DamagedRun: There are checkpoints, and none is whole.
    """
    damaged: list[str] = []
    for number, path in rounds(folder):
        try:
            for name, digest in read_manifest(path)["files"].items():
                verified(path / name, digest)
            return number
        except DamagedRun as error:
            damaged.append(str(error))
    _check_any_left(damaged)
    return 0


def newest(folder: Path, like: RunState) -> tuple[RunState | None, list[str]]:
    """Find the newest checkpoint that is whole, and say which ones were not.

    Returns:
        The state, or None where no checkpoint was ever written; and what was damaged.

    Raises:
        DamagedRun: There are checkpoints, and none is whole.
    """
    damaged: list[str] = []
    for _, path in rounds(folder):
        try:
            return load(path, like), damaged
        except DamagedRun as error:
            damaged.append(str(error))
    _check_any_left(damaged)
    return None, []


def _check_any_left(damaged: list[str]) -> None:
    if damaged:
        raise DamagedRun("; ".join(damaged) + "; no whole checkpoint is left")


def _contents(state: RunState) -> dict[str, State]:
    contents = {"shared.safetensors": state.shared.state}
    contents |= {f"local/{name}.safetensors": pack.state for name, pack in state.local.items()}
    for name, pack in state.untrained.items():
        contents[f"untrained/{name}.safetensors"] = pack.state
    if state.memory:
        contents["server.safetensors"] = state.memory
    return contents


def _taken(contents: dict[str, State], name: str, path: Path) -> State:
    if name not in contents:
        raise DamagedRun(f"{path / name}: not in the manifest")
    return contents[name]


def verified(file: Path, digest: str) -> State:
    """Read a safetensors file whose sha256 is known."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DamagedRun(f"{file}: missing or unreadable") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedRun(f"{file}: damaged (its sha256 is not the manifest's)")
    try:
        return from_bytes(content)
    except safetensors.SafetensorError as error:
        raise DamagedRun(f"{file}: damaged ({error})") from error
