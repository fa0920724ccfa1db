from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import raw_digits as raw
import torch
from loading import loaded
from PIL import Image

from fedbn.core.findings import check_federation
from fedbn.data import digit_domains
from fedbn.data.digit_domains import blended, photograph_files, read_photograph
from fedbn.data.digit_files import DIGIT_DOMAINS
from fedbn.datasets.digits import INFO, Percent, _cuts, digits
from fedbn.errors import ConfigError, DataError

PAPER_SIZES = (74, 371, 743, 1487, 2975, 4462, 7438)


@pytest.fixture
def prepared(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four small domains as npz; SynthDigits is rendered."""
    monkeypatch.setattr(digit_domains, "_RENDERED_TEST", 20)
    raw.write_prepared(data_folder / "digits", train=60, test=20)
    return data_folder / "digits"


def photographs(folder: Path, value: int = 100) -> Path:
    folder.mkdir()
    Image.new("RGB", (40, 50), (value, value, value)).save(folder / "a photo.png")
    (folder / "notes.txt").write_text("not a photograph")
    return folder


def test_five_clients_in_the_order_of_the_paper(prepared: Path):
    federation = digits(rendered=60)
    assert [client.name for client in federation.clients] == list(DIGIT_DOMAINS)
    assert [client.domain for client in federation.clients] == list(DIGIT_DOMAINS)
    # A tenth of the 60 training samples that the smallest domain has.
    assert [len(client.train) for client in federation.clients] == [6] * 5
    assert all(len(client.tests[client.domain]) == 20 for client in federation.clients)
    assert federation.input_shape == (3, 28, 28)
    assert federation.classes == tuple("0123456789")
    assert all(client.train.x.dtype == torch.uint8 for client in federation.clients)
    check_federation(federation)


def test_npz_samples_are_taken_in_order_and_in_the_range_of_the_paper(prepared: Path):
    (client,) = digits(domains=["mnist"], percent=100).clients
    content = np.load(prepared / "mnist.npz")
    x, y = client.train.batch(slice(None))
    expected = content["train_images"][:, None].repeat(3, axis=1) / 127.5 - 1
    torch.testing.assert_close(x, torch.from_numpy(expected).float())
    assert y.tolist() == content["train_labels"].tolist()


def test_what_is_rendered_says_so(prepared: Path):
    remarks = digits(rendered=60).remarks
    assert any("synthdigits is rendered from" in r and "not Ganin's" in r for r in remarks)
    assert any("truncated to 60 samples" in r for r in remarks)
    assert digits(rendered=60).stand_ins == ("synthdigits",)
    assert digits(domains=["svhn", "mnist"]).stand_ins == ()


def test_sizes_take_the_place_of_a_share(prepared: Path):
    federation = digits(domains=["svhn", "mnist"], equalize=False, sizes=[50, 7])
    assert [len(client.train) for client in federation.clients] == [50, 7]
    whole = digits(domains=["mnist"], percent=100).clients[0].train
    assert torch.equal(federation.clients[1].train.x, whole.x[:7])
    with pytest.raises(ConfigError, match="svhn has 60 training samples; legal are 2 to 60"):
        digits(domains=["svhn", "mnist"], sizes=[61, 7])


def test_original_synth_digits_are_preferred(prepared: Path):
    part = (raw.images(60, 32, 3), raw.labels(60))
    raw.write_mat(prepared / "synth_train_32x32.mat", *part)
    raw.write_mat(prepared / "synth_test_32x32.mat", *part)
    federation = digits(domains=["synthdigits", "mnist"])
    assert not any("rendered" in remark for remark in federation.remarks)
    # Pooled 120, of which a fifth is for testing.
    assert len(federation.clients[0].tests["synthdigits"]) == 24
    chosen = digits(domains=["synthdigits"], synth="rendered", rendered=60)
    assert "rendered" in chosen.remarks[0]


def test_asked_for_originals_that_are_not_there(prepared: Path):
    with pytest.raises(
        DataError, match=r"no synthdigits: expected synthdigits\.npz, or synth_train"
    ):
        digits(synth="original")


def test_percent_gives_the_sizes_of_the_paper(data_folder: Path):
    full = (np.zeros((7438, 28, 28), np.uint8), raw.labels(7438))
    raw.write_npz(data_folder / "digits" / "mnist.npz", full, (full[0][:10], full[1][:10]))
    sizes = []
    for percent in get_args(Percent):
        federation = digits(domains=["mnist"], percent=percent)
        sizes.append(len(federation.clients[0].train))
        assert federation.remarks == ()
    assert tuple(sizes) == PAPER_SIZES


def test_ten_clients_have_the_ten_parts_in_order(data_folder: Path):
    full = (np.zeros((7438, 28, 28), np.uint8), raw.labels(7438))
    full[0][:, 0, 0] = np.arange(7438) // 743
    raw.write_npz(data_folder / "digits" / "mnist.npz", full, (full[0][:10], full[1][:10]))
    clients = digits(domains=["mnist"], clients_per_domain=10).clients
    assert [client.name for client in clients] == [f"mnist-{part}" for part in range(1, 11)]
    assert {client.domain for client in clients} == {"mnist"}
    for part, client in enumerate(clients):
        assert client.train.x.shape == (743, 3, 28, 28)
        assert set(client.train.x[:, 0, 0, 0].tolist()) == {part}
        assert client.tests["mnist"] is clients[0].tests["mnist"]
    # Fewer clients have the same parts, and one client has the first.
    fewer = digits(domains=["mnist"], clients_per_domain=2).clients
    assert torch.equal(fewer[1].train.x, clients[1].train.x)
    assert torch.equal(digits(domains=["mnist"]).clients[0].train.x, clients[0].train.x)


def test_pooled_files_are_divided_as_in_the_paper(data_folder: Path):
    # USPS has 7,291 + 2,007 = 9,298 samples: a fifth, 1,860, for testing and 7,438 for training.
    pytest.importorskip("h5py")
    y = np.random.default_rng(0).integers(0, 10, 9298)
    raw.write_usps_hdf5(data_folder / "digits" / "usps.h5", raw.images(9298, 16), y, 2007)
    clients = digits(domains=["usps"], clients_per_domain=10).clients
    test = clients[0].tests["usps"]
    assert len(test) == 1860
    assert sum(len(client.train) for client in clients) == 7430
    shares = np.bincount(y) / len(y)
    for split in (test, *(client.train for client in clients)):
        counts = split.y.bincount().numpy()
        # Every part has the same label distribution.
        assert np.abs(counts - shares * len(split)).max() <= 1.5


def test_the_seed_decides_the_division_and_test_samples_are_never_trained_on(data_folder: Path):
    x = np.zeros((200, 28, 28), np.uint8)
    x[:, 0, 0] = np.arange(200)
    raw.write_mnist(data_folder / "digits", x, raw.labels(200), 50)

    def numbers(seed: int) -> tuple[list[int], list[int]]:
        (client,) = digits(domains=["mnist"], percent=100, seed=seed).clients
        test = client.tests["mnist"]
        return client.train.x[:, 0, 0, 0].tolist(), test.x[:, 0, 0, 0].tolist()

    train, test = numbers(0)
    assert sorted(train + test) == list(range(200))
    assert len(test) == 40
    assert numbers(0) == (train, test)
    assert numbers(1) != (train, test)


def test_original_sizes_are_cut_in_whole_tenths_as_in_the_appendix():
    # The tables of appendix E.5: four fifths of 99,289, 9,298, 488,953 and 70,000 samples.
    tenths = {79431: 7943, 7438: 743, 391162: 39116, 56000: 5600}
    for size, tenth in tenths.items():
        assert _cuts(size, 10, 1, whole=True) == [slice(0, tenth)]
        assert _cuts(size, 100, 1, whole=True) == [slice(0, 10 * tenth)]


def test_without_equalizing_each_domain_keeps_its_size(data_folder: Path):
    folder = data_folder / "digits"
    raw.write_mnist(folder, raw.images(200, 28), raw.labels(200), 50)
    raw.write_prepared(folder / "others", train=60, test=20)
    (folder / "others" / "svhn.npz").rename(folder / "svhn.npz")
    federation = digits(domains=["svhn", "mnist"], equalize=False, percent=100)
    assert [len(client.train) for client in federation.clients] == [60, 160]
    assert federation.remarks == ("svhn has the training samples of svhn.npz, not all originals",)
    equal = digits(domains=["svhn", "mnist"], percent=100)
    assert [len(client.train) for client in equal.clients] == [60, 60]


def test_twins_on_both_sides_of_a_split_are_said(prepared: Path, monkeypatch: pytest.MonkeyPatch):
    assert not any("twin" in remark for remark in digits().remarks)  # divided already, elsewhere
    monkeypatch.setattr("fedbn.data.digit_domains.twins", lambda: True)
    size = sum(len(c.train) for c in digits().clients if c.domain == "mnist")
    said = f"about {size / 70_000:.0%} of its test digits have their twin in mnist's training data"
    assert any(said in remark for remark in digits().remarks)
    assert not any("twin" in remark for remark in digits(domains=["svhn", "mnist"]).remarks)


def test_domains_can_be_held_out_and_reordered(prepared: Path):
    clients = digits(domains=["mnist", "svhn"]).clients
    assert [client.name for client in clients] == ["mnist", "svhn"]


def test_the_test_set_can_be_limited(prepared: Path):
    assert len(digits(domains=["mnist"], test_limit=7).clients[0].tests["mnist"]) == 7


def test_the_second_time_comes_from_the_cache(prepared: Path):
    first = digits(domains=["mnist"])
    assert list((prepared.parent / ".cache" / "digits").iterdir())
    assert digits(domains=["mnist"]).fingerprint() == first.fingerprint()


def test_a_changed_file_is_read_again(prepared: Path):
    first = digits(domains=["mnist"]).fingerprint()
    part = (raw.images(70, 28, seed=5), raw.labels(70))
    raw.write_npz(prepared / "mnist.npz", part, part)
    assert digits(domains=["mnist"]).fingerprint() != first


def test_mnist_m_is_made_from_mnist_and_photographs(prepared: Path, tmp_path: Path):
    folder = photographs(tmp_path / "photographs", value=100)
    federation = digits(
        domains=["mnist_m", "mnist"], mnist_m="made", photographs=str(folder), percent=100
    )
    made, mnist = (client.train for client in federation.clients)
    assert any("mnist_m is made from MNIST and 1 photograph" in r for r in federation.remarks)
    # |100 − digit| of the same originals, in another order.
    expected = (mnist.x.int() - 100).abs()
    assert not torch.equal(made.x.int(), expected)
    key = [sorted(x.flatten(1).int().sum(1).tolist()) for x in (made.x, expected)]
    assert key[0] == key[1]
    assert sorted(made.y.tolist()) == sorted(mnist.y.tolist())


def test_mnist_m_is_made_where_the_original_is_missing(prepared: Path):
    (prepared / "mnist_m.npz").unlink()
    assert not INFO["digits"].is_there()
    with pytest.raises(DataError, match=r"no mnist_m: expected mnist_m\.npz.*data\.photographs"):
        digits(domains=["mnist_m"])
    photographs(prepared / "photographs")
    assert INFO["digits"].is_there()
    assert "made from MNIST" in digits(domains=["mnist_m"]).remarks[0]


def test_patches_come_from_all_over_the_photograph():
    photograph = np.arange(40, dtype=np.uint8)[:, None, None].repeat(30, 1).repeat(3, 2)
    digit = np.zeros((200, 28, 28), np.uint8)
    patches = blended(digit, [photograph], np.random.default_rng(0))
    assert set(patches[:, 0, 0, 0]) == set(range(13))


def test_photographs_that_will_not_do(tmp_path: Path):
    with pytest.raises(DataError, match="no such folder of photographs"):
        photograph_files(tmp_path / "absent")
    with pytest.raises(DataError, match="no photograph; legal are"):
        photograph_files(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"no")
    with pytest.raises(DataError, match=r"a\.jpg: not a picture"):
        read_photograph(tmp_path / "a.jpg")
    Image.new("L", (27, 100)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"b\.png: 27×100 pixels.*at least 28×28"):
        read_photograph(tmp_path / "b.png")


def test_large_and_grey_photographs_are_brought_down(tmp_path: Path):
    Image.new("L", (2000, 1000), 7).save(tmp_path / "large.jpg")
    pixels = read_photograph(tmp_path / "large.jpg")
    assert max(pixels.shape) == 512
    assert pixels.shape[2] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"percent": 7}, r"data\.percent = 7: input should be 1, 5, 10, 20, 40, 60 or 100"),
        ({"clients_per_domain": 0}, r"data\.clients_per_domain = 0: input should be greater"),
        ({"clients_per_domain": 11}, "11: input should be less than or equal to 10"),
        ({"clients_per_domain": 2, "percent": 20}, "set percent to 10"),
        ({"domains": ["mnst"]}, "did you mean 'mnist'"),
        ({"domains": []}, "legal are one or more of svhn"),
        ({"domains": ["mnist", "mnist"]}, "each once"),
        (
            {"synth": "drawn"},
            r"data\.synth = 'drawn': input should be 'auto', 'original' or 'rendered'",
        ),
        ({"mnist_m": "rendered"}, r"data\.mnist_m = 'rendered': input should be 'auto'"),
        ({"test_limit": 0}, r"data\.test_limit = 0: input should be greater than or equal to 1"),
        ({"rendered": 0}, r"data\.rendered = 0: input should be greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused(prepared: Path, options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        loaded("digits", **options)


def test_missing_files_are_named(data_folder: Path):
    assert not INFO["digits"].is_there()
    with pytest.raises(
        DataError, match=r"digits: no svhn: expected svhn\.npz, or train_32x32\.mat"
    ):
        digits()


def test_on_the_real_files(real_data: Path):
    assert INFO["digits"].is_there()
    federation = digits(domains=["svhn", "usps", "mnist_m", "mnist"], clients_per_domain=10)
    assert [len(client.train) for client in federation.clients] == [743] * 40
    assert len(federation.clients[10].tests["usps"]) == 1860
    assert check_federation(federation) == []


def test_every_sample_knows_its_number_in_the_original_files(data_folder: Path):
    images = raw.images(300, 28, seed=4)
    digit = raw.labels(300)
    folder = data_folder / "digits"
    folder.mkdir()
    parts = [images[:200], digit[:200], images[200:], digit[200:]]
    for name, array in zip(raw.IDX_NAMES, parts, strict=True):
        (folder / name).write_bytes(raw.idx_bytes(array.astype(np.uint8)))
    photographs(folder / "photographs", value=0)
    federation = digits(domains=["mnist", "mnist_m"], clients_per_domain=3, test_limit=9)
    for client in federation.clients:
        for split in client.splits:
            assert split.origin is not None
            rows = split.origin.rows
            assert split.y.tolist() == digit[rows].tolist()
            assert np.array_equal(split.x[:, 0].numpy(), images[rows])
