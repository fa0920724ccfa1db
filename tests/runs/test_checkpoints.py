"""Checkpoints: what is damaged is named, and the one before it is used (F10 to F14)."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file, save as to_bytes

from commanding import bits, call, flip_row, newest
from fedbn import open_run
from fedbn.errors import DamagedRun, FedbnError
from fedbn.runs import checkpoints
from fedbn.runs.folder import sealed, unsealed


def truncated(checkpoint: Path) -> Path:
    file = checkpoint / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    return file


def flipped(checkpoint: Path) -> Path:
    return flip_row(checkpoint, "b")


def emptied(checkpoint: Path) -> Path:
    (checkpoint / "state.safetensors").write_bytes(b"")
    return checkpoint / "state.safetensors"


def missing(checkpoint: Path) -> Path:
    (checkpoint / "state.safetensors").unlink()
    return checkpoint / "state.safetensors"


def row_missing(checkpoint: Path) -> Path:
    """The matrices of local parts have a row less than the manifest has clients."""
    file = checkpoint / "state.safetensors"
    cut = {k: v[:1].clone() if "local/" in k else v for k, v in load_file(file).items()}
    file.write_bytes(to_bytes(cut))
    return file


def client_missing(checkpoint: Path) -> Path:
    file = checkpoint / "manifest.json"
    manifest = unsealed(file, checkpoints.FORMAT)
    del manifest["rows"]["local"]["clients"]["a"]
    file.write_bytes(sealed(manifest))
    return checkpoint


def manifest_missing(checkpoint: Path) -> Path:
    (checkpoint / "manifest.json").unlink()
    return checkpoint / "manifest.json"


def manifest_cut(checkpoint: Path) -> Path:
    (checkpoint / "manifest.json").write_text('{"format": 1')
    return checkpoint / "manifest.json"


def manifest_of_nothing(checkpoint: Path) -> Path:
    (checkpoint / "manifest.json").write_text("[]")
    return checkpoint / "manifest.json"


def newer(checkpoint: Path) -> Path:
    file = checkpoint / "manifest.json"
    file.write_bytes(sealed({**unsealed(file, checkpoints.FORMAT), "format": 9}))
    return file


def older(checkpoint: Path) -> Path:
    file = checkpoint / "manifest.json"
    file.write_bytes(sealed({**unsealed(file, checkpoints.FORMAT), "format": 2}))
    return file


DAMAGES = [
    truncated,
    flipped,
    emptied,
    missing,
    row_missing,
    client_missing,
    manifest_missing,
    manifest_cut,
    manifest_of_nothing,
    newer,
    older,
]


@pytest.mark.shows("F10", "F11", "F12", "F13", "F14")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Callable[[Path], Path], finished: Path
) -> None:
    whole = bits(finished)
    file = damage(newest(finished))
    answer = call("resume", finished)
    assert answer.code == 0
    assert f"{file}" in answer.err
    assert "going on from the one before it" in answer.err
    assert ("a newer fedbn" in answer.err) is (damage is newer)
    assert ("an older fedbn" in answer.err) is (damage is older)
    assert ("the local part of b: damaged" in answer.err) is (damage in (flipped, row_missing))
    assert bits(finished) == whole


@pytest.mark.shows("F11")
def test_no_bit_of_a_manifest_can_flip_unseen(finished: Path) -> None:
    """Round 3 that becomes 2, or a format that becomes another, would be believed otherwise."""
    file = newest(finished) / "manifest.json"
    content = file.read_bytes()
    for place in range(len(content)):
        flipped_one = bytearray(content)
        flipped_one[place] ^= 1 << place % 8
        file.write_bytes(flipped_one)
        with pytest.raises(DamagedRun, match=r"manifest\.json"):
            checkpoints.read_manifest(file.parent)


@pytest.mark.shows("F11")
def test_no_bit_of_a_state_can_flip_unseen(finished: Path) -> None:
    """Neither in the header, which has no checksum of its own, nor in the tensors."""
    checkpoint = newest(finished)
    file = checkpoint / "state.safetensors"
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place in [*range(header), *range(header, len(content), 97)]:
        flipped_one = bytearray(content)
        flipped_one[place] ^= 1 << place % 8
        file.write_bytes(flipped_one)
        with pytest.raises(DamagedRun, match=r"state\.safetensors"):
            checkpoints.Checkpoint(checkpoint).verify()


def test_one_client_s_part_is_read_and_verified_alone(finished: Path) -> None:
    checkpoint = newest(finished)
    whole = checkpoints.Checkpoint(checkpoint)
    before = {client: whole.row("local", client) for client in "ab"}
    flip_row(checkpoint, "b")
    found = checkpoints.Checkpoint(checkpoint)
    assert all(value.equal(before["a"][name]) for name, value in found.row("local", "a").items())
    with pytest.raises(DamagedRun, match=r"state\.safetensors, the local part of b: damaged"):
        found.row("local", "b")


def test_parts_of_clients_are_a_mapping_that_reads_when_asked(finished: Path) -> None:
    opened = open_run(finished).state
    flip_row(newest(finished), "b")
    state = open_run(finished).state
    assert (list(state.local), "b" in state.local, "c" in state.local) == (["a", "b"], True, False)
    assert state.local["a"].state["1.bias"].equal(opened.local["a"].state["1.bias"])
    with pytest.raises(DamagedRun, match="the local part of b"):
        _ = {**state.local}
    with pytest.raises(KeyError):
        state.local["c"]


def test_parts_of_clients_are_copied_and_pickled_as_a_whole(finished: Path) -> None:
    state = open_run(finished).state
    for again in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        shutil.rmtree(finished / "checkpoints", ignore_errors=True)
        assert isinstance(again.local, dict)
        assert list(again.local) == ["a", "b"]
        assert again.local["b"].state["1.bias"].equal(state.local["b"].state["1.bias"])


def test_what_the_system_refuses_while_tensors_are_written_is_said(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library of the format tells the number of the error in its text alone."""
    state = open_run(finished).state
    checkpoints.save(tmp_path, state, {})
    written = tmp_path / "round-000003"
    modes = {file.stat().st_mode for file in written.iterdir()}
    assert len(modes) == 1  # who may read the one may read the other

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(FedbnError, match="round-000003: the disk is full; saved rounds are"):
        checkpoints.save(tmp_path, state, {})
    checkpoints.Checkpoint(written).verify()


