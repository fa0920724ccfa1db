"""Files and messages that somebody spoilt: an error of ours or success, nothing else.

Each input begins as a right one. Bytes of it are changed, or, where it is a document, one of its
values; what has a checksum gets a new one, so that what lies behind it is reached. Never a
traceback, never longer than some seconds, never a gigabyte. `scripts/test-soak` has two minutes for
it; a small fixed sample runs with all tests.
"""

from __future__ import annotations

import copy
import io
import json
import struct
import time
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from safetensors.torch import save as to_safetensors

import fedbn
from commanding import arrays
from fedbn.data.checks import examine_path, recognize
from fedbn.errors import FedbnError
from fedbn.experiments.configuration import checked, read_toml
from fedbn.experiments.jobs import jobs
from fedbn.experiments.schema import DataSection
from fedbn.experiments.sources import load_federation, load_weights, read_weights
from fedbn.models.networks import mlp
from fedbn.runs import checkpoints, metrics
from fedbn.runs.folder import RunFolder, sealed
from fedbn.trained.opening import open_run
from limits import a_gigabyte, seconds

SECONDS = 110.0  # of all targets together, in the soak
Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    """What is spoilt: right contents, and what reads them; `document` turns one into text."""

    right: Callable[[], list[bytes]]
    read: Read
    document: Callable[[Any], bytes] | None = None
    values: Callable[[bytes], Any] = json.loads


ODD_NUMBERS = [0, 1, -1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1, 10**11]
ODD_WORDS = [b"NaN", b"1e999", b"-1", b"null", b"[" * 300, b"\0", b"\xff\xfe", b'"', b"\n", b"{}"]
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([*ODD_NUMBERS, -(2**70), 0.5, -1.5, 1e300, "", "x", "../..", "a\0b", "\ud800"]),
    st.sampled_from(["é" * 300, [], {}, [[]], [1, "a"], {"a": {"b": 1}}, [None], "nan", "fedbn"]),
    st.text(max_size=8),
    st.floats(allow_nan=False),
).map(copy.deepcopy)


@st.composite
def spoilt_bytes(draw: st.DrawFn, right: list[bytes]) -> bytes:
    """Change a few places of a right content."""
    content = bytearray(draw(st.sampled_from(right)))
    for _ in range(draw(st.integers(1, 4))):
        near_the_start = st.integers(0, min(len(content), 300))
        place = draw(near_the_start | st.integers(0, len(content)))
        end = min(len(content), place + draw(st.integers(1, 40)))
        how = draw(st.sampled_from(["flip", "cut", "delete", "repeat", "number", "word", "insert"]))
        if how == "flip" and place < len(content):
            content[place] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del content[place:]
        elif how == "delete":
            del content[place:end]
        elif how == "repeat":
            content[place:place] = content[place:end] * draw(st.sampled_from([1, 5, 2000]))
        elif how == "number":
            form = draw(st.sampled_from(["<I", ">I", "<Q", ">Q", "<H", "B"]))
            most = 2 ** (8 * struct.calcsize(form)) - 1
            packed = struct.pack(form, draw(st.sampled_from(ODD_NUMBERS)) & most)
            content[place : place + len(packed)] = packed
        elif how == "word":
            content[place:end] = draw(st.sampled_from(ODD_WORDS))
        else:
            content[place:place] = draw(st.binary(max_size=20))
    return bytes(content)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    below: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        below = value.items()
    elif isinstance(value, list):
        below = enumerate(value)
    return [above, *(p for key, part in below for p in places(part, (*above, key)))]


@st.composite
def spoilt_document(draw: st.DrawFn, target: Target) -> bytes:
    """Change, leave out or add values of a right document."""
    assert target.document is not None
    value = copy.deepcopy(target.values(draw(st.sampled_from(target.right()))))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(value)[1:] or [()]))
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from(["change", "change", "delete", "add"]))
        if not place:
            return target.document(draw(ODD_VALUES))
        if how == "change":
            holder[place[-1]] = draw(ODD_VALUES)
        elif how == "delete":
            del holder[place[-1]]
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = draw(ODD_VALUES)
        else:
            holder.append(draw(ODD_VALUES))
    return target.document(value)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_toml(value: Any) -> bytes:
    with suppress(TypeError, ValueError, AttributeError, UnicodeEncodeError):  # None, \ud800
        return tomli_w.dumps(value).encode()
    return b"x = [1"


def as_sealed(value: Any) -> bytes:
    if not isinstance(value, dict):
        return as_json(value)
    value.pop("sha256", None)
    with suppress(UnicodeEncodeError):
        return sealed(value)
    return b"{}"


def as_safetensors(header: Any) -> bytes:
    text = as_json(header)
    size = sum(value.nbytes for value in state().values())
    return len(text).to_bytes(8, "little") + text + bytes(size)


def header_of(content: bytes) -> Any:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return mlp(2, (6,)).state_dict()


def read_as_weights(content: bytes, folder: Path) -> None:
    file = folder / "w.safetensors"
    file.write_bytes(content)
    load_weights(mlp(2, (6,)), read_weights(file), "w")


