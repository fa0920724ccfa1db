"""Data that cannot be trained on: client and sample named, exit code 4, nothing written."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commanding import call, records, write_sites

Arrays = dict[str, Any]


def put(key: str, index: int, value: float) -> Callable[[Arrays], None]:
    def change(content: Arrays) -> None:
        content[key][index] = value

    return change


def cut(n: int, *keys: str) -> Callable[[Arrays], None]:
    def change(content: Arrays) -> None:
        for key in keys:
            content[key] = content[key][:n]

    return change


def become(key: str, make: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    def change(content: Arrays) -> None:
        content[key] = make(content[key])

    return change


def without(key: str) -> Callable[[Arrays], None]:
    return lambda content: content.pop(key)


DATA = {
    "empty client": (cut(0, "train_x", "train_y"), "client b, train: no samples"),
    "empty test split": (cut(0, "test_x", "test_y"), "client b, test: no samples"),
    "one sample": (cut(1, "train_x", "train_y"), "client b: 1 training sample"),
    "lengths differ": (cut(9, "train_y"), "client b, train: 16 samples but 9 labels"),
    "NaN": (put("train_x", 7, np.nan), "client b, train: NaN in sample 7"),
    "infinity": (put("test_x", 3, np.inf), "client b, test: infinity in sample 3"),
    "negative label": (put("train_y", 4, -100), "client b, train: label -100 of sample 4"),
    "shapes differ": (become("train_x", lambda x: x[:, :5]), "client b, train: samples of shape"),
    "flat samples": (become("train_x", lambda x: x[:, 0]), "b.npz, train: samples of shape (16,)"),
    "labels that are text": (
        become("train_y", lambda y: y.astype(str)),
        "b.npz, test; texts (0, 1) at {sites}/b.npz, train. Give the names of the classes",
    ),
    "labels that are fractions": (
        become("train_y", lambda y: y + 0.5),
        "b.npz, test; floats (0.5, 1.5) at {sites}/b.npz, train. Give whole numbers everywhere",
    ),
    "complex samples": (
        become("train_x", lambda x: x * 1j),
        "complex numbers; expected real numbers",
    ),
    "no labels": (without("test_y"), "b.npz: no test_y or test_labels; it has train_x"),
    "pickled objects": (become("train_x", lambda x: np.array([{}, {}])), "pickled objects"),
}


@pytest.mark.shows("D01", "D02", "D05", "D06", "D09", "D10", "D29", "D30", "D31", "D34")
@pytest.mark.parametrize(("change", "said"), DATA.values(), ids=DATA)
def test_bad_arrays_are_named_and_nothing_is_written(
    change: Callable[[Arrays], None], said: str, tmp_path: Path
) -> None:
    sites = write_sites(tmp_path / "sites", change=change)
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert said.format(sites=sites) in answer.line
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("D10")
def test_texts_at_every_client_are_the_names_of_classes(tmp_path: Path) -> None:
    def named(content: Arrays) -> None:
        for key in ("train_y", "test_y"):
            content[key] = np.array(["well", "ill"])[content[key]]

    sites = write_sites(tmp_path / "sites", change=named)
    write_sites(sites, "a", named)
    small = ("--model", "mlp", "--rounds", 1, "--seed", 0, "--method", "fedbn", "--workers", 1)
    answer = call("run", "--data", sites, *small, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    environment = json.loads((tmp_path / "out" / "environment.json").read_text())
    (inputs,) = environment["inputs"].values()
    assert inputs["classes"] == ["ill", "well"]


@pytest.mark.shows("D09")
def test_check_reports_negative_labels_with_their_client_and_goes_on(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", change=put("train_y", 4, -100))
    write_sites(sites, ["a"], put("test_x", 3, np.inf))
    answer = call("data", "check", sites, "--json")
    assert answer.code == 4
    found = [(f["site"], f["file"], f["text"]) for f in json.loads(answer.out)["findings"]]
    assert ("a", "test", "infinity in sample 3") in found
    label = "label -100 of sample 4; expected 0 to 1"
    assert ("b", "train", label) in found


@pytest.mark.shows("D09")
def test_a_negative_label_is_named_before_classes_are_counted(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", change=put("train_y", 4, -100))
    answer = call("data", "show", sites, "--json")
    assert answer.code == 4
    assert "data sites, client b, train: label -100 of sample 4" in answer.err.splitlines()[-1]


@pytest.mark.shows("D09")
@pytest.mark.parametrize("partition", ["iid", "dirichlet(0.3)", "shards(2)"])
def test_a_negative_label_is_named_before_data_is_dealt(partition: str, tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", change=put("train_y", 4, -100))
    deal = ("--set", f'data.partition="{partition}"', "--set", "data.clients=2")
    answer = call("run", "--data", sites, *deal, "--out", tmp_path / "out")
    assert answer.code == 4
    assert "data sites, client b, train: label -100 of sample 4" in answer.line
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("D08")
def test_a_label_outside_the_named_classes(tmp_path: Path) -> None:
    def change(content: Arrays) -> None:
        content["train_y"][5] = 2

    sites = write_sites(tmp_path / "sites", "a", _with_classes("cat", "dog"))
    write_sites(sites, "ab"[1:], lambda c: (_with_classes("cat", "dog")(c), change(c)))
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert "client b, train: label 2 of sample 5; expected 0 to 1" in answer.line


def _with_classes(*names: str) -> Callable[[Arrays], None]:
    return lambda content: content.update(classes=np.array(names))


@pytest.mark.shows("D26")
@pytest.mark.parametrize("second", [("dog", "cat"), ("cat", "cow"), ("cat", "dog", "cow")])
def test_class_names_or_their_order_differ(second: tuple[str, ...], tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", "a", _with_classes("cat", "dog"))
    write_sites(sites, "b", _with_classes(*second))
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert "b.npz" in answer.line
    assert "differ in name or order" in answer.line


@pytest.mark.shows("D25")
def test_a_class_absent_at_one_client_is_only_a_warning(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", change=become("train_y", np.zeros_like))
    answer = call("run", "--data", sites, "--model", "mlp", "--dry-run")
    assert answer.code == 0
    assert "client b has no training sample of class 1" in answer.err


@pytest.mark.shows("D07", "D11")
def test_constant_features_and_one_class_train_to_finite_numbers(tmp_path: Path) -> None:
    """A variance of nought at one client: what BatchNorm divides by is its epsilon."""

    def change(content: Arrays) -> None:
        content["train_x"][:] = 3.0
        content["train_y"][:] = 1

    sites = write_sites(tmp_path / "sites", change=change)
    small = ("--model", "mlp", "--rounds", 3, "--seed", 0, "--method", "fedbn", "--workers", 1)
    answer = call("run", "--data", sites, *small, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "client b has no training sample of class 0" in answer.err
    told = records(tmp_path / "out" / "metrics.jsonl")
    assert {record["client"] for record in told} >= {"a", "b"}
    assert all(math.isfinite(record["value"]) for record in told)
    assert not [record for record in told if record["metric"] == "refused"]


@pytest.mark.shows("D32")
@pytest.mark.parametrize("validation", [0, 0.2])
def test_extreme_imbalance_is_pointed_out_and_trains(validation: float, tmp_path: Path) -> None:
    """2,000 samples with one of the rare class here, ten samples there."""
    sites, draws = tmp_path / "sites", np.random.default_rng(0)
    sites.mkdir()
    for name, n, rare in (("large", 2000, 1), ("small", 10, 5)):
        x, y = draws.normal(size=(n, 6)).astype("float32"), np.zeros(n, int)
        y[:rare] = 1
        np.savez(sites / name, train_x=x, train_y=y, test_x=x + 0.01, test_y=y)
    (finding,) = json.loads(call("data", "check", sites, "--json").out)["findings"]
    assert (finding["severity"], finding["site"]) == ("warning", "large")
    assert finding["text"] == "very unequal classes: from 1 to 1999 samples"
    small = ("--model", "mlp", "--rounds", 2, "--seed", 0, "--method", "fedbn")
    metric = 'evaluation.metrics=["balanced_accuracy"]'
    asked = ("--set", f"evaluation.validation={validation}", "--set", metric)
    answer = call("run", "--data", sites, *small, *asked, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    told = records(tmp_path / "out" / "metrics.jsonl")
    assert all(math.isfinite(record["value"]) for record in told)
    assert not [record for record in told if record["metric"] == "refused"]
    last = {(r["client"], r["metric"]): r["value"] for r in told if r["split"] == "test"}
    assert last["large", "accuracy"] > 0.99
    assert last["large", "balanced_accuracy"] <= 0.75  # one sample says little, and it is shown
    assert {client for client, _ in last} == {"large", "small"}


def test_warnings_are_heard_in_a_run_too(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", change=become("train_y", np.zeros_like))
    small = ("--model", "mlp", "--rounds", 1, "--seed", 0, "--method", "fedbn")
    answer = call("run", "--data", sites, *small, "--out", tmp_path / "out")
    assert answer.code == 0
    assert "client b has no training sample of class 1" in answer.err
    assert "client b" not in answer.out


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # numpy's own, of a cut-off zip file
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged or not an npz"),
        (b"PK\x03\x04 and no more", "damaged or not an npz"),
        (b"\x80\x04K\x01.", "pickled"),
    ],
    ids=["empty", "cut off", "a pickle"],
)
def test_a_file_that_is_no_npz(content: bytes, said: str, tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites")
    (sites / "b.npz").write_bytes(content)
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert str(sites / "b.npz") in answer.line
    assert said in answer.line
    assert not (tmp_path / "out").exists()


def zipped(file: Path, key: str, content: bytes) -> None:
    """Put a member into an npz that holds nothing else."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(key, content)


