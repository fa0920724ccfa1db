"""Pictures of one patient on both sides of a division, told by how their files are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedbn.data._files import shown
from fedbn.data._picture_sets import PictureSet

_STEM = re.compile(r"(\D*\d[^ _.-]*)[ _.-]")
_FEWEST = 3
_SHOWN = 5


def stems_in_both(listing: Mapping[str, Sequence[PictureSet]]) -> str:
    """Point out stems (`p00` of `p00_1.png`) in both training and test; empty where there are none.

    Args:
        listing: The training and test pictures of each site.
    """
    texts = {site: _of_site(train, test) for site, (train, test, *_) in listing.items()}
    told = [f"{site} {text}" for site, text in texts.items() if text]
    if not told:
        return ""
    more = " ..." if len(told) > _SHOWN else ""
    return (
        "files that begin alike are in both train and test (beginnings in test: "
        f"{'; '.join(told[:_SHOWN])}{more}); if each is one patient, divide them by patient, into "
        "train/ and test/ below SITE"
    )


def _of_site(train: PictureSet, test: PictureSet) -> str:
    stems: dict[int, set[str]] = {}
    for part in (train, test):
        for file, label in zip(part.files, part.labels.tolist(), strict=True):
            stems.setdefault(label, set()).add(_stem(file))
    # Where a whole class begins alike, as in 046_0001.jpg, that numbers the class.
    numbers = {stem for found in stems.values() if len(found) == 1 for stem in found}
    counts = Counter(_stem(file) for part in (train, test) for file in part.files)
    several = {stem for stem, count in counts.items() if count > 1} - numbers
    if len(several) < _FEWEST or 2 * sum(counts[stem] for stem in several) < counts.total():
        return ""
    trained, tested = ({_stem(f): f for f in part.files} for part in (train, test))
    both = [stem for stem in tested if stem in several and stem in trained]
    if not both:
        return ""
    first, second = trained[both[0]].name, tested[both[0]].name
    return f"{len(both)} of {len(tested)}, as {shown(first)} and {shown(second)}"


def _stem(file: Path) -> str:
    """What a name begins with, up to the sign behind its first number; a file without is alone."""
    found = _STEM.match(file.stem)
    return found[1] if found else str(file)