def test_a_checkpoint_of_the_first_format_is_refused_by_name(finished: Path) -> None:
    """Its manifest had no checksum of its own."""
    for name in ("round-000002", "round-000003"):
        content = {"format": 1, "round": int(name[-1]), "files": {}}
        (newest(finished).with_name(name) / "manifest.json").write_text(json.dumps(content))
    answer = call("resume", finished)
    assert answer.code == 6
    assert "format 1 is from an older fedbn; this reads 3" in answer.err.splitlines()[-1]


def test_a_checkpoint_under_another_round_s_name_is_not_believed(finished: Path) -> None:
    other = newest(finished).rename(newest(finished).with_name("round-000007"))
    with pytest.raises(DamagedRun, match=r"round-000007: another round's checkpoint \(round 3\)"):
        checkpoints.read_manifest(other)
    assert checkpoints.whole_round(other.parent) == 2


def test_with_both_damaged_nothing_is_touched(finished: Path) -> None:
    damaged = flipped(newest(finished))
    shutil.copytree(
        newest(finished), newest(finished).with_name("round-000002"), dirs_exist_ok=True
    )
    before = bits(finished)
    answer = call("resume", finished)
    assert answer.code == 6
    last = answer.err.splitlines()[-1]  # below what the folder's data is
    assert str(damaged) in last
    assert "no whole checkpoint is left" in last
    assert bits(finished) == before  # the records of finished rounds, too


def test_lost_records_are_damage(finished: Path) -> None:
    (finished / "checkpoints/fedbn/default/seed-0/metrics.jsonl").unlink()
    answer = call("resume", finished)
    assert answer.code == 6
    assert "records of round 1 are missing" in answer.err.splitlines()[-1]


@pytest.mark.shows("F02")
def test_leftovers_of_a_kill_while_a_checkpoint_was_written(finished: Path) -> None:
    whole = bits(finished)
    last = newest(finished)
    (last / "manifest.json").unlink()
    last.rename(last.with_name(f".{last.name}.tmp"))  # F02: killed before it took its place
    half = last.with_name(".round-000002.tmp")  # of a round that is not saved again
    half.mkdir()
    assert call("resume", finished).code == 0
    assert bits(finished) == whole
    assert not half.exists()


def test_leftovers_of_a_kill_while_an_old_checkpoint_was_removed(finished: Path) -> None:
    whole = bits(finished)
    old = newest(finished).with_name("round-000001")
    shutil.copytree(newest(finished), old)
    (old / "manifest.json").unlink()
    assert call("resume", finished).code == 0
    assert bits(finished) == whole


def test_an_old_checkpoint_is_kept_while_it_is_the_only_whole_one(finished: Path) -> None:
    job = newest(finished).parent
    shutil.copytree(job / "round-000002", job / "round-000001")
    for name in ("round-000002", "round-000003"):
        flipped(job / name)
    checkpoints.forget_before(job, 1)
    assert (job / "round-000001").exists()


def test_other_names_in_the_folder_are_not_checkpoints(tmp_path: Path) -> None:
    for name in ("round-1", "round-000001.bak", ".round-000001.tmp", "round-x"):
        (tmp_path / name).mkdir()
    assert checkpoints.rounds(tmp_path) == []
    assert checkpoints.whole_round(tmp_path) == 0


def test_whole_round_says_when_none_is_whole(finished: Path) -> None:
    job = newest(finished).parent
    assert checkpoints.whole_round(job) == 3
    flipped(newest(finished))
    assert checkpoints.whole_round(job) == 2
    flipped(job / "round-000002")
    with pytest.raises(DamagedRun, match="no whole checkpoint is left"):
        checkpoints.whole_round(job)