def headers(file: Path, local: int, central: int, value: int) -> None:
    """Change a byte of every header of an archive: of the members, and of the list at its end."""
    content = bytearray(file.read_bytes())
    for sign, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        place = content.find(sign)
        while place >= 0:
            content[place + offset] = value
            place = content.find(sign, place + 4)
    file.write_bytes(content)


def damaged(file: Path) -> None:
    np.savez_compressed(file, **dict(np.load(file)))
    content = bytearray(file.read_bytes())
    content[80:120] = b"\xff" * 40
    file.write_bytes(content)


def promising(file: Path) -> None:
    head = io.BytesIO()
    shape = (10**12, 6)
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    zipped(file, "train_x.npy", head.getvalue())


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def one_text(file: Path) -> None:
    np.savez(file, **{**dict(np.load(file)), "classes": np.array("cat, dog")})


ARCHIVES = {
    "encrypted": (lambda file: headers(file, 6, 8, 1), "encrypted"),
    "damaged": (damaged, "damaged or not an npz file"),
    "an unknown compression": (lambda file: headers(file, 8, 10, 99), "compression"),
    "no arrays": (lambda file: zipped(file, "train_x", b"text"), "train_x is not an array"),
    "one text as classes": (one_text, "classes of shape (); expected one name a class"),
    "terabytes promised": (promising, "an array larger than this machine's memory"),
    "a pipe": (pipe, "not a file, but a pipe"),
}