@cache
def a_run() -> Path:
    """A run of one round; its files are read once, and spoilt in copies."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="fedbn-fuzz-")) / "run"
    draws = np.random.default_rng(0)
    x = draws.normal(size=(2, 12, 6)).astype("float32")
    sites = {name: (x[i], np.arange(12) % 2) for i, name in enumerate("ab")}
    fedbn.fit(sites, lambda: mlp(2, (6,)), "fedbn", rounds=1, seed=0, out=folder)
    return folder


def in_run(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [next(a_run().glob(pattern)).read_bytes()]


def copied(folder: Path, pattern: str, content: bytes) -> Path:
    """A copy of the run in which one file has another content."""
    for file in a_run().rglob("*"):
        place = folder / "run" / file.relative_to(a_run())
        if file.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    next((folder / "run").glob(pattern)).write_bytes(content)
    return folder / "run"


STATE, MANIFEST = "checkpoints/*/*/*/round-*/state.safetensors", "checkpoints/*/*/*/*/manifest.json"


def read_in_run(pattern: str) -> Read:
    def read(content: bytes, folder: Path) -> None:
        run = copied(folder, pattern, content)
        with suppress(FedbnError):
            checkpoints.Checkpoint(next(run.glob(STATE)).parent).verify()
        with suppress(FedbnError):
            metrics.read(run / "metrics.jsonl")
        with suppress(FedbnError):
            metrics.salvage(run / "metrics.jsonl")
        RunFolder(run).read_environment()
        open_run(run, model=lambda: mlp(2, (6,))).model("a")

    return read


def read_table(content: bytes, folder: Path) -> None:
    (folder / "a.csv").write_bytes(content)
    (folder / "b.csv").write_bytes(TABLE)
    section = {"name": "tables", "path": str(folder), "label": "ill"}
    _examined(folder, section)


def _examined(folder: Path, section: dict[str, Any]) -> None:
    """What `data check` finds, which never raises, and what a run reads."""
    found = DataSection.model_validate(section)
    options = {k: v for k, v in section.items() if k not in ("name", "path")}
    with suppress(FedbnError):
        recognize(folder)
    examine_path(folder, options, lambda changed: load_federation(found))
    load_federation(found)


TABLE = b"age,colour,ill\n" + b"".join(
    f"{n + 20},{'red' if n % 3 else 'blue'},{'yes' if n % 2 else 'no'}\n".encode()
    for n in range(12)
)
CONTRACT: dict[str, Any] = {
    "classes": ["no", "yes"],
    "label": "ill",
    "missing": "mean",
    "columns": [
        {"name": "age", "unit": "years", "range": [0.0, 120.0]},
        {"name": "colour", "values": ["blue", "red"]},
    ],
}


def read_contract(content: bytes, folder: Path) -> None:
    (folder / "c.toml").write_bytes(content)
    (folder / "sites").mkdir()
    for name in "ab":
        (folder / "sites" / f"{name}.csv").write_bytes(TABLE)
    raw = read_toml(folder / "c.toml")
    data = raw.get("data", raw)
    given = {**data, "path": str(folder / "sites")} if isinstance(data, dict) else data
    load_federation(checked({"data": given}).data)


def npz(**values: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **values)
    return buffer.getvalue()


def read_npz(content: bytes, folder: Path) -> None:
    (folder / "a.npz").write_bytes(content)
    (folder / "b.npz").write_bytes(good_npz())
    _examined(folder, {"name": "arrays", "path": str(folder)})


def read_npy(content: bytes, folder: Path) -> None:
    """The archive is right, an array in it is not."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, zipfile.ZipFile(io.BytesIO(good_npz())) as good:
        for name in good.namelist():
            archive.writestr(name, content if name == "train_x.npy" else good.read(name))
    read_npz(buffer.getvalue(), folder)


def good_npz() -> bytes:
    return npz(**arrays(0), classes=np.array(["no", "yes"]))


def npy() -> list[bytes]:
    buffer = io.BytesIO()
    np.save(buffer, arrays(0)["train_x"])
    return [buffer.getvalue()]


def read_configuration(content: bytes, folder: Path) -> None:
    (folder / "e.toml").write_bytes(content)
    jobs(checked(read_toml(folder / "e.toml")))


EXPERIMENT = b"""methods = ["fedavg", "fedbn+prox(0.1)"]
seeds = [0, 1]
[training]
rounds = 3
lr = 0.1
schedule = "StepLR"
schedule_args = {step_size = 1}
[evaluation]
validation = 0.2
report = "best"
[data]
name = "digits_mini"
[model]
name = "small_cnn"
args = {width = 8}
[sweep.training]
lr = [0.1, 0.2]
"""


@cache
def pictures() -> list[bytes]:
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    found = []
    for kind, mode in [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "RGB"),
                       ("GIF", "P"), ("BMP", "RGB"), ("TIFF", "L"), ("WEBP", "RGB"),
                       ("PPM", "L")]:  # fmt: skip
        buffer = io.BytesIO()
        Image.fromarray(noise).convert(mode).save(buffer, kind)
        found.append(buffer.getvalue())
    deep = io.BytesIO()
    Image.fromarray(np.arange(144, dtype=np.uint16).reshape(12, 12)).save(deep, "PNG")
    return [*found, deep.getvalue()]


SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8": "jpg", b"GIF": "gif", b"BM": "bmp", b"RIFF": "webp"}


def read_picture(content: bytes, folder: Path) -> None:
    suffix = next((s for start, s in SUFFIXES.items() if content.startswith(start)), "tif")
    for place in ("a/cat", "a/dog", "b/cat", "b/dog"):
        (folder / place).mkdir(parents=True)
        for number in range(2):
            (folder / place / f"{number}.png").write_bytes(pictures()[0])
    (folder / "a" / "cat" / f"x.{suffix}").write_bytes(content)
    _examined(folder, {"name": "folders", "path": str(folder), "size": 8})


@cache
def masks() -> list[bytes]:
    found = []
    for mode in ("L", "P", "1", "RGB"):
        buffer = io.BytesIO()
        ring = (np.add.outer(np.arange(12), np.arange(12)) > 11).astype(np.uint8) * 255
        Image.fromarray(ring).convert(mode).save(buffer, "PNG")
        found.append(buffer.getvalue())
    return found


def read_mask(content: bytes, folder: Path) -> None:
    for site in "ab":
        for kind, right in (("images", pictures()[0]), ("masks", masks()[0])):
            (folder / site / kind).mkdir(parents=True)
            for number in range(4):
                (folder / site / kind / f"{number}.png").write_bytes(right)
    (folder / "a" / "masks" / "1.png").write_bytes(content)
    _examined(folder, {"name": "masks", "path": str(folder), "size": 8})


TARGETS = {
    "safetensors": Target(lambda: [to_safetensors(state())], read_as_weights),
    "safetensors header": Target(
        lambda: [to_safetensors(state())], read_as_weights, as_safetensors, header_of
    ),
    "checkpoint": Target(in_run(STATE), read_in_run(STATE)),
    "manifest": Target(in_run(MANIFEST), read_in_run(MANIFEST), as_sealed),
    "environment": Target(
        in_run("environment.json"), read_in_run("environment.json"), as_json
    ),
    "run configuration": Target(
        in_run("config.toml"),
        read_in_run("config.toml"),
        as_toml,
        lambda b: tomllib.loads(b.decode()),
    ),
    "metrics": Target(in_run("metrics.jsonl"), read_in_run("metrics.jsonl")),
    "contract": Target(
        lambda: [as_toml({"data": {"contract": CONTRACT}})],
        read_contract, as_toml, lambda b: tomllib.loads(b.decode()),
    ),
    "configuration": Target(
        lambda: [EXPERIMENT], read_configuration, as_toml, lambda b: tomllib.loads(b.decode())
    ),
    "npz": Target(lambda: [good_npz()], read_npz),
    "npy": Target(npy, read_npy),
    "csv": Target(lambda: [TABLE], read_table),
    "picture": Target(pictures, read_picture),
    "mask": Target(masks, read_mask),
}  # fmt: skip

try:
    import fuzzed_messages
except ImportError:  # flwr is not installed
    pass
else:
    TARGETS |= {name: Target(*parts) for name, parts in fuzzed_messages.TARGETS.items()}


def spoilt(target: Target) -> st.SearchStrategy[bytes]:
    changed = spoilt_bytes(target.right())
    return changed if target.document is None else changed | spoilt_document(target)


def check(target: Target, content: bytes, root: Path) -> None:
    folder = root / str(time.monotonic_ns())
    folder.mkdir()
    with warnings.catch_warnings(), a_gigabyte(), seconds(60):
        warnings.simplefilter("ignore")
        with suppress(FedbnError):
            target.read(content, folder)


def fuzz(target: Target, root: Path, budget: float, **how: Any) -> None:
    """Spoil inputs until the time is over; one that failed is looked into as long as it takes."""
    ends, failed = time.monotonic() + budget, []

    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), **how)
    @given(spoilt(target))
    def each(content: bytes) -> None:
        if failed or time.monotonic() < ends:
            try:
                check(target, content, root)
            except BaseException:
                failed.append(content)
                raise

    each()


@pytest.mark.parametrize("name", TARGETS)
def test_a_right_input_is_read(name: str, tmp_path: Path) -> None:
    """So that what is spoilt is not refused for another reason."""
    target = TARGETS[name]
    for number, content in enumerate(target.right()):
        folder = tmp_path / str(number)
        folder.mkdir()
        target.read(content, folder)
        if target.document:
            (tmp_path / f"{number} again").mkdir()
            target.read(target.document(target.values(content)), tmp_path / f"{number} again")


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_spoilt_inputs(name: str, tmp_path: Path) -> None:
    fuzz(TARGETS[name], tmp_path, 60, max_examples=5, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_inputs(name: str, tmp_path: Path) -> None:
    fuzz(TARGETS[name], tmp_path, SECONDS / len(TARGETS), max_examples=5_000)
