"""Getting data: downloads from a real local server that misbehaves, and files a user has."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from raw_digits import (
    IDX_NAMES,
    images,
    labels,
    write_libsvm,
    write_mnist,
    write_mnist_m,
    write_npz,
)

import fedbn.datasets
from fedbn import registry
from fedbn.data import downloads
from fedbn.data.downloads import DownloadListener, Remote, provide
from fedbn.data.storage import Info
from fedbn.datasets import info_of
from fedbn.datasets.digits import digits
from fedbn.datasets.pictures import DOMAINNET as DOMAINNET
from fedbn.errors import ConfigError, DataError

FIRST = "train-images-idx3-ubyte.gz"


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.bytes: dict[str, int] = {}

    @property
    def listener(self) -> DownloadListener:
        return DownloadListener(self.told.append, lambda file: Counter(self, file))


class Counter:
    def __init__(self, heard: Heard, file: str) -> None:
        self.total, self._heard, self._file = 0, heard, file
        self.reset()

    def update(self, count: int) -> None:
        self._heard.bytes[self._file] += count

    def reset(self) -> None:
        self._heard.bytes[self._file] = 0

    def close(self) -> None:
        pass


class Server:
    """Serves files; `faults` holds, by file, what goes wrong with the next requests."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.faults, self.asked = files, dict[str, list[str]](), list[str]()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def remote(self) -> Remote:
        address = f"http://127.0.0.1:{self._http.server_port}/"
        sums = {name: hashlib.md5(content).hexdigest() for name, content in self.files.items()}
        return Remote(address, sums)

    def close(self) -> None:
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, self.path.lstrip("/"))

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def answer(self, request: BaseHTTPRequestHandler, name: str) -> None:
        self.asked.append(name)
        content, faults = self.files[name], self.faults.get(name)
        fault = faults.pop(0) if faults else "none"
        if fault.isdecimal():
            request.send_error(int(fault))
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        whole = {"cut": content[: len(content) // 2], "wrong": bytes(len(content))}
        request.wfile.write(whole.get(fault, content))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The four files of a small MNIST, the only thing that can be downloaded."""
    write_mnist(tmp_path / "web", images(100, 28), labels(100), test=20)
    names = [f"{name}.gz" for name in IDX_NAMES]
    files = {name: (tmp_path / "web" / name).read_bytes() for name in names}
    started = Server(files)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(downloads, "WAIT", 0.01)
    monkeypatch.setattr(downloads, "REMOTE", {"mnist": started.remote})
    yield started
    started.close()


def prepare(source: Path | None = None, name: str = "digits", **options: object) -> Heard:
    heard = Heard()
    if name == "digits":
        options = {"domains": ["mnist"], **options}
    provide(name, info_of(name), options, source, heard.listener)
    return heard


def left(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def test_a_download_is_whole_followed_and_made_once(server, data_folder):
    heard = prepare()
    assert left(data_folder / "digits") == sorted(server.files)
    assert heard.bytes == {name: len(content) for name, content in server.files.items()}
    assert len(digits(domains=["mnist"]).clients[0].train) == 8  # a tenth of 80 of 100
    prepare()
    assert len(server.asked) == 4  # nothing was asked for again


@pytest.mark.shows("D36", "D37")
@pytest.mark.parametrize(
    ("fault", "named"),
    [("cut", "cut off"), ("wrong", "wrong checksum"), ("503", "the server answers 503")],
)
def test_d36_d37_a_bad_download_is_named_thrown_away_and_tried_again(
    server, data_folder, fault, named
):
    server.faults[FIRST] = [fault, fault]
    heard = prepare()
    assert server.asked.count(FIRST) == 3
    for attempt, text in enumerate(heard.told[:2], start=2):
        assert named in text
        assert FIRST in text
        assert f"try {attempt} of 3 follows" in text
    assert (data_folder / "digits" / FIRST).read_bytes() == server.files[FIRST]


@pytest.mark.shows("D36", "D37")
@pytest.mark.parametrize("fault", ["cut", "wrong"])
def test_d36_d37_after_three_tries_nothing_half_is_left(server, data_folder, fault):
    server.faults[FIRST] = [fault] * 5
    with pytest.raises(DataError, match=f"/{FIRST}: (cut off|wrong checksum)"):
        prepare()
    assert server.asked == [FIRST] * 3
    assert left(data_folder) == []
    with pytest.raises(DataError, match="no mnist"):
        digits(domains=["mnist"])


def test_what_the_server_refuses_is_not_asked_for_again(server):
    server.faults[FIRST] = ["404"]
    with pytest.raises(DataError, match="the server answers 404 Not Found"):
        prepare()
    assert server.asked == [FIRST]


def test_files_that_are_there_are_not_fetched(server, data_folder):
    (data_folder / "digits" / "mnist").mkdir(parents=True)
    (data_folder / "digits" / FIRST).write_bytes(server.files[FIRST])
    prepare()
    assert FIRST not in server.asked
    assert len(server.asked) == 3


def test_another_form_makes_a_download_needless(server, data_folder):
    part = images(20, 28), labels(20)
    write_npz(data_folder / "digits" / "mnist.npz", part, part)
    prepare()
    assert server.asked == []


@pytest.mark.shows("F60")
def test_f60_without_internet_the_address_and_the_reason_are_named(server, data_folder):
    address = server.remote.address
    server.close()
    with pytest.raises(DataError, match=r"no connection; is there internet\? \(.+\)") as refusal:
        prepare()
    assert address + FIRST in str(refusal.value)
    assert "--from DIR" in str(refusal.value)
    assert left(data_folder) == []


@pytest.mark.shows("D38")
def test_d38_a_read_only_data_root_is_refused_before_anything_is_fetched(server, data_folder):
    data_folder.chmod(0o555)
    with pytest.raises(DataError, match="cannot be written; let FEDBN_DATA name a folder"):
        prepare()
    data_folder.chmod(0o755)
    assert server.asked == []


def test_d38_with_the_files_there_a_read_only_data_root_will_do(server, data_folder, tmp_path):
    write_mnist(data_folder / "digits", images(100, 28), labels(100), test=20)
    data_folder.chmod(0o555)
    prepare()
    assert len(digits(domains=["mnist"]).clients[0].train) == 8
    data_folder.chmod(0o755)
    assert list((tmp_path / "home").rglob("*.npy"))  # what was prepared is kept at home


def test_digits_without_an_address_are_named_with_what_to_get_and_where_to_put_it(
    server, data_folder
):
    with pytest.raises(DataError) as refusal:
        prepare(domains=["mnist", "mnist_m", "synthdigits"])
    text = str(refusal.value)
    assert "\n" not in text
    assert "mnist_m is missing" in text
    assert "mnist_m_train_labels.txt" in text
    assert "http://yaroslav.ganin.net" in text
    assert str(data_folder / "digits") in text
    assert "synthdigits" not in text  # can be rendered
    (data_folder / "digits" / "photographs").mkdir()
    prepare(domains=["mnist", "mnist_m"])  # can be made


@pytest.mark.parametrize("name", ["office_caltech10", "domainnet", "abide"])
def test_other_data_without_an_address(data_folder, name):
    with pytest.raises(
        DataError, match=f"{name} is missing: get .*http.*; put it in .*{name} .*FEDBN_DATA"
    ):
        prepare(name=name)
    load = registry.find(fedbn.datasets, name, "data set")
    with pytest.raises(DataError, match=f"data prepare {name}` says how .* FEDBN_DATA names"):
        load()
    with pytest.raises(DataError, match=r"no such folder; expected [^`]*$"):
        load(path="elsewhere")


def test_a_data_set_that_recognises_no_files_takes_none_over(data_folder, tmp_path):
    info = Info("own", "1 of 2", 2, "4", "by hand", "none", files=("own/*",))
    with pytest.raises(ConfigError, match=r"data own takes no files over; put them in .*/own "):
        provide("own", info, {}, tmp_path, Heard().listener)
    file = tmp_path / "a.txt"
    file.write_text("mine")

    own = replace(info, places=lambda folder: {folder / "a.txt": Path("own/a.txt")})
    heard = Heard()
    provide("own", own, {}, tmp_path, heard.listener)
    assert heard.told == ["own: 1 new file(s) taken over, 0 were there already"]


def test_data_that_needs_no_files():
    prepare(name="gaussians")
    with pytest.raises(ConfigError, match="gaussians needs no files"):
        prepare(Path(), name="gaussians")


def test_digit_files_are_taken_over_at_any_depth(data_folder, tmp_path):
    own = tmp_path / "own"
    write_mnist(own / "MNIST" / "raw", images(100, 28), labels(100), test=20, zipped=False)
    write_libsvm(own / "usps.bz2", images(40, 16), labels(40))
    write_libsvm(own / "usps.t.bz2", images(20, 16, seed=1), labels(20))
    write_mnist_m(own / "mnist_m", images(30, 32, 3), labels(30), test=10)
    domains = ["mnist", "usps", "mnist_m"]
    heard = prepare(own, domains=domains)
    assert heard.told[0] == "mnist: 4 new file(s) taken over, 0 were there already"
    assert len(digits(domains=domains).clients) == 3
    again = prepare(own, domains=domains)
    assert again.told[2] == "mnist_m: 0 new file(s) taken over, 32 were there already"
    assert not list(data_folder.glob(".incoming*"))


def test_originals_may_be_deleted_afterwards(tmp_path):
    write_mnist(tmp_path / "own", images(100, 28), labels(100), test=20)
    prepare(tmp_path / "own")
    for file in (tmp_path / "own").iterdir():
        file.unlink()
    assert len(digits(domains=["mnist"]).clients[0].train) == 8


def test_without_hard_links_files_are_copied(data_folder, tmp_path, monkeypatch):
    write_mnist(tmp_path / "own", images(100, 28), labels(100), test=20)
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(18, "other device")))
    prepare(tmp_path / "own")
    taken = data_folder / "digits" / FIRST
    assert taken.stat().st_nlink == 1
    assert taken.read_bytes() == (tmp_path / "own" / FIRST).read_bytes()


def test_what_is_missing_in_the_folder_is_named_and_the_rest_taken(data_folder, tmp_path):
    write_mnist(tmp_path / "own", images(100, 28), labels(100), test=20)
    write_libsvm(tmp_path / "own" / "usps.bz2", images(40, 16), labels(40))
    with pytest.raises(DataError, match=r"^usps is missing \(usps.npz, or usps.bz2 \+ usps.t.bz2"):
        prepare(tmp_path / "own", domains=["mnist", "usps"])
    assert len(left(data_folder)) == 4


def test_another_file_of_that_name_is_never_written_over(data_folder, tmp_path):
    write_mnist(tmp_path / "own", images(100, 28), labels(100), test=20)
    (data_folder / "digits").mkdir()
    (data_folder / "digits" / FIRST).write_bytes(b"mine")
    (tmp_path / "own" / "mnist").mkdir()
    with pytest.raises(DataError, match=f"{FIRST}: there already, but not as"):
        prepare(tmp_path / "own")
    assert (data_folder / "digits" / FIRST).read_bytes() == b"mine"
    assert left(data_folder) == [f"digits/{FIRST}"]


def test_a_disk_that_fills_up_leaves_nothing(data_folder, tmp_path, monkeypatch):
    write_mnist(tmp_path / "own", images(100, 28), labels(100), test=20)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(DataError, match="No space left on device"):
        prepare(tmp_path / "own")
    assert list(data_folder.iterdir()) == []


def test_a_benchmark_of_pictures_is_taken_over_without_its_other_classes(data_folder, tmp_path):
    own = tmp_path / "unpacked" / "domainnet"
    for domain in DOMAINNET.domains:
        for label in (*DOMAINNET.classes, "sofa"):
            (own / domain / label).mkdir(parents=True)
            picture = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(picture).save(own / domain / label / "a b.png")
    heard = prepare(own.parent, name="domainnet")
    assert heard.told == ["domainnet: 60 new file(s) taken over, 0 were there already"]
    assert len(left(data_folder / "domainnet")) == 60
    (own / "real" / "bird" / "a b.png").unlink()
    (own / "real" / "bird").rmdir()
    with pytest.raises(DataError, match="no folder bird"):
        prepare(own, name="domainnet")


def test_abide_is_taken_over(data_folder, tmp_path):
    own = tmp_path / "own"
    (own / "rois").mkdir(parents=True)
    rows = ["FILE_ID,SITE_ID,DX_GROUP"]
    for site in ("NYU", "USM", "UM_1", "UCLA_1", "YALE"):
        for number in (1, 2):
            (own / "rois" / f"{site}_{number}_rois_ho.1D").write_text("#1\n0\n")
            rows.append(f"{site}_{number},{site},{number}")
    (own / "Phenotypic_V1.csv").write_text("\n".join(rows))
    heard = prepare(own, name="abide")
    assert heard.told == ["abide: 9 new file(s) taken over, 0 were there already"]
    assert "abide/rois/NYU_1_rois_ho.1D" in left(data_folder)
    assert not any("YALE" in file for file in left(data_folder))


def test_a_folder_that_is_none_and_a_domain_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        prepare(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="unknown domain 'mnits': did you mean 'mnist'"):
        prepare(domains=["mnits"])
