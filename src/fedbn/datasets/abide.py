"""ABIDE I, preprocessed: autism or not, from brain scans of four hospitals (section 5.2, D.4).

Each sample is one window of 32 frames of a subject's scan: the 5,995 correlations between 110
regions. Subjects, never their windows, are divided into train and test, so that nobody is in both;
`Split.groups` holds the subject of a window, so that subjects can be scored too.

The paper has 167, 52, 88 and 63 subjects of NYU, USM, UM and UCLA; which ones is unknown. Here all
subjects of these sites whose file is there are taken. Correlations are kept in the cache as float32
and mapped from there (1.6 GB for all four sites), so that several processes share one copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedbn.core.federation import Client, Federation, Split
from fedbn.data.benchmarks import Count, TestShare
from fedbn.data.image_folders import Division, check_folder
from fedbn.data.storage import Arrays, Info, cached, data_root, fingerprint
from fedbn.data.table_files import read_table
from fedbn.errors import DataError
from fedbn.text import shown

DROPPED = "#3455"
"""The one of 111 regions that is left out: 110 give the paper's 5,995 pairs."""


def read_series(file: Path) -> tuple[tuple[str, ...], Tensor]:
    """Read a `.1D` file: its regions, without the one that is dropped, and (frames, regions).

    The file is text: one line of region names, `#10` and so on, then one line a frame, both
    divided by tabs.
    """
    try:
        head, _, body = file.read_bytes().partition(b"\n")
        names = head.decode("ascii").split()
        values = np.array(body.split(), dtype=np.float64)
    except OSError as error:
        raise DataError(f"{shown(file)}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{shown(file)}: not a table of numbers ({error})") from error
    if not names or not all(name.startswith("#") for name in names):
        raise DataError(f"{shown(file)}: first line must name the regions, as #10 and so on")
    if len(values) % len(names):
        raise DataError(
            f"{shown(file)}: cut off: {len(values)} values are no whole rows of {len(names)}"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{shown(file)}: NaN or infinity among the values")
    keep = [number for number, name in enumerate(names) if name != DROPPED]
    series = torch.from_numpy(values.reshape(-1, len(names))[:, keep])
    return tuple(names[number] for number in keep), series


def correlations(series: Tensor, window: int, stride: int) -> Tensor:
    """Correlate all pairs of regions in each window of frames: the upper triangle, row by row.

    With z the centred frames of a region in a window, divided by their length, the correlation of
    two regions is z·z′. A region that is constant in a window has none: 0 is put there.

    Examples:
        >>> up = torch.arange(4.0)
        >>> correlations(torch.stack([up, -up, torch.ones(4)], dim=1), 3, 1).round(decimals=4)
        tensor([[-1.,  0.,  0.],
                [-1.,  0.,  0.]])
    """
    frames = series.double().unfold(0, window, stride)
    centred = frames - frames.mean(dim=2, keepdim=True)
    length = centred.norm(dim=2, keepdim=True)
    # Rounding leaves a constant region a length above 0: only equal frames tell.
    equal = frames.amax(dim=2, keepdim=True) == frames.amin(dim=2, keepdim=True)
    z = torch.where(equal | (length == 0), 0.0, centred / length).float()
    regions = series.shape[1]
    row, column = torch.triu_indices(regions, regions, offset=1)
    products = torch.bmm(z, z.transpose(1, 2)).flatten(1)
    return products.index_select(1, row * regions + column).clamp_(-1, 1)


SITES = {"NYU": "NYU", "USM": "USM", "UM": "UM_1", "UCLA": "UCLA_1"}
"""The clients in the paper's order, and what the phenotype table calls them."""
CLASSES = ("control", "autism")
_LABELS = {"1": 1, "2": 0}
_SUFFIX = "_rois_ho.1D"
_VERSION = 1
Subjects = list[tuple[Path, int]]


def abide(
    path: str | None = None,
    window: Annotated[int, Field(ge=3)] = 32,
    stride: Count = 1,
    test_share: TestShare = 0.2,
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
    folder = Path(path) if path else data_root() / "abide"
    clients = []
    for client, subjects in find_subjects(folder).items():
        labels = torch.tensor([label for _, label in subjects])
        train, test = (
            _split([subjects[i] for i in index.tolist()], window, stride)
            for index in Division(test_share, split_seed).places(labels, client)
        )
        clients.append(Client(client, client, train, {client: test}))
    return Federation("abide", tuple(clients), CLASSES)


def find_subjects(folder: Path) -> dict[str, Subjects]:
    """Find each client's series and labels, by file name."""
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
    if not (tables := sorted(folder.rglob("Phenotypic*.csv"))):
        raise DataError(f"{shown(folder)}: no Phenotypic*.csv, the table of labels")
    return tables[0]


def _phenotypes(folder: Path) -> dict[str, tuple[str, str]]:
    """Site and diagnosis (1 autism, 2 control) by FILE_ID."""
    table = read_table(phenotype_table(folder))
    subjects, sites, found = (
        table.column(name, "ABIDE's phenotypes") for name in ("FILE_ID", "SITE_ID", "DX_GROUP")
    )
    for subject, diagnosis in zip(subjects, found, strict=True):
        if diagnosis not in _LABELS:
            raise DataError(f"{table.where}: DX_GROUP {diagnosis!r} of {subject}: legal are 1, 2")
    return dict(zip(subjects, zip(sites, found, strict=True), strict=True))


def _split(subjects: Subjects, window: int, stride: int) -> Split:
    """Read subjects and correlate: all windows, subject by subject."""
    files = [file for file, _ in subjects]
    key = {"windows": _VERSION, "window": window, "stride": stride, "files": fingerprint(files)}

    def make() -> Arrays:
        read = [(file, *read_series(file)) for file in files]
        for file, names, series in read:
            if names != read[0][1]:
                raise DataError(f"{shown(file)}: other regions than {shown(files[0])}")
            if len(series) < window:
                raise DataError(f"{shown(file)}: {len(series)} frames, but data.window = {window}")
        counts = [1 + (len(series) - window) // stride for _, _, series in read]
        regions = len(read[0][1])
        x = torch.empty(sum(counts), regions * (regions - 1) // 2)
        for part, (_, _, series) in zip(x.split(counts), read, strict=True):
            part.copy_(correlations(series, window, stride))
        return {"x": x.numpy(), "counts": np.array(counts)}

    made = cached("abide", key, make)
    counts = torch.from_numpy(np.array(made["counts"]))
    labels = torch.tensor([label for _, label in subjects]).repeat_interleave(counts)
    groups = torch.arange(len(subjects)).repeat_interleave(counts)
    names = tuple(files[at].name.removesuffix(_SUFFIX) for at in groups.tolist())
    return Split(torch.from_numpy(made["x"]), labels, groups=groups, files=names)


def _places(folder: Path) -> dict[Path, Path]:
    """Recognise the series of the four sites and the phenotype table, at any depth."""
    files = [file for subjects in find_subjects(folder).values() for file, _ in subjects]
    files.append(phenotype_table(folder))
    return {file: Path("abide", file.relative_to(folder)) for file in files}


INFO = {
    "abide": Info(
        title="ABIDE I: autism or not, from resting-state scans of four hospitals",
        clients="4 of 172, 67, 86 and 64 subjects",
        classes=2,
        shape="5995",
        source="ABIDE preprocessed, CPAC filt_noglobal rois_ho; copies by hand",
        licence="unrestricted non-commercial research",
        by_hand="the series *_rois_ho.1D (pipeline cpac, strategy filt_noglobal) and the phenotype "
        "table from http://preprocessed-connectomes-project.org/abide/download.html",
        files=("abide/**/*_rois_ho.1D", "abide/**/Phenotypic*.csv"),
        places=_places,
    )
}
