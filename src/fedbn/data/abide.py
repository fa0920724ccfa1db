"""ABIDE I, preprocessed: autism or not, from brain scans of four hospitals (section 5.2, appendix).

Each sample is one window of 32 frames of a subject's scan: the 5,995 correlations between 110
regions. Subjects, never their windows, are divided into train and test, so that nobody is in both;
`Split.groups` holds the subject of a window, so that subjects can be scored too.

The paper has 167, 52, 88 and 63 subjects of NYU, USM, UM and UCLA; which ones is unknown. Here all
subjects of these sites whose file is there are taken.

Correlations are kept in the cache as float32 and mapped from there (1.6 GB for all four sites):
no process holds them in memory of its own, and several share one copy.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from fedbn.core.federation import Client, Federation, Split
from fedbn.core.randomness import generator
from fedbn.core.splits import stratified
from fedbn.data._abide_windows import read_windows
from fedbn.data._cache import cached, fingerprint
from fedbn.data._files import shown
from fedbn.data._info import Info, data_root
from fedbn.data._picture_sets import check_folder, check_share
from fedbn.errors import ConfigError, DataError


class _AbideInfo(Info):
    def places(self, folder: Path) -> dict[Path, Path]:
        """Recognise the series of the four sites and the phenotype table, at any depth."""
        files = [file for subjects in find_subjects(folder).values() for file, _ in subjects]
        files.append(phenotype_table(folder))
        return {file: Path("abide", file.relative_to(folder)) for file in files}


INFO = {
    "abide": _AbideInfo(
        title="ABIDE I: autism or not, from resting-state scans of four hospitals",
        clients="4 of 172, 67, 86 and 64 subjects",
        classes=2,
        shape="5995",
        source="ABIDE preprocessed, CPAC filt_noglobal rois_ho; copies by hand",
        licence="unrestricted non-commercial research",
        files=("abide/**/*_rois_ho.1D", "abide/**/Phenotypic*.csv"),
    )
}

SITES = {"NYU": "NYU", "USM": "USM", "UM": "UM_1", "UCLA": "UCLA_1"}
"""The clients in the paper's order, and what the phenotype table calls them."""

CLASSES = ("control", "autism")
_LABELS = {"1": 1, "2": 0}
_SUFFIX = "_rois_ho.1D"
_VERSION = 1

Subjects = list[tuple[Path, int]]


def abide(
    path: str | None = None,
    window: int = 32,
    stride: int = 1,
    test_share: float = 0.2,
    split_seed: int = 0,
) -> Federation:
    """Read the four sites, one a client.

    Args:
        path: The folder of the series and the phenotype table, at any depth; `abide` below the
            data root unless given.
        window: Frames a window.
        stride: Frames from one window to the next.
        test_share: The part of each site's subjects held out for testing, stratified by label.
        split_seed: Decides which subjects these are.
    """
    check_share(test_share)
    if window < 3 or stride < 1:
        raise ConfigError(
            f"data.window = {window}, data.stride = {stride}: legal are 3 and more, 1 and more"
        )
    folder = Path(path) if path else data_root() / "abide"
    clients = []
    for client, subjects in find_subjects(folder).items():
        labels = torch.tensor([label for _, label in subjects])
        draws = generator(split_seed, "test split", client=client)
        train, test = (
            _split([subjects[i] for i in index.tolist()], window, stride)
            for index in stratified(labels, test_share, draws)
        )
        clients.append(Client(client, client, train, {client: test}))
    return Federation("abide", tuple(clients), CLASSES)


def find_subjects(folder: Path) -> dict[str, Subjects]:
    """Find each client's series and labels, by file name.

    Raises:
        DataError: Where the table or a site is missing, or a series is not in the table.
    """
    check_folder(folder, f"*{_SUFFIX} and Phenotypic*.csv, at any depth")
    found: dict[str, Subjects] = {client: [] for client in SITES}
    clients = {site: client for client, site in SITES.items()}
    phenotypes = _phenotypes(folder)
    for file in sorted(folder.rglob(f"*{_SUFFIX}"), key=lambda file: file.name):
        subject = file.name.removesuffix(_SUFFIX)
        if subject not in phenotypes:
            raise DataError(f"{shown(file)}: no FILE_ID {subject!r} in the phenotype table")
        site, diagnosis = phenotypes[subject]
        if site in clients:
            found[clients[site]].append((file, _LABELS[diagnosis]))
    for client, subjects in found.items():
        if len({label for _, label in subjects}) < 2:
            raise DataError(f"{shown(folder)}: no *{_SUFFIX} of both labels of site {client}")
    return found


def phenotype_table(folder: Path) -> Path:
    """Find the table of labels, at any depth."""
    tables = sorted(folder.rglob("Phenotypic*.csv"))
    if not tables:
        raise DataError(f"{shown(folder)}: no Phenotypic*.csv, the table of labels")
    return tables[0]


def _phenotypes(folder: Path) -> dict[str, tuple[str, str]]:
    """Site and diagnosis (1 autism, 2 control) by FILE_ID."""
    table = phenotype_table(folder)
    with table.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        for name in ("FILE_ID", "SITE_ID", "DX_GROUP"):
            if name not in (rows.fieldnames or ()):
                raise DataError(f"{shown(table)}: no column {name}")
        known = {row["FILE_ID"]: (row["SITE_ID"], row["DX_GROUP"]) for row in rows}
    for subject, (_, diagnosis) in known.items():
        if diagnosis not in _LABELS:
            raise DataError(f"{shown(table)}: DX_GROUP {diagnosis!r} of {subject}: legal are 1, 2")
    return known


def _split(subjects: Subjects, window: int, stride: int) -> Split:
    files = [file for file, _ in subjects]
    depends_on = {
        "windows": _VERSION,
        "window": window,
        "stride": stride,
        "files": fingerprint(files),
    }

    def make() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        x, counts = read_windows(files, window, stride)
        return {"x": x.numpy(), "counts": np.array(counts)}

    made = cached("abide", depends_on, make)
    counts = torch.from_numpy(np.array(made["counts"]))
    labels = torch.tensor([label for _, label in subjects]).repeat_interleave(counts)
    groups = torch.arange(len(subjects)).repeat_interleave(counts)
    return Split(torch.from_numpy(made["x"]), labels, groups=groups)
