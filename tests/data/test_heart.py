"""Heart disease in four hospitals, prepared as published."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import read_samples

from fedbn.core.findings import check_federation
from fedbn.datasets.heart import SITES, heart
from fedbn.errors import DataError
from fedbn.experiments.environment import facts_of
from heart_files import written

REAL = os.environ.get("FEDBN_DATA")


def test_incomplete_people_are_left_out_and_levels_become_columns(tmp_path: Path):
    federation = heart(str(written(tmp_path)), normalise=False)
    assert check_federation(federation) == []
    assert [client.name for client in federation.clients] == list(SITES)
    for client in federation.clients:
        test = client.tests[client.domain]
        assert (len(client.train), len(test)) == (13, 7)  # 66 and 34 of the 20 who are complete
        assert client.train.x.shape[1:] == (13,)
        levels = client.train.x[:, 8:]
        assert set(levels.unique().tolist()) == {0.0, 1.0}
        assert levels[:, :3].sum(dim=1).max() == levels[:, 3:].sum(dim=1).max() == 1
        assert client.train.y.shape == (13, 1)


def test_a_site_is_normalised_by_its_own_training_part(tmp_path: Path):
    for client in heart(str(written(tmp_path))).clients:
        assert client.train.x.mean(dim=0).abs().max() < 1e-5
        deviations = client.train.x.std(dim=0)
        assert ((deviations - 1).abs() < 1e-4).all()
        assert client.tests[client.domain].x.mean(dim=0).abs().max() > 1e-3


def test_further_patients_are_normalised_as_their_sites_were(tmp_path: Path):
    folder = str(written(tmp_path))
    made, raw = heart(folder), heart(folder, normalise=False)
    assert raw.preparation == {}
    for client, plain in zip(made.clients, raw.clients, strict=True):
        x = plain.tests[client.domain].x.numpy()
        np.savez(tmp_path / "new.npz", x=x)
        read = read_samples(tmp_path / "new.npz", facts_of(made), client=client.name)
        assert torch.allclose(read.x, client.tests[client.domain].x, atol=1e-4)
        assert read.notes == ()


def test_wrong_files_are_named(tmp_path: Path):
    with pytest.raises(DataError, match="no such folder"):
        heart(str(tmp_path / "nowhere"))
    folder = written(tmp_path)
    (folder / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match="14 columns a row"):
        heart(str(folder))
    (folder / "processed.va.data").write_text("1,two\n")
    with pytest.raises(DataError, match="not a table of numbers"):
        heart(str(folder))
    (folder / "processed.va.data").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        heart(str(folder))


def test_the_real_files_give_the_published_sizes():
    root = REAL
    if not root or not (Path(root) / "heart").is_dir():
        pytest.skip("FEDBN_DATA is not set, or has no heart: no real data to test on")
    sizes = [(len(c.train), len(c.tests[c.domain])) for c in heart(f"{root}/heart").clients]
    assert sizes == [(199, 104), (172, 89), (30, 16), (85, 45)]
