"""Your own pictures with masks, for segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbn.core.federation import Federation
from fedbn.data.benchmarks import TestShare
from fedbn.data.image_folders import of_one_type
from fedbn.data.images import DEPTH, PictureDepth, PictureSide, choose_size
from fedbn.data.masks import (
    MASK_LAYOUT,
    MaskReader,
    find_masked,
    mask_values,
    read_masks,
)
from fedbn.data.storage import Info
from fedbn.errors import ConfigError, DataError

INFO = {
    "masks": Info(
        title="Your own pictures with masks: SITE/images/*, SITE/masks/*",
        clients="one a folder",
        classes=0,
        shape="3×size×size",
        source="data.path",
        licence="yours",
    )
}


def masks(
    path: str | None = None,
    size: PictureSide | None = None,
    classes: Sequence[str] = (),
    values: Sequence[int] = (),
    group: str | None = None,
    test_share: TestShare = 0.2,
    split_seed: int = 0,
    depth: PictureDepth | None = None,
) -> Federation:
    """Read a folder of sites, each with pictures and a mask of the same name for every picture.

    Args:
        path: The folder of sites.
        size: Side in pixels; chosen as for `folders` unless given.
        classes: Names for the values of masks, the smallest first; the values themselves unless
            given. The first is the background.
        values: The legal values of masks; those that occur unless given.
        group: A pattern whose first bracket finds, in a file's name, whom the picture belongs to
            (`(.*)[LR]$` for both eyes of one child): pictures of one are never divided.
        test_share: The part of each site held out for testing.
        split_seed: Decides which pictures these are.
        depth: The largest value of 16-bit pictures; see `folders`.
    """
    if path is None:
        raise ConfigError(f"data.path is needed for data 'masks': {MASK_LAYOUT}")
    found = find_masked(Path(path))
    parts = [part for own in found.values() for part in own]
    files = [file for part in parts for file in part.pictures]
    side, remark = choose_size(files) if size is None else (size, "")
    reader = MaskReader((side, side), DEPTH if depth is None else depth, group)
    known = sorted(values)
    if not known:
        read = {
            m: v for p in parts for m, v in zip(p.masks, read_masks(p, reader.size), strict=True)
        }
        known = mask_values(read)
    if classes and len(classes) != len(known):
        raise DataError(f"data.classes: {len(classes)} names, but masks have the values {known}")
    clients = of_one_type(
        [
            reader.client(name, [reader.split(part, known) for part in own], test_share, split_seed)
            for name, own in found.items()
        ]
    )
    told: dict[str, object] = {"masks": known}
    if clients[0].train.dtype.is_floating_point:
        told["depth"] = reader.depth
    return Federation(
        Path(path).resolve().name or "masks",
        clients,
        tuple(classes) or tuple(map(str, known)),
        (remark,) if remark else (),
        told,
    )
