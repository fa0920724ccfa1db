"""Samples that a model has seen before, in training or when a site was adapted.

A score on such samples says nothing about new ones. A sample is recognised by its content, so a
copy under another path or in another order is recognised, too. Samples are
compared as the site that trained would have completed them. Labels play no part: leaving out only
those samples whose label is the same would distort the score of the others.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
        x: The samples, encoded.

    Returns:
        One word per sample, empty if it is new; and, if this is not known of all, the reason.
    """
    adapted, unknown = _adapted_with(trained, client)
    training, unreadable = _trained_on(trained, client)
    trained_on = _among(trained, x, training)
    adapted_on = _among(trained, x, {client: adapted})
    words: list[Where] = []
    for at in range(len(x)):
        words.append("training" if at in trained_on else "adaptation" if at in adapted_on else "")
    return tuple(words), unreadable or unknown


def _among(trained: Trained, x: Tensor, known: Mapping[str, set[bytes]]) -> set[int]:
    """Return the places of encoded samples that are among the completed samples of some sites."""
    if not trained.preparation.fits_sites:
        every = set[bytes]().union(*known.values())
        return {at for at, one in enumerate(hashes_of(x)) if one in every}
    found = set[int]()
    for site, own in known.items():
        fit = trained.site_fit(site) if own else None
        if fit is not None:
            completed = trained.preparation.apply(x, fit)
            found |= {at for at, one in enumerate(hashes_of(completed)) if one in own}
    return found


def without_seen(
    trained: Trained,
    split: Split,
    where: str,
    names: Sequence[str] = (),
    adapting: Tensor | None = None,
) -> tuple[Tensor, list[str]]:
    """Leave out samples that the run was trained on: a score on them says nothing about new ones.

    Args:
        trained: The run. Its training samples count as seen by all of its models.
        split: The samples to score, encoded.
        where: What messages call them.
        names: What messages call each of them.
        adapting: Further samples that the models have seen, because they are adapted with them.

    Returns:
        The places of the samples that are left; and messages about the others, or why they are not
        known.

    Raises:
        DataError: No sample is left.
    """
    training, unknown = _trained_on(trained)
    seen, what = _among(trained, split.x, training), "training"
    if adapting is not None:
        others = {*hashes_of(adapting)}
        seen |= {at for at, one in enumerate(hashes_of(split.x)) if one in others}
        what = "training or for the adaptation"
    said = [f"not known whether the run was trained on samples of {where}: {unknown}"]
    said = said if unknown else []
    old, new = sorted(seen), torch.ones(len(split), dtype=torch.bool)
    if not old:
        return new.nonzero().flatten(), said
    text = f"{len(old)} of {counted(len(split), 'sample')} of {where} were used in {what}"
    if len(old) == len(split):
        raise DataError(f"{text}, so a score would say nothing about new samples; give others")
    called = listed([names[at] if names else split.sample_name(at) for at in old])
    new[old] = False
    return new.nonzero().flatten(), [*said, f"{text}: {called}; not scored"]


def adapted_with(trained: Trained, split: Split, where: str) -> tuple[list[str], list[str]]:
    """Find the sites that were adapted with some of these encoded samples.

    Returns:
        Their names; and a message about each of them, or about a site of which it is not known.
    """
    sites, said = list[str](), list[str]()
    for site in trained.adapted:
        known, unknown = _adapted_with(trained, site)
        count = len(_among(trained, split.x, {site: known}))
        if count:
            sites.append(site)
            of = f"{count} of {counted(len(split), 'sample')} of {where}"
            said.append(f"the model of {site} was adapted with {of}; not scored")
        elif unknown:
            said.append(f"not known whether the model has seen samples of {where}: {unknown}")
    return sites, said


def _trained_on(trained: Trained, client: str = "") -> tuple[dict[str, set[bytes]], str]:
    """Return the samples behind a client's model, or all, by client; and why they are not known."""
    try:
        clients = trained.federation.clients
        every = entries(trained.plan.initial_model)
        if client and not trained.plan.method.shared(every):  # SingleSet: their own data alone
            clients = tuple(one for one in clients if one.name == client) or clients
        return {one.name: hashes_of_split(one.train) for one in clients}, ""
    except Exception as error:  # data that is gone, or somebody's own code that reads it
        if isinstance(error, GivenInPython):
            return {}, error.fact
        return {}, str(error) if isinstance(error, FedbnError) else reason(error)


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