@pytest.fixture
def _no_waiting() -> Iterator[None]:
    """Reading from a pipe waits for ever: an alarm ends it."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waited too long"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # numpy's own, of a broken zip file
@pytest.mark.parametrize(("change", "said"), ARCHIVES.values(), ids=ARCHIVES)
def test_run_and_check_say_the_same_of_a_bad_archive(
    change: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    sites = write_sites(tmp_path / "sites")
    change(sites / "b.npz")
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert str(sites / "b.npz") in answer.line
    assert said in answer.line
    answer = call("data", "check", sites, "--json")
    (finding,) = json.loads(answer.out)["findings"]
    assert answer.code == 4
    assert (finding["severity"], finding["file"]) == ("error", str(sites / "b.npz"))
    assert said in finding["text"]


@pytest.mark.shows("C09")
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_two_clients_that_are_one_file(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", "a")
    link(sites / "a.npz", sites / "b.npz")
    for command in (("run", "--out", tmp_path / "out", "--data"), ("data", "check")):
        answer = call(*command, sites)
        assert answer.code == 4
        assert "each client needs data of its own" in " ".join((answer.out + answer.err).split())
    assert not (tmp_path / "out").exists()


def test_two_classes_of_one_name(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", "a", _with_classes("cat", "cat"))
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert "two classes are called 'cat'" in answer.line


@pytest.mark.shows("D33")
def test_an_archive_that_unpacks_to_more_than_the_memory_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sites = write_sites(tmp_path / "sites")
    np.savez_compressed(sites / "b.npz", train_x=np.zeros((4000, 6000), "float32"))
    assert (sites / "b.npz").stat().st_size < 10**6
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 20_000}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert "b.npz: unpacks to 0.1 GB" in answer.line


@pytest.mark.parametrize("second", ["Cat", "cat ", "ｃat"])
def test_classes_that_differ_in_case_or_signs_only_are_pointed_out(
    second: str, tmp_path: Path
) -> None:
    sites = write_sites(tmp_path / "sites", "a", _with_classes("cat", second))
    answer = call("run", "--data", sites, "--model", "mlp", "--dry-run")
    assert answer.code == 0
    assert f"classes 'cat' and {second!r} differ in case" in answer.err
    found = json.loads(call("data", "check", sites, "--json").out)["findings"]
    assert sum("differ in case" in finding["text"] for finding in found) == 1


def test_a_bit_of_an_npz_is_flipped(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites")
    content = bytearray((sites / "b.npz").read_bytes())
    content[200] ^= 1
    (sites / "b.npz").write_bytes(content)
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert (answer.code, "b.npz" in answer.line) == (4, True)


@pytest.mark.shows("C08")
def test_no_clients_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("empty", "missing"):
        answer = call("run", "--data", f"{tmp_path}/{path}/", "--out", tmp_path / "out")
        assert answer.code == 4
        assert path in answer.line
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("W09")
def test_a_newline_in_a_client_name_is_refused_on_one_line(tmp_path: Path) -> None:
    sites = write_sites(tmp_path / "sites", ["a", "b\nfedbn: all is well"])
    answer = call("run", "--data", sites, "--out", tmp_path / "out")
    assert answer.code == 4
    assert r"b\nfedbn: all is well" in answer.line


OWN = """
import torch
from fedbn import Client, Federation, Split

