"""Models and weights that do not fit, and files that are not what they claim: exit code 3."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from commanding import call
from fedbn.models.networks import mlp

OWN = """
import torch
from torch import nn

def plain(input_shape, classes):
    return nn.Linear(6, classes)

def wide(input_shape):
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 7))

def narrow():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

def raises():
    raise OSError("no licence\\nfound")

def gives():
    return 3

def frozen():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return model.requires_grad_(False)

def needs(secret):
    return nn.Linear(6, 2)
"""


@pytest.mark.shows("M01", "M12", "M14")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("plain", "BatchNorm"),
        ("wide", "gives (2, 7) for 2 samples, but sites has 2 classes"),
        ("narrow", "the model fails on inputs of shape (2, 6)"),
        ("raises", "OSError: no licence found"),
        ("gives", "gives a int, not an nn.Module"),
        ("frozen", "no trainable parameter"),
        ("needs", "missing a required argument: 'secret'"),
    ],
)
def test_a_model_that_does_not_fit(model: str, said: str, sites: Path, tmp_path: Path) -> None:
    (tmp_path / "own_models.py").write_text(OWN)
    asked = ("--data", sites, "--model", f"own_models:{model}", "--method", "fedbn")
    answer = call("run", *asked, "--out", "out", cwd=tmp_path)
    assert answer.code == 3
    assert said in answer.line
    assert not (tmp_path / "out").exists()


def test_a_module_that_fails_to_import(sites: Path, tmp_path: Path) -> None:
    (tmp_path / "broken_models.py").write_text("1 / 0")
    answer = call("run", "--data", sites, "--model", "broken_models:net", cwd=tmp_path)
    assert answer.code == 3
    assert "importing broken_models failed: ZeroDivisionError" in answer.line


def weights_file(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file as an attacker would write it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "weights.safetensors"
    size = struct.pack("<Q", len(text) if length is None else length)
    file.write_bytes(size + text + data)
    return file


def entry(begin: int, end: int, dtype: str = "F32", shape: tuple[int, ...] = (1,)) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "a header that claims 100 GB": {"header": b"{}", "length": 100 * 2**30},
    "a header that is no JSON": {"header": b"not json"},
    "a nested header": {"header": b"[" * 10_000},
    "overlapping offsets": {"header": {"a": entry(0, 4), "b": entry(2, 6)}, "data": bytes(6)},
    "negative offsets": {"header": {"a": entry(-4, 0)}, "data": bytes(4)},
    "offsets beyond the end": {"header": {"a": entry(0, 400, shape=(100,))}, "data": bytes(4)},
    "a shape that does not fit": {"header": {"a": entry(0, 4, shape=(9,))}, "data": bytes(4)},
    "an enormous shape": {"header": {"a": entry(0, 4, shape=(2**62, 4))}, "data": bytes(4)},
    "an unknown dtype": {"header": {"a": entry(0, 4, "Q77")}, "data": bytes(4)},
    "empty": {"header": b"", "length": 0},
}


@pytest.mark.shows("W02", "W03", "W04", "W05")
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_weights(content: dict[str, Any], sites: Path, tmp_path: Path) -> None:
    file = weights_file(tmp_path, **content)
    answer = _run_with(file, sites, tmp_path)
    assert answer.code == 3
    assert str(file) in answer.line
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("W01")
@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt", "pkl"])
def test_a_pickle_as_weights_is_refused_unread(suffix: str, sites: Path, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{suffix}"
    torch.save(mlp(2, (6,)).state_dict(), file)
    answer = _run_with(file, sites, tmp_path)
    assert answer.code == 3
    assert "safetensors.torch.save_file" in answer.line
    assert not (tmp_path / "out").exists()


def test_a_pickle_under_another_name_is_refused(sites: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    torch.save(mlp(2, (6,)).state_dict(), file)
    assert _run_with(file, sites, tmp_path).code == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("0.bias"), "missing 0.bias"),
        (lambda state: state.update(extra=torch.zeros(1)), "not expected extra"),
        (lambda state: state.update({"0.bias": torch.zeros(1)}), "0.bias has shape (1,)"),
        (lambda state: state.update({"0.bias": torch.zeros(64).half()}), "0.bias is torch.float16"),
        (lambda state: state["0.bias"].fill_(torch.nan), "NaN or infinity in 0.bias"),
    ],
    ids=["missing", "extra", "shape", "dtype", "NaN"],
)
def test_weights_that_do_not_fit(change: Any, said: str, sites: Path, tmp_path: Path) -> None:
    state = {name: value.clone() for name, value in mlp(2, (6,)).state_dict().items()}
    change(state)
    save_file(state, tmp_path / "weights.safetensors")
    answer = _run_with(tmp_path / "weights.safetensors", sites, tmp_path)
    assert answer.code == 3
    assert said in answer.line


@pytest.mark.shows("C06")
def test_missing_weights(sites: Path, tmp_path: Path) -> None:
    answer = _run_with(tmp_path / "none.safetensors", sites, tmp_path)
    assert answer.code == 3
    assert "No such file" in answer.line


@pytest.mark.shows("M08")
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_weights_that_fit_are_taken_also_from_a_wrapped_model(
    prefix: str, sites: Path, tmp_path: Path
) -> None:
    state = {f"{prefix}{name}": value for name, value in mlp(2, (6,)).state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    answer = _run_with(tmp_path / "weights.safetensors", sites, tmp_path, "--dry-run")
    assert answer.code == 0


def _run_with(file: Path, sites: Path, folder: Path, *more: str) -> Any:
    asked = ("--data", sites, "--model", "mlp", "--set", f"model.weights={file}")
    return call("run", *asked, "--out", folder / "out", *more)
