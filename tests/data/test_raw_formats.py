import builtins
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_digits as raw
from scipy.io import savemat

from fedbn.data.digit_domains import colour28
from fedbn.data.digit_files import find_source
from fedbn.errors import DataError

COUNT, TEST = 30, 10


def pooled(folder: Path, domain: str) -> tuple[np.ndarray, np.ndarray]:
    source = find_source(folder, domain)
    assert source is not None
    images, labels = source.parts()[0]
    return images, labels


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("below", ["", "mnist"])
def test_mnist_idx_files(tmp_path: Path, zipped: bool, below: str):
    x, y = raw.images(COUNT, 28), raw.labels(COUNT)
    raw.write_mnist(tmp_path / below, x, y, TEST, zipped)
    images, labels = pooled(tmp_path, "mnist")
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)


@pytest.mark.parametrize(
    ("domain", "prefix"), [("svhn", ""), ("synthdigits", "synth_")], ids=["svhn", "synthdigits"]
)
def test_matlab_files(tmp_path: Path, domain: str, prefix: str):
    x, y = raw.images(COUNT, 32, 3), raw.labels(COUNT)
    # SVHN writes the digit 0 as 10.
    written = np.where(y == 0, 10, y) if domain == "svhn" else y
    raw.write_mat(tmp_path / f"{prefix}train_32x32.mat", x[:-TEST], written[:-TEST])
    raw.write_mat(tmp_path / f"{prefix}test_32x32.mat", x[-TEST:], written[-TEST:])
    images, labels = pooled(tmp_path, domain)
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)


def test_usps_libsvm_files(tmp_path: Path):
    x, y = raw.images(COUNT, 16), raw.labels(COUNT)
    raw.write_libsvm(tmp_path / "usps.bz2", x[:-TEST], y[:-TEST])
    raw.write_libsvm(tmp_path / "usps.t.bz2", x[-TEST:], y[-TEST:])
    images, labels = pooled(tmp_path, "usps")
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)


def test_usps_hdf5_file(tmp_path: Path):
    pytest.importorskip("h5py")
    x, y = raw.images(COUNT, 16), raw.labels(COUNT)
    raw.write_usps_hdf5(tmp_path / "usps.h5", x, y, TEST)
    images, labels = pooled(tmp_path, "usps")
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)


def test_mnist_m_folders(tmp_path: Path):
    x, y = raw.images(COUNT, 32, 3), raw.labels(COUNT)
    raw.write_mnist_m(tmp_path / "mnist_m", x, y, TEST)
    images, labels = pooled(tmp_path, "mnist_m")
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)


def test_npz_files_come_divided(tmp_path: Path):
    raw.write_prepared(tmp_path, train=20, test=10)
    source = find_source(tmp_path, "usps")
    assert source is not None
    assert source.split
    assert [len(labels) for _, labels in source.parts()] == [20, 10]


def test_nothing_there_is_none(tmp_path: Path):
    assert find_source(tmp_path, "mnist") is None


