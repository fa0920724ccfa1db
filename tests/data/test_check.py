"""`data check` reports every fault and never raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch
from loading import loaded
from PIL import Image

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.findings import Finding
from fedbn.data.checks import examine, examine_path, recognize
from fedbn.data.images import Image as PillowImage
from unprivileged import unprivileged


def examined(path: Path, **options: object) -> list[Finding]:
    def read(changed: Mapping[str, object]) -> Federation:
        return loaded(recognize(path)[0], path=str(path), **{**options, **changed})

    return examine_path(path, options, read)


def noise(seed: int, size: int = 16) -> Image.Image:
    draws = np.random.default_rng(seed)
    return Image.fromarray(draws.integers(0, 256, (size, size, 3), dtype=np.uint8))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two sites, two classes, five different pictures each: nothing to find."""
    root = tmp_path / "own"
    for number, place in enumerate(["a/cat", "a/dog", "b/cat", "b/dog"]):
        (root / place).mkdir(parents=True)
        for index in range(5):
            noise(10 * number + index).save(root / place / f"{index}.png")
    return root


def found(findings: list[Finding], severity: str) -> list[tuple[str, str, str]]:
    return [
        (f.site, Path(f.file).name if f.file else "", f.text)
        for f in findings
        if f.severity == severity
    ]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_good_pictures_have_no_findings(pictures):
    assert examined(pictures) == []


@pytest.mark.shows("D14", "D15")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty, 0 bytes"),
        (b"hello", "not a picture"),
        (b"cut", "damaged or cut off"),
    ],
)
def test_unreadable_pictures_are_errors(pictures, content, text):
    file = pictures / "a" / "cat" / "0.png"
    file.write_bytes(file.read_bytes()[:400] if content == b"cut" else content)
    finding = only(examined(pictures))
    assert (finding.severity, finding.site, finding.file) == ("error", "a", str(file))
    assert text in finding.text


def test_several_faults_are_all_reported_errors_first(pictures):
    Image.new("RGB", (9, 9), (5, 5, 5)).save(pictures / "a" / "cat" / "flat.png")
    for name in ("x.png", "y.png"):
        (pictures / "b" / "dog" / name).write_bytes(b"")
    findings = examined(pictures)
    assert [f.severity for f in findings] == ["error", "error", "warning"]
    assert findings[2].text == "all pixels are the same"


@pytest.mark.shows("D12", "D16")
def test_mixed_modes_and_other_files_are_notes(pictures):
    noise(99).convert("L").save(pictures / "a" / "cat" / "grey.png")
    (pictures / "a" / "cat" / "readme.txt").write_text("about")
    notes = found(examined(pictures), "note")
    assert ("a", "", "mixed modes, all read as RGB: RGB 10, L 1") in notes
    assert ("a", "readme.txt", "not a picture: left out") in notes


def test_a_picture_that_pillow_warns_of_is_noted(pictures):
    exif = (
        b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0\x01\0\0\0"  # four entries missing
    )
    noise(90).save(pictures / "a" / "cat" / "odd.jpg", exif=exif)
    finding = only(examined(pictures))
    assert (finding.severity, Path(finding.file).name) == ("note", "odd.jpg")
    assert finding.text.startswith("odd, but can be read (Corrupt EXIF data")


def test_sixteen_bit_pictures_must_fit_the_depth(pictures):
    deep = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    Image.fromarray(deep).save(pictures / "a" / "cat" / "deep.png")
    error = only([f for f in examined(pictures, depth=1023) if f.severity == "error"])
    assert "pixels from 0 to 4095, beyond 0 to 1023; raise data.depth" in error.text


def test_classes_that_differ_in_case_only(pictures):
    (pictures / "b" / "cat").rename(pictures / "b" / "Cat")
    texts = [text for _, _, text in found(examined(pictures), "warning")]
    assert any(text.startswith("classes 'Cat' and 'cat' differ in case") for text in texts)


