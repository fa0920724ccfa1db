"""The recipe for DICOM and NIfTI in the documentation, run where their readers are installed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedbn

pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed")
nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def write_dicom(file, pixels):
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    scan = FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
    scan.SOPClassUID, scan.SOPInstanceUID = meta[0x00020002].value, meta[0x00020003].value
    scan.Rows, scan.Columns = pixels.shape
    scan.SamplesPerPixel, scan.PhotometricInterpretation = 1, "MONOCHROME2"
    scan.BitsAllocated, scan.BitsStored, scan.HighBit, scan.PixelRepresentation = 16, 12, 11, 0
    scan.PixelData = pixels.astype(np.uint16).tobytes()
    scan.save_as(file, enforce_file_format=True)


def write_nifti(file, pixels):
    nibabel.save(nibabel.Nifti1Image(pixels.astype(np.float32), np.eye(4)), file)


def test_the_recipe_for_scans_trains(tmp_path):
    code = re.search(r"```python\n(# scans\.py\n.*?)```", PAGE.read_text(), re.DOTALL)[1]
    names: dict[str, object] = {}
    exec(compile(code, "scans.py", "exec"), names)
    draws = np.random.default_rng(0)
    sites = {}
    for site, write, end in (("ct", write_dicom, ".dcm"), ("mr", write_nifti, ".nii.gz")):
        files = [tmp_path / f"{site}-{n}{end}" for n in range(12)]
        for file in files:
            write(file, draws.integers(0, 4096, (16, 16)))
        sites[site] = names["Scans"](files, [n % 2 for n in range(12)])
    result = fedbn.fit(sites, rounds=1, notes=lambda text: None)
    assert sorted(result.models) == ["ct", "mr"]
    assert result.plan.federation.input_shape == (1, 16, 16)
