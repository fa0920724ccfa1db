"""ABIDE from small files in the bytes of the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from loading import loaded

from fedbn.core.findings import check_federation
from fedbn.datasets.abide import INFO, SITES, abide, correlations, read_series
from fedbn.errors import ConfigError, DataError
from fedbn.experiments.splits import part as describe

REGIONS = ("#10", "#11", "#2001", "#3455", "#3501")
HEADER = ",Unnamed: 0,SUB_ID,X,subject,SITE_ID,FILE_ID,DX_GROUP,DSM_IV_TR,AGE_AT_SCAN"


def one_d(series: np.ndarray, names: tuple[str, ...] = REGIONS) -> bytes:
    """The bytes of a .1D file: tabs, lines ended by CR LF, six decimals with zeros left out."""
    lines = ["\t".join(names)]
    lines += ["\t".join(str(round(float(v), 6)) for v in frame) for frame in series]
    return "".join(line + "\r\n" for line in lines).encode()


@pytest.fixture
def study(data_folder: Path) -> Path:
    """Ten subjects a site, half of them with autism, of 40 to 44 frames."""
    root = data_folder / "abide"
    (root / "rois_ho").mkdir(parents=True)
    draws = np.random.default_rng(0)
    rows = [HEADER, "0,1,50002,1,50002,PITT,no_filename,1,1,16.77"]
    for number, site in enumerate((*SITES.values(), "UM_2")):
        for index in range(10):
            subject = f"{site}_00{50000 + 100 * number + index}"
            series = draws.normal(0, 20, (40 + index % 5, len(REGIONS)))
            if index == 0:
                series[:, 1] = 372.383102  # a region that never changes
            (root / "rois_ho" / f"{subject}_rois_ho.1D").write_bytes(one_d(series))
            rows.append(f"{len(rows)},1,1,1,1,{site},{subject},{1 + index % 2},1,20.5")
    table = root / "Phenotypic_V1_0b_preprocessed1.csv"
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root


def test_correlations_are_those_of_numpy():
    series = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) + 300
    found = correlations(series, 32, 1)
    assert found.dtype == torch.float32
    assert found.shape == (19, 15)
    for start in (0, 7, 18):
        matrix = np.corrcoef(series[start : start + 32].double().numpy().T)
        expected = matrix[np.triu_indices(6, 1)]
        assert np.allclose(found[start].numpy(), expected, atol=1e-6)


def test_a_region_constant_in_a_window_gives_zero():
    series = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    series[:35, 1] = 0.1  # not exact in binary: its mean is not quite itself
    found = correlations(series, 32, 1)
    assert bool(torch.isfinite(found).all())
    assert bool((found[:4, [0, 2]] == 0).all())  # pairs (0, 1) and (1, 2)
    assert bool((found[4:, [0, 2]] != 0).all())
    assert bool((found[:, 1] != 0).all())


def test_stride_and_the_full_size():
    series = torch.randn(44, 110)
    assert correlations(series, 32, 1).shape == (13, 5995)
    assert torch.equal(correlations(series, 32, 5), correlations(series, 32, 1)[::5])


def test_the_extra_region_is_dropped_by_name(tmp_path):
    file = tmp_path / "a.1D"
    file.write_bytes(one_d(np.arange(10.0).reshape(2, 5)))
    names, series = read_series(file)
    assert names == ("#10", "#11", "#2001", "#3501")
    assert series.tolist() == [[0, 1, 2, 4], [5, 6, 7, 9]]


def test_sites_in_the_papers_order_and_no_subject_in_both_parts(study):
    federation = abide()
    assert INFO["abide"].is_there()
    assert [client.name for client in federation.clients] == ["NYU", "USM", "UM", "UCLA"]
    assert federation.classes == ("control", "autism")
    assert federation.input_shape == (6,)  # four regions
    for client in federation.clients:
        test = client.tests[client.name]
        assert client.train.groups.unique().tolist() == list(range(8))
        assert test.groups.unique().tolist() == [0, 1]
        # 40 to 44 frames give 9 to 13 windows; ten subjects give 2·(9 + ... + 13) = 110.
        assert len(client.train) + len(test) == 110
        for part, autism in ((client.train, 4), (test, 1)):
            by_subject = {
                g: part.y[part.groups == g].unique().tolist() for g in part.groups.tolist()
            }
            assert all(len(labels) == 1 for labels in by_subject.values())
            assert sum(labels == [1] for labels in by_subject.values()) == autism
        shared = {row.tobytes() for row in client.train.x.numpy()} & {
            row.tobytes() for row in test.x.numpy()
        }
        assert not shared
    assert check_federation(federation) == []


def test_the_cache_and_the_seed(study, data_folder):
    first = abide().fingerprint()
    assert len(list((data_folder / ".cache" / "abide").iterdir())) == 8
    assert abide().fingerprint() == first
    assert abide(split_seed=1).fingerprint() != first
    assert abide(stride=2).clients[0].train.x.shape[0] < abide().clients[0].train.x.shape[0]


def spoil(study: Path, content: bytes) -> None:
    (study / "rois_ho" / "UM_1_0050203_rois_ho.1D").write_bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "first line must name the regions"),
        (b"1 2 3\r\n4 5 6\r\n", "first line must name the regions"),
        (one_d(np.zeros((40, 5)))[:-9], "cut off: 1.. values are no whole rows of 5"),
        (one_d(np.zeros((40, 5))) + b"1\t2\tx\t4\t5\r\n", "not a table of numbers"),
        (one_d(np.full((40, 5), np.nan)), "NaN or infinity"),
        (one_d(np.zeros((20, 5))), "20 frames, but data.window = 32"),
        (one_d(np.zeros((40, 2)), ("#1", "#2")), "other regions than"),
    ],
)
def test_faults_of_a_series_are_named(study, content, message):
    spoil(study, content)
    with pytest.raises(DataError, match=message) as caught:
        abide()
    assert "UM_1_0050203_rois_ho.1D" in str(caught.value)


def test_faults_of_the_table_are_named(study):
    table = next(study.glob("*.csv"))
    text = table.read_text()
    table.write_text(text.replace("NYU_0050003,2", "NYU_0050003,7"))
    with pytest.raises(DataError, match="DX_GROUP '7' of NYU_0050003: legal are 1, 2"):
        abide()
    table.write_text(text.replace("NYU_0050003", "gone"))
    with pytest.raises(DataError, match="no FILE_ID 'NYU_0050003'"):
        abide()
    table.write_text(text.replace("DX_GROUP", "DX"))
    with pytest.raises(DataError, match="no column 'DX_GROUP'"):
        abide()
    table.unlink()
    with pytest.raises(DataError, match="no Phenotypic"):
        abide()


def test_a_missing_site_and_wrong_options(study):
    for file in study.rglob("USM_*"):
        file.unlink()
    with pytest.raises(DataError, match="of both labels of site USM"):
        abide()
    with pytest.raises(ConfigError, match=r"data\.window = 1: input .* greater than or equal to 3"):
        loaded("abide", window=1)
    with pytest.raises(ConfigError, match=r"data\.stride = 0: input .* greater than or equal to 1"):
        loaded("abide", stride=0)


@pytest.mark.slow
def test_the_real_scans(real_data):
    federation = abide(stride=20)
    subjects = {
        c.name: int(c.train.groups.max() + c.tests[c.name].groups.max()) + 2
        for c in federation.clients
    }
    assert subjects == {"NYU": 172, "USM": 67, "UM": 86, "UCLA": 64}
    assert federation.input_shape == (5995,)


def test_windows_know_their_subjects(study):
    for client in abide().clients:
        named = [describe(split)["files"] for split in client.splits]
        assert sorted(map(len, named)) == [2, 8]
        assert len({name for names in named for name in names}) == 10
        assert all(name.startswith(f"{SITES[client.name]}_00") for names in named for name in names)
        for split, names in zip(client.splits, named, strict=True):
            assert [*dict.fromkeys(split.files)] == names
            assert len(split.files) == len(split)