@pytest.mark.shows("D24")
def test_the_same_file_at_two_sites_or_classes(pictures):
    noise(0).save(pictures / "b" / "cat" / "copy.png")
    noise(1).save(pictures / "a" / "dog" / "copy.png")
    noise(2).save(pictures / "a" / "cat" / "copy.png")
    findings = examined(pictures)
    at_site, again, in_class = sorted(found(findings, "warning"), reverse=True)
    assert at_site[:2] == ("b", "copy.png")
    assert at_site[2].endswith("a/cat/0.png, at another site")
    assert in_class[2].endswith("a/cat/1.png, under another class")
    assert again[2].endswith("a/cat/2.png: one may be trained on and the other tested")


@pytest.mark.shows("D23")
def test_the_same_file_in_train_and_test(tmp_path):
    for number, part in enumerate(["train", "test"]):
        for label, name in enumerate(["cat", "dog"]):
            folder = tmp_path / "own" / "a" / part / name
            folder.mkdir(parents=True)
            for index in range(3):
                noise(100 * number + 10 * label + index).save(folder / f"{index}.png")
    noise(0).save(tmp_path / "own" / "a" / "test" / "cat" / "9.png")
    finding = only(examined(tmp_path / "own"))
    assert finding.severity == "warning"
    assert finding.text.endswith("train/cat/0.png: train and test")


@pytest.mark.shows("D25", "D32")
def test_a_class_missing_at_a_site_and_very_unequal_classes(pictures):
    (pictures / "a" / "owl").mkdir()
    for index in range(101):
        noise(1000 + index, 4).save(pictures / "a" / "owl" / f"{index}.png")
    warnings = found(examined(pictures), "warning")
    assert ("b", "", "no training picture of owl") in warnings
    assert ("a", "", "very unequal classes: owl 101, dog 5") in warnings


@pytest.mark.shows("D33")
def test_enormous_pictures(pictures, monkeypatch):
    noise(500, 40).save(pictures / "a" / "cat" / "large.png")
    monkeypatch.setattr("fedbn.data.file_checks._LARGE", 1500)
    (enormous,) = found(examined(pictures), "warning")
    assert "enormous" in enormous[2]
    monkeypatch.setattr(PillowImage, "MAX_IMAGE_PIXELS", 1500)
    assert only(examined(pictures)).severity == "error"


@pytest.mark.shows("D16", "D18", "D19")
def test_links_in_a_circle_odd_names_and_stray_pictures(pictures):
    (pictures / "a" / "cat" / "loop").symlink_to(pictures / "a")
    (pictures / "a" / "cat" / "gone.png").symlink_to(pictures / "nowhere")
    noise(70).save(pictures / "a" / "cat" / " odd\n.png")
    noise(71).save(pictures / "a" / "stray.png")
    findings = examined(pictures)
    assert [f.severity for f in findings] == ["error", "warning", "warning", "note"]
    assert "leads nowhere" in findings[0].text
    assert {"outside a class folder" in findings[1].text, "circle" in findings[1].text} == {
        True,
        False,
    }
    assert "odd name" in findings[3].text
    assert all("\n" not in f.file + f.text for f in findings)


def test_a_site_name_that_cannot_be_a_client_is_an_error(pictures):
    (pictures / "a").rename(pictures / "a:b")
    findings = examined(pictures)
    assert findings[0].severity == "error"
    assert "client name 'a:b'" in findings[0].text


@pytest.mark.shows("D17")
def test_permissions(pictures):
    (pictures / "a" / "cat" / "0.png").chmod(0)
    with unprivileged():
        assert only(examined(pictures)).text == "no permission to read it"


def test_what_is_no_data_is_one_error(tmp_path):
    finding = only(examined(tmp_path / "missing"))
    assert finding.severity == "error"
    assert finding.text.startswith("no such file or folder; expected (1) pictures")