def _client(name):
    split = Split(torch.randn(8, 6), torch.arange(8) % 2)
    return Client(name, name, split, {name: split})

def climbs():
    return Federation("mine", (_client("a"), _client("../../b")), ("x", "y"))

def twice():
    return Federation("mine", (_client("a"), _client("a")), ("x", "y"))

def nobody():
    return Federation("mine", (), ("x", "y"))

def raises():
    raise ValueError("the scanner\\nis off")

def reads():
    open("not there")

def gives():
    return 3
"""


@pytest.mark.shows("C07", "C08", "C14")
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("climbs", 4, "client name '../../b'"),
        ("twice", 4, "two clients are called 'a'"),
        ("nobody", 4, "no clients"),
        ("raises", 4, "ValueError: the scanner is off"),
        ("reads", 4, "No such file or directory: not there"),
        ("gives", 3, "gives a int, not a Federation"),
    ],
)
def test_a_users_own_data_set(name: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "own_sites.py").write_text(OWN)
    answer = call("run", "--data", f"own_sites:{name}", "--out", "out", cwd=tmp_path)
    assert answer.code == code
    assert said in answer.line
    assert not (tmp_path / "out").exists()


@pytest.mark.shows("S10", "S11")
@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (["partition=dirichlet(0)"], 3, "data.partition = 'dirichlet(0)': legal are 'iid'"),
        (["partition=shards(90)", "clients=2"], 4, "180 shards, but there are 32 samples"),
        (["partition=iid", "clients=40"], 4, "cannot give each of 40 clients 2 and 1"),
        (["clients=3"], 3, "set partition too"),
    ],
)
def test_a_partition_that_cannot_be_dealt(
    settings: list[str], code: int, said: str, tmp_path: Path
) -> None:
    write_sites(tmp_path / "sites")
    asked = [word for setting in settings for word in ("--set", f"data.{setting}")]
    answer = call("run", "--data", "./sites", "--out", "out", *asked, cwd=tmp_path)
    assert (answer.code, (tmp_path / "out").exists()) == (code, False)
    assert said in answer.err


@pytest.mark.shows("D22", "S07")
def test_a_manifest_that_names_no_picture(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label,site\ngone.png,a,x\n")
    answer = call("run", "--data", "./list.csv", "--out", "out", cwd=tmp_path)
    assert (answer.code, (tmp_path / "out").exists()) == (4, False)
    assert "list.csv, row 2: " in answer.line
    assert "gone.png: no such file" in answer.line


LAZY = """
import torch
from fedbn.data.python_data import federation_of

class Broken:
    targets = [0, 1] * 10
    def __len__(self): return 20
    def __getitem__(self, index):
        if index == 7: raise OSError("the scanner is off")
        return torch.zeros(4), self.targets[index]

def lazy(): return federation_of({"a": Broken(), "b": Broken()}, test_share=0.1)
"""


@pytest.mark.shows("S01")
def test_a_dataset_that_raises_while_training(tmp_path: Path) -> None:
    (tmp_path / "own_lazy.py").write_text(LAZY)
    answer = call("run", "--data", "own_lazy:lazy", "--rounds", "1", "--out", "out", cwd=tmp_path)
    assert answer.code == 4
    assert "client a, sample 7: OSError: the scanner is off" in answer.err
    assert "Traceback" not in answer.err
