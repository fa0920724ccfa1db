"""`fedbn data`: what its commands print, where, and with which exit code."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from commanding import Answer, call
from fedbn.data import downloads
from fedbn.data.downloads import Remote
from fedbn.datasets.pictures import OFFICE_CALTECH10 as OFFICE

NAMES = {"digits", "office_caltech10", "domainnet", "abide", "digits_mini", "synth_digits"}


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, and a home of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDBN_DATA", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return folder


def noise(seed: int, side: int = 16) -> Image.Image:
    draws = np.random.default_rng(seed)
    return Image.fromarray(draws.integers(0, 256, (side, side, 3), dtype=np.uint8))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two sites with names that are hard to print, two classes, five pictures each."""
    root = tmp_path / "own"
    for number, place in enumerate(["[a] $b$/:cat:", "[a] $b$/dog", "病院/:cat:"]):
        (root / place).mkdir(parents=True)
        for index in range(5):
            noise(10 * number + index).save(root / place / f"{index}.png")
    return root


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "patients.csv"
    homes = ("south", "north")
    rows = [f"{40 + 7 * i % 20},{i % 7},{homes[i % 2]},{i // 2 % 2}" for i in range(40)]
    file.write_text("\n".join(["age,marker,hospital,outcome", *rows]))
    return file


def office(root: Path) -> None:
    for number, domain in enumerate(OFFICE.domains):
        for place, label in enumerate(OFFICE.classes):
            (root / domain / label).mkdir(parents=True)
            for index in range(3):
                noise(100 * number + 10 * place + index).save(
                    root / domain / label / f"{index}.jpg"
                )


def done(*arguments: object) -> Answer:
    answer = call("data", *arguments)
    assert answer.code == 0, answer.err
    return answer


@pytest.mark.parametrize("command", ["ls", "prepare", "show", "check"])
def test_every_help_has_an_example(command):
    answer = done(command, "--help")
    assert f"fedbn data {command}" in answer.out.partition("Example")[2]


def test_the_group_alone_prints_its_help():
    assert done().out == done("--help").out
    assert call("data", "nothing").code == 2


def test_ls_tells_what_is_here(data_folder):
    office(data_folder / "office_caltech10")
    listed = {entry["name"]: entry for entry in json.loads(done("ls", "--json").out)["data"]}
    assert set(listed) >= NAMES
    assert {name for name in NAMES if listed[name]["here"]} == {
        *("office_caltech10", "digits_mini", "synth_digits")
    }
    assert all(entry["licence"] and entry["source"] for entry in listed.values())
    answer = done("ls")
    header, *lines = answer.out.splitlines()
    assert header.split() == ["name", "clients", "classes", "shape", "here", "from", "licence"]
    assert len(lines) == len(listed)
    assert str(data_folder) in answer.err


def test_ls_says_what_must_be_installed(data_folder, monkeypatch):
    (data_folder / "digits").mkdir()
    (data_folder / "digits" / "mnist.npz").touch()
    monkeypatch.setitem(sys.modules, "skimage", None)
    found = {each["name"]: each for each in json.loads(done("ls", "--json").out)["data"]}
    assert not found["morpho_mnist"]["here"]
    assert found["digits_mini"]["here"]
    row = next(line for line in done("ls").out.splitlines() if line.startswith("morpho_mnist"))
    assert "fedbn[morpho]" in row


