"""Samples that a model has seen before, in training or when a site was adapted.

A score on such samples says nothing about new ones. A sample is recognised by its content, so a
copy under another path or in another order is recognised, too. Labels play no part: leaving out
only those samples whose label is the same would distort the score of the others.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedbn.core.federation import AnySplit, Split, scaled
from fedbn.core.state import entries
from fedbn.errors import DamagedRun, DataError, FedbnError, GivenInPython, reason
from fedbn.text import counted, listed
from fedbn.trained.trained_run import Trained

Where = Literal["training", "adaptation", ""]
_BYTES = 8  # of a hash: a chance of 1e-7 for a mistake among a million samples
_CHUNK = 256


def hashes_of(x: Tensor) -> list[bytes]:
    """Return one short hash per sample, of its values as a model gets them.

    Examples:
        >>> import torch
        >>> one, other = torch.zeros(2, 3), torch.tensor([[0.0, -0.0, 0.0], [1.0, 0.0, 0.0]])
        >>> hashes_of(one)[0] == hashes_of(other)[0], hashes_of(one)[1] == hashes_of(other)[1]
        (True, False)
    """
    rows = (scaled(x.cpu()).float() + 0.0).flatten(1).contiguous().numpy()  # −0 becomes 0
    return [hashlib.blake2b(row.tobytes(), digest_size=_BYTES).digest() for row in rows]


def hashes_of_split(split: AnySplit) -> set[bytes]:
    """Return the hashes of all samples of a split, reading a few at a time."""
    found: set[bytes] = set()
    for begin in range(0, len(split), _CHUNK):
        found.update(hashes_of(split.raw(slice(begin, begin + _CHUNK))[0]))
    return found


def packed(hashes: Iterable[bytes]) -> str:
    """Return hashes as one text, for a manifest."""
    return base64.b64encode(b"".join(sorted(set(hashes)))).decode()


def unpacked(text: str) -> set[bytes]:
    """Return the hashes of a manifest.

    Examples:
        >>> unpacked(packed([b"12345678", b"abcdefgh"])) == {b"12345678", b"abcdefgh"}
        True
    """
    content = base64.b64decode(text, validate=True)
    return {content[at : at + _BYTES] for at in range(0, len(content), _BYTES)}


def where_seen(trained: Trained, client: str, x: Tensor) -> tuple[tuple[Where, ...], str]:
    """Find out which samples a client's model has seen.

    Args:
        trained: The run.
        client: Whose model.
        x: The samples, as the model gets them.

    Returns:
        One word per sample, empty if it is new; and, if this is not known of all, the reason.
    """
    adapted, unknown = _adapted_with(trained, client)
    training, unreadable = _trained_on(trained, client)
    words: list[Where] = []
    for one in hashes_of(x):
        words.append("training" if one in training else "adaptation" if one in adapted else "")
    return tuple(words), unreadable or unknown


def without_seen(
    trained: Trained,
    split: Split,
    where: str,
    names: Sequence[str] = (),
    adapting: Tensor | None = None,
) -> tuple[Split, list[str]]:
    """Leave out samples that the run was trained on: a score on them says nothing about new ones.

    Args:
        trained: The run. Its training samples count as seen by all of its models.
        split: The samples to score.
        where: What messages call them.
        names: What messages call each of them.
        adapting: Further samples that the models have seen, because they are adapted with them.

    Returns:
        The samples that are left; and messages about the others, or why they are not known.

    Raises:
        DataError: No sample is left.
    """
    seen, unknown = _trained_on(trained)
    what = "training"
    if adapting is not None:
        seen |= {*hashes_of(adapting)}
        what = "training or for the adaptation"
    said = [f"not known whether the run was trained on samples of {where}: {unknown}"]
    said = said if unknown else []
    old = [place for place, one in enumerate(hashes_of(split.x)) if one in seen]
    if not old:
        return split, said
    text = f"{len(old)} of {counted(len(split), 'sample')} of {where} were used in {what}"
    if len(old) == len(split):
        raise DataError(f"{text}, so a score would say nothing about new samples; give others")
    called = listed([names[at] if names else split.sample_name(at) for at in old])
    new = torch.ones(len(split), dtype=torch.bool)
    new[old] = False
    return split.take(new.nonzero().flatten()), [*said, f"{text}: {called}; not scored"]


def adapted_with(trained: Trained, split: Split, where: str) -> tuple[list[str], list[str]]:
    """Find the sites that were adapted with some of these samples.

    Returns:
        Their names; and a message about each of them, or about a site of which it is not known.
    """
    hashes, sites, said = hashes_of(split.x), list[str](), list[str]()
    for site in trained.adapted:
        known, unknown = _adapted_with(trained, site)
        count = sum(one in known for one in hashes)
        if count:
            sites.append(site)
            of = f"{count} of {counted(len(split), 'sample')} of {where}"
            said.append(f"the model of {site} was adapted with {of}; not scored")
        elif unknown:
            said.append(f"not known whether the model has seen samples of {where}: {unknown}")
    return sites, said


def _trained_on(trained: Trained, client: str = "") -> tuple[set[bytes], str]:
    """Return the samples behind a client's model, or all; and why they are not known, if so."""
    try:
        clients = trained.federation.clients
        every = entries(trained.plan.initial_model)
        if client and not trained.plan.method.shared(every):  # SingleSet: their own data alone
            clients = tuple(one for one in clients if one.name == client) or clients
        return {one for each in clients for one in hashes_of_split(each.train)}, ""
    except Exception as error:  # data that is gone, or somebody's own code that reads it
        if isinstance(error, GivenInPython):
            return set(), error.fact
        return set(), str(error) if isinstance(error, FedbnError) else reason(error)


def _adapted_with(trained: Trained, client: str) -> tuple[set[bytes], str]:
    """The samples that an adapted site was made from; and why they are not known, if so."""
    if client not in trained.adapted:
        return set(), ""
    known = trained.adapted[client].manifest().get("seen")
    if known is None:
        return set(), f"{client} was adapted by an older fedbn, which did not record its samples"
    try:
        return unpacked(str(known)), ""
    except ValueError as error:
        raise DamagedRun(f"the manifest of the adapted site {client}: damaged hashes") from error