def federation(**changes: Split) -> Federation:
    """Two sites of 40 pictures with nothing to find, but for the splits given."""
    clients = []
    for number, name in enumerate("ab"):
        draws = torch.Generator().manual_seed(number)
        x = torch.randint(0, 256, (50, 3, 6, 6), generator=draws, dtype=torch.uint8)
        y = torch.arange(50) % 2
        train = changes.get(name, Split(x[:40], y[:40]))
        clients.append(Client(name, name, train, {name: Split(x[40:], y[40:])}))
    return Federation("f", tuple(clients), ("x", "y"))


def test_a_good_federation_has_no_findings():
    assert examine(federation()) == []


def test_nan_infinity_and_labels():
    x, y = torch.rand(40, 3, 6, 6), torch.arange(40) % 2
    x[3, 0, 0, 0], x[5, 0, 0, 0] = torch.nan, torch.inf
    y[7] = -100
    findings = [f for f in examine(federation(b=Split(x, y))) if f.site == "b"]
    assert [(f.severity, f.site, f.file) for f in findings] == [("error", "b", "train")] * 3
    assert [f.text for f in findings] == [
        "NaN in sample 3",
        "infinity in sample 5",
        "label -100 of sample 7; expected 0 to 1",
    ]


@pytest.mark.shows("D27")
def test_sites_scaled_differently():
    whole = federation()
    a = whole.clients[0].train
    scaled = Split(a.x.float() / 255, a.y)
    other = replace(scaled, x=whole.clients[1].train.x.float())
    clients = [replace(c, train=t, tests={c.name: t.take(torch.tensor([0, 1]))})
               for c, t in zip(whole.clients, (scaled, other), strict=True)]  # fmt: skip
    warnings = found(examine(replace(whole, clients=tuple(clients))), "warning")
    assert ("", "train", "sites are scaled differently: values reach a 1, b 255") in warnings


@pytest.mark.shows("D23", "D24")
def test_the_same_sample_at_two_sites_and_in_train_and_test():
    whole = federation()
    a, b = whole.clients
    x = b.train.x.clone()
    x[0], x[1] = a.train.x[7], b.tests["b"].x[2]
    warnings = found(examine(federation(b=Split(x, b.train.y))), "warning")
    assert warnings == [
        ("b", "train", "1 sample also in train of a: sample 0 here is sample 7 there"),
        ("b", "test", "1 sample also in train of b: sample 2 here is sample 1 there"),
    ]


@pytest.mark.shows("D07", "D11")
def test_one_class_constant_samples_and_short_splits():
    x = torch.zeros(40, 3, 6, 6, dtype=torch.uint8)
    warnings = found(examine(federation(b=Split(x, torch.zeros(40).long()))), "warning")
    assert ("b", "train", "no training sample of class y") in warnings
    assert ("b", "train", "40 constant sample(s), the first is 0") in warnings
    short = examine(federation(b=Split(x[:1], torch.tensor([0]))))
    assert "at least 2 are needed" in only([f for f in short if f.severity == "error"]).text


def write_npz(file: Path | IO[bytes], seed: int, **changes: np.ndarray) -> None:
    draws = np.random.default_rng(seed)
    arrays = {
        "train_x": draws.normal(size=(20, 5)).astype(np.float32),
        "train_y": np.arange(20) % 2,
        "test_x": draws.normal(size=(6, 5)).astype(np.float32),
        "test_y": np.arange(6) % 2,
    }
    np.savez(file, **{**arrays, **changes})


def test_arrays_file_by_file(tmp_path):
    root = tmp_path / "own"
    root.mkdir()
    for seed, name in enumerate("abcd"):
        write_npz(root / f"{name}.npz", seed)
    assert examined(root) == []
    (root / "b.npz").write_bytes(b"PK cut")
    write_npz(root / "c.npz", 2, train_y=np.array([{}] * 20))
    errors = found(examined(root), "error")
    assert [(site, file) for site, file, _ in errors] == [("b", "b.npz"), ("c", "c.npz")]
    assert "pickled objects" in errors[1][2]


