"""DomainNet's ten classes from small files."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedbn.datasets.pictures import DOMAINNET, INFO, domainnet
from fedbn.errors import DataError


@pytest.fixture
def archive(data_folder: Path) -> Path:
    root = data_folder / "domainnet"
    for number, domain in enumerate(DOMAINNET.domains):
        for label, name in enumerate((*DOMAINNET.classes, "The Eiffel Tower")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for index in range(14):
                picture = Image.new("L" if domain == "quickdraw" else "RGB", (5, 7), 20 * label)
                picture.save(folder / f"{domain}_{number:03}_{index:06}.png")
    return root


def test_six_clients_of_105_in_the_papers_order(archive):
    federation = domainnet(size=8)
    assert INFO["domainnet"].is_there()
    assert "".join(client.name[0] for client in federation.clients) == "cipqrs"
    assert federation.classes[3] == "ice_cream"
    for client in federation.clients:
        assert set(client.train.y.bincount().tolist()) == {10, 11}
        assert len(client.train) == 105
        assert len(client.tests[client.name]) == 28  # a fifth of 140, the tower left out


def test_all_images(archive):
    assert {len(c.train) for c in domainnet(size=8, per_client="all").clients} == {112}


def test_another_folder_can_be_given(archive, tmp_path, data_folder):
    archive.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="no such folder; expected the folders clipart, infograph"):
        domainnet()
    assert len(domainnet(path=str(tmp_path / "elsewhere"), size=8).clients) == 6