def fails(folder: Path, domain: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        pooled(folder, domain)
    assert "\n" not in str(caught.value)


def test_an_incomplete_form_names_what_lacks(tmp_path: Path):
    raw.write_mnist(tmp_path, raw.images(COUNT, 28), raw.labels(COUNT), TEST)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    fails(tmp_path, "mnist", r"mnist is incomplete: no t10k-labels-idx1-ubyte\.gz")


def damaged_mnist(folder: Path, change: Any, name: str = "train-images-idx3-ubyte.gz") -> None:
    raw.write_mnist(folder, raw.images(COUNT, 28), raw.labels(COUNT), TEST)
    file = folder / name
    file.write_bytes(change(file.read_bytes()))


def test_a_cut_off_gzip_file_is_named(tmp_path: Path):
    damaged_mnist(tmp_path, lambda content: content[:-200])
    fails(tmp_path, "mnist", r"train-images-idx3-ubyte\.gz: unreadable, cut off")


def test_what_is_no_gzip_file_is_named(tmp_path: Path):
    damaged_mnist(tmp_path, lambda content: b"<html>not found</html>")
    fails(tmp_path, "mnist", r"train-images-idx3-ubyte\.gz: unreadable")


def test_an_empty_file_is_named(tmp_path: Path):
    damaged_mnist(tmp_path, lambda content: b"")
    fails(tmp_path, "mnist", "begins with nothing, expected 00 00 08 03")


def test_labels_in_place_of_images_are_named(tmp_path: Path):
    damaged_mnist(tmp_path, lambda content: gzip.compress(raw.idx_bytes(np.zeros(3, np.uint8))))
    fails(tmp_path, "mnist", "begins with 00 00 08 01, expected 00 00 08 03")


def test_an_idx_header_is_not_believed(tmp_path: Path):
    lie = bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"few"
    damaged_mnist(tmp_path, lambda content: gzip.compress(lie))
    fails(tmp_path, "mnist", "promises 79228162458924105385300197375 bytes")


def test_an_idx_header_that_ends_early(tmp_path: Path):
    damaged_mnist(tmp_path, lambda content: gzip.compress(bytes([0, 0, 8, 3, 0, 0])))
    fails(tmp_path, "mnist", "cut off within its header")


def test_idx_counts_must_agree(tmp_path: Path):
    short = gzip.compress(raw.idx_bytes(np.zeros(3, np.uint8)))
    damaged_mnist(tmp_path, lambda content: short, "train-labels-idx1-ubyte.gz")
    fails(tmp_path, "mnist", "20 images but 3 labels")


def test_idx_labels_out_of_range(tmp_path: Path):
    raw.write_mnist(tmp_path, raw.images(COUNT, 28), raw.labels(COUNT) + 1, TEST)
    fails(tmp_path, "mnist", "labels from 1 to 10; legal are 0 to 9")


def svhn_with(folder: Path, **content: Any) -> None:
    raw.write_mat(folder / "test_32x32.mat", raw.images(10, 32, 3), raw.labels(10))
    savemat(folder / "train_32x32.mat", content)


@pytest.mark.shows("D28")
def test_a_matlab_73_file_is_named(tmp_path: Path):
    pytest.importorskip("h5py")
    svhn_with(tmp_path)
    raw.write_mat73(tmp_path / "train_32x32.mat")
    fails(tmp_path, "svhn", r"train_32x32\.mat: a MATLAB 7\.3 file.*expected version 5")


@pytest.mark.shows("D28")
def test_wrong_keys_of_a_matlab_file(tmp_path: Path):
    svhn_with(tmp_path, images=np.zeros((2, 2)), y=np.zeros(2))
    fails(tmp_path, "svhn", "no X; it has images, y")


def test_wrong_shape_of_a_matlab_file(tmp_path: Path):
    svhn_with(tmp_path, X=np.zeros((32, 32, 3, 2)), y=np.ones((2, 1)))
    fails(tmp_path, "svhn", r"images of float64 \(2, 32, 32, 3\); legal are uint8")


def test_unequal_lengths_of_a_matlab_file(tmp_path: Path):
    svhn_with(tmp_path, X=np.zeros((32, 32, 3, 2), np.uint8), y=np.ones((3, 1)))
    fails(tmp_path, "svhn", "2 images but 3 labels")


def test_wrong_labels_of_a_matlab_file(tmp_path: Path):
    svhn_with(tmp_path, X=np.zeros((32, 32, 3, 2), np.uint8), y=np.array([[3], [11]]))
    fails(tmp_path, "svhn", "labels from 3 to 11; legal are 0 to 9")


@pytest.mark.parametrize("content", [b"", b"no", b"not a MATLAB file" * 40])
def test_what_is_no_matlab_file(tmp_path: Path, content: bytes):
    svhn_with(tmp_path, X=np.zeros(1))
    (tmp_path / "train_32x32.mat").write_bytes(content)
    fails(tmp_path, "svhn", r"train_32x32\.mat: damaged or not a MATLAB file")


def test_a_cut_off_matlab_file(tmp_path: Path):
    raw.write_mat(tmp_path / "train_32x32.mat", raw.images(10, 32, 3), raw.labels(10))
    raw.write_mat(tmp_path / "test_32x32.mat", raw.images(10, 32, 3), raw.labels(10))
    file = tmp_path / "train_32x32.mat"
    file.write_bytes(file.read_bytes()[:5000])
    fails(tmp_path, "svhn", r"train_32x32\.mat: damaged or not a MATLAB file")


@pytest.mark.parametrize("content", [b"", b"not bz2", b"BZh91AY&SY cut"])
def test_what_is_no_libsvm_file(tmp_path: Path, content: bytes):
    raw.write_libsvm(tmp_path / "usps.t.bz2", raw.images(3, 16), raw.labels(3))
    (tmp_path / "usps.bz2").write_bytes(content)
    fails(tmp_path, "usps", r"usps\.bz2: (damaged|no image)")


def test_libsvm_labels_from_zero(tmp_path: Path):
    for name in ("usps.bz2", "usps.t.bz2"):
        raw.write_libsvm(tmp_path / name, raw.images(3, 16), raw.labels(3) - 1)
    fails(tmp_path, "usps", "labels from 0.0 to 2.0; legal are 1 to 10")


def test_hdf5_without_h5py_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "usps.h5").write_bytes(b"")
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "h5py":
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    fails(tmp_path, "usps", r"pip install fedbn\[hdf5\]")