def test_prepare_reads_the_data_once_and_counts(data_folder):
    answer = done("prepare", "synth_digits", "--set", "train=30", "--set", "data.test=20")
    assert answer.out.splitlines()[1].split() == ["synthdigits", "30", "20"]
    assert "1 client(s), 10 classes, samples of 3×28×28" in answer.out
    assert "not Ganin's files" in answer.err
    assert list(data_folder.rglob("train_x.npy"))


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small MNIST on a real local server."""
    web, sums = tmp_path / "web", {}
    web.mkdir()
    for part, count in (("train", 80), ("t10k", 20)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), np.uint8)
        digits = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", digits)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            content = gzip.compress(header + array.tobytes())
            (web / f"{part}-{kind}-ubyte.gz").write_bytes(content)
            sums[f"{part}-{kind}-ubyte.gz"] = hashlib.md5(content).hexdigest()
    handler = partial(Quiet, directory=str(web))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        remote = Remote(f"http://127.0.0.1:{server.server_port}/", sums)
        monkeypatch.setattr(downloads, "REMOTE", {"mnist": remote})
        monkeypatch.setenv("NO_PROXY", "*")
        yield
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("tty", [False, True])
def test_prepare_downloads_with_progress_on_stderr(mnist, data_folder, tty):
    arguments = ("prepare", "digits", "--set", "domains=['mnist']")
    answer = call("data", *arguments, tty=tty)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[1].split() == ["mnist", "8", "20"]
    assert "train-images-idx3-ubyte.gz is there, its checksum right" in answer.err
    assert len(list((data_folder / "digits").iterdir())) == 4


def test_prepare_counts_subjects(data_folder, tmp_path):
    own, rows = tmp_path / "abide", ["FILE_ID,SITE_ID,DX_GROUP"]
    own.mkdir()
    draws = np.random.default_rng(0)
    for site in ("NYU", "USM", "UM_1", "UCLA_1"):
        for number in range(1, 11):
            series = draws.normal(size=(40, 111))
            np.savetxt(
                own / f"{site}_{number}_rois_ho.1D", series, "%.3f", "\t",
                header="\t".join(f"#{3455 if i == 82 else i + 1}" for i in range(111)), comments="",
            )  # fmt: skip
            rows.append(f"{site}_{number},{site},{1 + number % 2}")
    (own / "Phenotypic.csv").write_text("\n".join(rows))
    answer = done("prepare", "abide", "--from", own)
    assert answer.err == "abide: 41 new file(s) taken over, 0 were there already\n"
    assert answer.out.splitlines()[1].split() == ["NYU", "72", "18", "8", "2"]
    assert done("show", "abide", "--out", "abide.svg").out.count("subjects") == 1


def test_prepare_says_in_one_line_what_to_get(data_folder):
    answer = call("data", "prepare", "domainnet")
    assert answer.code == 4
    assert "http://ai.bu.edu/M3SDA/" in answer.line
    assert str(data_folder / "domainnet") in answer.line


@pytest.mark.parametrize("name", ["arrays", "nothing", "own/"])
def test_prepare_is_for_registered_data(name):
    answer = call("data", "prepare", name)
    assert answer.code == 3
    assert "your own data needs no preparing" in answer.line


def test_show_draws_and_counts(pictures, tmp_path):
    answer = done("show", pictures)
    assert f"picture: {Path('data-own.png')}" in answer.err
    assert "read as picture folders: 2 site(s)" in answer.err
    with Image.open(tmp_path / "data-own.png") as picture:
        assert picture.width > 1000
    lines = answer.out.splitlines()
    assert lines[0].split() == ["training", "samples", ":cat:", "dog", "all"]
    assert lines[1].split() == ["[a]", "$b$", "4", "4", "8"]
    assert lines[2].split() == ["病院", "4", "0", "4"]
    assert lines[8].split() == ["labels", "samples", "classes", "skew"]
    assert lines[9].split() == ["[a]", "$b$", "8", "2", "0.17"]  # cats are 8 of 12, here 4 of 8
    assert lines[10].split() == ["病院", "4", "1", "0.33"]
    assert lines[12].startswith("Fréchet distance")
    assert "docs/which-method.md" in answer.err


def test_show_as_json_draws_only_where_asked(pictures, tmp_path):
    found = json.loads(done("show", pictures, "--json").out)
    assert found["train"] == [[4, 4], [4, 0]]
    assert found["test"] == [[1, 1], [1, 0]]
    assert len(found["distances"]) == 2
    assert not list(tmp_path.glob("*.png"))
    done("show", pictures, "--json", "--out", "deep/a.svg")
    ElementTree.parse(tmp_path / "deep" / "a.svg")


def test_show_with_many_classes_has_a_row_a_class(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for name in "ab":
        x, y = np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 25
        np.savez(folder / name, train_x=x, train_y=y, test_x=x[:25], test_y=y[:25])
    lines = done("show", folder).out.splitlines()
    assert lines[0].split() == ["training", "samples", "a", "b"]
    assert lines[25].split() == ["24", "2", "2"]
    assert lines[26].split() == ["all", "50", "50"]


def test_show_of_too_few_samples_has_no_distance(tmp_path):
    folder = tmp_path / "few"
    folder.mkdir()
    for name in "ab":
        np.savez(folder / name, train_x=np.eye(2), train_y=[0, 1], test_x=np.eye(2), test_y=[0, 1])
    assert json.loads(done("show", folder, "--json").out)["distances"] == [[None] * 2] * 2
    assert "nan" in done("show", folder).out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--out", "a.gif"], "--out a.gif: legal are names that end in .png or .svg"),
        (["--out", "own/病院/:cat:/0.png/a.png"], "cannot be written"),
        (["--set", "sice=3"], "did you mean 'data.size'"),
        (["--set", "size"], "expected key=value"),
    ],
)
def test_show_refuses_wrong_values(pictures, arguments, text):
    answer = call("data", "show", pictures, *arguments)
    assert answer.code == 3
    assert text in answer.err


def test_show_of_a_table(table):
    answer = done("show", table, "--set", "label=outcome", "--set", "data.site=hospital")
    assert answer.out.splitlines()[1].split() == ["north", "8", "8", "16"]


def test_check_of_good_data(pictures):
    (pictures / "病院" / "dog").mkdir()
    noise(99).save(pictures / "病院" / "dog" / "a.png")
    noise(98).save(pictures / "病院" / "dog" / "b.png")
    answer = done("check", pictures)
    assert answer.out == "0 errors, 0 warnings, 0 notes\n"


def test_check_reports_each_fault_on_one_line_and_exits_with_4(pictures):
    (pictures / "病院" / ":cat:" / "a\nb.png").write_bytes(b"")
    answer = call("data", "check", pictures)
    assert answer.code == 4
    error, warning, note = answer.out.splitlines()[1:4]
    assert error.split()[:2] == ["error", "病院"]
    assert "a\\nb.png" in error
    assert "empty, 0 bytes" in error
    assert "no training picture of dog" in warning
    assert note.startswith("note")
    assert answer.out.endswith("\n1 error, 1 warning, 1 note\n")
    found = json.loads(call("data", "check", pictures, "--json").out)["findings"]
    assert [f["severity"] for f in found] == ["error", "warning", "note"]
    assert set(found[0]) == {"severity", "site", "file", "text"}


def test_check_says_what_a_run_would_say_of_the_depth_and_of_patients_on_both_sides(pictures):
    home = next(pictures.glob("*/*"))
    for index in range(20):
        noise(200 + index).convert("I;16").save(home / f"p{index // 4:02}_{index % 4}.png")
    found = json.loads(done("check", pictures, "--json").out)["findings"]
    notes = [finding["text"] for finding in found if finding["severity"] == "note"]
    assert sum(note.startswith("16-bit pictures keep their depth") for note in notes) == 1
    assert sum(note.startswith("files that begin alike are in both train") for note in notes) == 1
    said = call("run", "--data", pictures, "--dry-run").err
    assert all(note in said for note in notes if note.startswith(("16-bit", "files that begin")))


def test_check_warns_without_an_exit_code(pictures):
    answer = call("data", "check", pictures)
    assert answer.code == 0
    assert answer.out.endswith("0 errors, 1 warning, 0 notes\n")


def test_check_refuses_an_option_that_a_run_would_refuse(pictures):
    answer = call("data", "check", pictures, "--set", "sice=3")
    assert answer.code == 3
    assert "data.size" in answer.err


@pytest.mark.parametrize("damage", ["", "\n,3,north,1"])
def test_check_refuses_a_mistyped_option_of_tables_and_lacks_a_label_as_a_run_does(table, damage):
    table.write_text(table.read_text() + damage)
    site = ("--set", "site=hospital")
    answer = call("data", "check", table, *site, "--set", "lable=outcome")
    assert answer.code == 3
    assert "unknown option 'data.lable': did you mean 'data.label'?" in answer.line
    answer = call("data", "check", table, *site)
    assert answer.code == 4
    assert "data.label is needed for tables: the column of classes, of age, marker" in answer.out
    assert "1 warning" not in answer.out


def test_check_of_tables(table):
    answer = call("data", "check", table)
    assert answer.code == 4
    assert "name its column of sites in data.site" in answer.out
    options = ("--set", "label=outcome", "--set", "site=hospital")
    assert done("check", table, *options).out == "0 errors, 0 warnings, 0 notes\n"
    table.write_text(table.read_text() + "\n,3,north,1")
    answer = call("data", "check", table, *options)
    assert answer.code == 4
    assert "column 'age': 1 cell without a value" in answer.out
    assert done("check", table, *options, "--set", "missing=mean").out.startswith("severity")
    assert done("check", table, *options, "--set", "drop=['age']").out.count("error") == 1


def test_check_of_a_registered_data_set():
    assert done("check", "gaussians").out == "0 errors, 0 warnings, 0 notes\n"
    answer = call("data", "check", "digits")
    assert answer.code == 4
    assert "fedbn data prepare digits" in answer.out


def test_check_of_a_benchmark_looks_at_files_that_no_client_takes_too(data_folder):
    root = data_folder / "office_caltech10"
    office(root)
    options = ("--set", "per_client=12", "--set", "size=16")
    assert done("check", "office_caltech10", *options).out.count("error") == 1
    for index in range(3):  # one of them is not taken, whichever division
        (root / "dslr" / "mug" / f"{index}.jpg").write_bytes(b"")
    answer = call("data", "check", "office_caltech10", *options)
    assert answer.code == 4
    assert answer.out.count("empty, 0 bytes") == 3


def test_a_file_that_stops_nobody_is_a_warning(data_folder):
    root = data_folder / "office_caltech10"
    office(root)
    options = ("--set", "per_client=12", "--set", "size=16")
    codes = []
    for index in range(3):
        content = (root / "dslr" / "mug" / f"{index}.jpg").read_bytes()
        (root / "dslr" / "mug" / f"{index}.jpg").write_bytes(b"")
        answer = call("data", "check", "office_caltech10", *options)
        assert answer.out.count("empty, 0 bytes") == 1
        codes.append(answer.code)
        (root / "dslr" / "mug" / f"{index}.jpg").write_bytes(content)
    assert set(codes) == {0, 4}


def test_a_users_own_function_is_shown_and_checked(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fedbn.datasets.synthetic import gaussians\n"
        "def data(train: int = 20): return gaussians(train=train)\n"
    )
    found = json.loads(done("show", "mine:data", "--set", "train=10", "--json").out)
    assert found["train"] == [[5, 5], [5, 5]]
    assert done("check", "mine:data").out.count("error") == 1
    assert done("prepare", "mine:data").out.splitlines()[1].split() == ["diagonal", "20", "1000"]