@pytest.mark.shows("D07", "D26")
def test_arrays_with_constant_columns_and_another_class_order(tmp_path):
    root = tmp_path / "own"
    root.mkdir()
    flat = np.random.default_rng(7).normal(size=(20, 5))
    flat[:, 2] = 1
    write_npz(root / "a.npz", 0, train_x=flat)
    write_npz(root / "b.npz", 1)
    assert only(examined(root)).text == "1 feature (2) constant here, but not at every site"
    write_npz(root / "a.npz", 0, classes=np.array(["x", "y"]))
    write_npz(root / "b.npz", 1, classes=np.array(["y", "x"]))
    finding = only(examined(root))
    assert finding.severity == "error"
    assert "differ in name or order" in finding.text


def test_tables_column_by_column(tmp_path):
    root = tmp_path / "own"
    root.mkdir()
    good = "\n".join(f"{n},{n * n % 7},1,{n % 2}" for n in range(20))
    (root / "a.csv").write_text(f"key,x,flat,ill\n{good}\n")
    (root / "b.csv").write_text(f"key,x,flat,ill\n{good}\n50,,1,0\n51,NA,1,1\n")
    findings = examined(root, label="ill", id="key")
    error = only([f for f in findings if f.severity == "error"])
    assert error.text.startswith("column 'x': 2 cells without a value, the first in row 22")
    warnings = found(findings, "warning")
    assert ("", "", "column 'flat' is constant at every site") in warnings
    assert any("20 id(s) occur again" in f.text for f in findings)


def test_tables_that_cannot_be_read_or_have_no_label(tmp_path):
    root = tmp_path / "own"
    root.mkdir()
    (root / "a.csv").write_text("x,ill\n1,2,3\n")
    (root / "b.csv").write_text("x,ill\n1,0\n2,1\n")
    assert only(examined(root)).text.endswith("row 2: 3 cells, but the header has 2")
    (root / "a.csv").write_text("x,ill\n,0\n2,1\n")
    findings = examined(root)
    assert [f.severity for f in findings] == ["error", "error"]
    assert "column 'x': 1 cell without a value" in findings[0].text
    assert findings[1].text.startswith("data.label is needed for tables")


def test_a_cell_that_makes_texts_of_numbers_is_a_warning(tmp_path):
    lines = [f"{n / 7:.3f},{n % 5 + n / 9:.3f},{n % 2},{'ab'[n % 3 == 0]}" for n in range(30)]
    lines[4] = "?,1,0,a"
    file = tmp_path / "all.csv"
    file.write_text("\n".join(["x,z,ill,at", *lines]))
    texts = [text for _, _, text in found(examined(file, label="ill", site="at"), "warning")]
    (said,) = (text for text in texts if "is not a number" in text)
    assert said.startswith(f"{file}, row 6, column 'x': '?' is not a number (1 such cells)")
    named = examined(file, label="ill", site="at", categorical=["x"])
    assert not any("is not a number" in finding.text for finding in named)
    several = examined(file, label=["z", "ill"], site="at")
    assert "is no label among several" in only(several).text


def test_npz_files_by_whatever_case_of_their_suffix(tmp_path):
    for seed, name in enumerate(("a.npz", "b.npz", "c.NPZ", "._a.npz")):
        with (tmp_path / name).open("wb") as file:
            write_npz(file, seed)
    assert "3 npz file(s)" in recognize(tmp_path)[1]
    assert [c.name for c in loaded("arrays", path=str(tmp_path)).clients] == ["a", "b", "c"]
    assert examined(tmp_path) == []
    (tmp_path / "c.NPZ").write_bytes(b"PK cut")
    (tmp_path / "d.nPz").symlink_to(tmp_path / "nowhere")
    assert [f.site for f in examined(tmp_path)] == ["c", "d"]