def test_a_damaged_hdf5_file(tmp_path: Path):
    pytest.importorskip("h5py")
    (tmp_path / "usps.h5").write_bytes(b"not HDF5")
    fails(tmp_path, "usps", r"usps\.h5: damaged, or without train/data")


def test_pixels_of_hdf5_out_of_range(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "usps.h5", "w") as content:
        for part in ("train", "test"):
            content[f"{part}/data"] = np.full((2, 256), 255.0)
            content[f"{part}/target"] = np.zeros(2)
    fails(tmp_path, "usps", "pixels outside their range")


def test_a_pickle_is_refused(tmp_path: Path):
    (tmp_path / "keras_mnistm.pkl.gz").write_bytes(b"")
    fails(tmp_path, "mnist_m", r"keras_mnistm\.pkl\.gz: a pickle, which can run code: refused")


@pytest.mark.shows("D22")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("00000000.png", "line 1: '00000000.png'; expected a file's name and a digit"),
        ("00000000.png five", "expected a file's name and a digit"),
        ("../../secret.png 5", "expected a file's name and a digit"),
        ("absent.png 5", r"absent\.png: named in mnist_m_train_labels\.txt, but not there"),
        ("", "no line"),
    ],
)
def test_a_wrong_table_of_mnist_m(tmp_path: Path, line: str, message: str):
    raw.write_mnist_m(tmp_path, raw.images(COUNT, 32, 3), raw.labels(COUNT), TEST)
    (tmp_path / "mnist_m_train_labels.txt").write_text(line)
    fails(tmp_path, "mnist_m", message)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n cut"])
def test_a_damaged_image_of_mnist_m(tmp_path: Path, content: bytes):
    raw.write_mnist_m(tmp_path, raw.images(COUNT, 32, 3), raw.labels(COUNT), TEST)
    (tmp_path / "mnist_m_train" / "00000003.png").write_bytes(content)
    fails(tmp_path, "mnist_m", r"00000003\.png: (empty|not a picture|damaged)")


def test_images_of_mnist_m_have_one_size(tmp_path: Path):
    raw.write_mnist_m(tmp_path, raw.images(COUNT, 32, 3), raw.labels(COUNT), TEST)
    other = raw.images(1, 30, 3)[0]
    raw.Image.fromarray(other).save(tmp_path / "mnist_m_train" / "00000003.png")
    fails(tmp_path, "mnist_m", "30×30 pixels, but 00000000.png has 32×32")


def test_an_npz_with_other_keys(tmp_path: Path):
    np.savez(tmp_path / "mnist.npz", images=np.zeros(3))
    fails(tmp_path, "mnist", r"mnist\.npz: no train_images; it has images")


def test_an_npz_of_floats(tmp_path: Path):
    part = (np.zeros((3, 28, 28)), raw.labels(3))
    raw.write_npz(tmp_path / "mnist.npz", part, part)
    fails(tmp_path, "mnist", r"images of float64 \(3, 28, 28\); legal are uint8")


def test_an_npz_with_labels_as_text(tmp_path: Path):
    part = (raw.images(2, 28), np.array(["one", "two"]))
    raw.write_npz(tmp_path / "mnist.npz", part, part)
    fails(tmp_path, "mnist", "labels of <U3")


@pytest.mark.shows("D29")
def test_an_npz_with_pickled_objects(tmp_path: Path):
    part = (np.array([object()]), raw.labels(1))
    raw.write_npz(tmp_path / "mnist.npz", part, part)
    fails(tmp_path, "mnist", "pickled objects")


def test_grey_images_are_enlarged_and_repeated():
    # Bilinear enlargement of an image that is dark on the left and light on the right.
    half = np.zeros((1, 16, 16), np.uint8)
    half[:, :, 8:] = 200
    made = colour28(half)
    assert made.shape == (1, 3, 28, 28)
    assert (made[0, 0] == made[0, 2]).all()
    assert made[0, 0, 5, 0] == 0
    assert made[0, 0, 5, 27] == 200
    assert (np.diff(made[0, 0, 5].astype(int)) >= 0).all()


def test_images_of_the_right_size_stay_as_they_are():
    x = raw.images(3, 28, 3)
    np.testing.assert_array_equal(colour28(x), np.moveaxis(x, 3, 1))
    np.testing.assert_array_equal(colour28(x[..., :1])[:, 2], x[..., 0])
