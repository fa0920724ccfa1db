"""How raw samples become tensors: one preparation for all sites of a federation.

A preparation is fitted once, on the data of all sites (in a federation of separate machines the
contract agrees on it), and is stored with the run (`inputs` in `environment.json`). Training,
`predict`, `adapt`, `evaluate` and `data check` use it in the same way. It has two stages:

1. *Encoding* is the same at every site: the type and the shape of samples, columns and categories
   of tables, the size and the channels of pictures, the values of masks, and the classes.
2. *Completing* depends on the site. Its own training samples decide (`SiteFit`) what fills an empty
   cell, and the mean and the deviation that features are brought to 0 and 1 by.

What does not fit the encoding is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbn.core.federation import (
    A_CLASS,
    AnySplit,
    Client,
    Federation,
    Split,
    Target,
    Targets,
    blank_targets,
    scaled,
    targets_of,
)
from fedbn.core.findings import Warned, not_finite
from fedbn.data.arrays import (
    as_samples,
    channels_moved,
    in_float32,
    labels_of,
    places,
    tensor_of,
)
from fedbn.data.columns import Column, LevelsBy, TableEncoding, means_of, table_targets
from fedbn.data.image_folders import PictureReader
from fedbn.data.images import DEPTH, Constants
from fedbn.data.masks import MaskedPictures, MaskReader
from fedbn.data.table_files import Table
from fedbn.data.tables import in_order, is_frame
from fedbn.errors import ConfigError, DataError

_LABELS = ("label", "y", "class")
_SCALED = 1.01  # scaled floats may exceed 1 by rounding
_BELOW_ZERO = -0.3
_WHITE = 255
_BYTE_LIKE = 100  # whole floats above this value are pixels that were converted, not scaled


@dataclass(frozen=True)
class SiteFit:
    """What a site's own training samples decide about all of its samples.

    Attributes:
        means: The value that fills an empty cell, by feature; None where no cell is filled.
        levels: The means and the deviations by feature, or by channel of pictures; None where
            samples stay as they are.
    """

    means: Sequence[float] | None = None
    levels: Sequence[Sequence[float]] | None = None

    def facts(self) -> dict[str, Any]:
        """Return plain values."""
        return {key: value for key, value in vars(self).items() if value is not None}


def _words(value: Any) -> str:
    """Return columns with their categories, or other values, as text."""
    if isinstance(value, tuple) and value and isinstance(value[0], Column):
        return ", ".join(
            c.name if c.values is None else f"{c.name} ({', '.join(c.values)})" for c in value
        )
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def levels_of(x: Tensor, chosen: Tensor | None = None) -> list[list[float]]:
    """Return the means and the deviations of samples, by channel of pictures or by feature.

    A feature that never changes has the deviation 1, and so has one that is not `chosen`, whose
    mean is 0.

    Examples:
        >>> x = torch.tensor([[1.0, 9.0, 0.0], [3.0, 9.0, 1.0]])
        >>> levels_of(x, torch.tensor([True, True, False]))
        [[2.0, 9.0, 0.0], [1.4142135623730951, 1.0, 1.0]]
    """
    rows = scaled(x).double().movedim(1, 0).flatten(1)
    means = rows.mean(dim=1)
    deviations = rows.std(dim=1) if rows.shape[1] > 1 else torch.zeros_like(means)
    deviations = torch.where(deviations > 0, deviations, 1.0)
    if chosen is not None:
        means = torch.where(chosen, means, 0.0)
        deviations = torch.where(chosen, deviations, 1.0)
    return [means.tolist(), deviations.tolist()]


def levelled(x: Tensor, levels: Sequence[Sequence[float]]) -> Tensor:
    """Bring samples to means of 0 and deviations of 1.

    Examples:
        >>> levelled(torch.tensor([[1.0, 9.0], [3.0, 9.0]]), [[2.0, 9.0], [1.0, 1.0]])
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    mean, deviation = (torch.tensor(each).reshape(-1, *[1] * (x.dim() - 2)) for each in levels)
    return (scaled(x) - mean).div_(deviation)


@dataclass(frozen=True)
class Preparation:
    """How raw samples of a federation become tensors, at every site and after training.

    Attributes:
        classes: The names of the classes, labels or numbers that are learned.
        shape: The shape of one sample.
        dtype: The type of samples, before pixels are scaled.
        target: The type and the shape of one target.
        range: The least and the largest training value; None where it is not known.
        table: How rows become features; None where samples are no rows of tables.
        frame: The columns of DataFrames that were given next to labels.
        depth: The largest value of 16-bit pictures; None where all had 8 bit.
        constants: Means and deviations of pixels from 0 to 1, by channel.
        aliases: Other names of class folders.
        group: The pattern that finds in a file's name whose a picture is.
        masks: The values of masks, in the order of the classes.
        levels_by: Which features are brought to mean 0 and deviation 1, and by what.
        sites: The fits of the sites that trained, by name.
    """

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    target: Target = A_CLASS
    range: tuple[float, float] | None = None
    table: TableEncoding | None = None
    frame: tuple[str, ...] = ()
    depth: int | None = None
    constants: Constants | None = None
    aliases: Mapping[str, str] | None = None
    group: str | None = None
    masks: tuple[int, ...] | None = None
    levels_by: LevelsBy = "none"
    sites: Mapping[str, SiteFit] = field(default_factory=dict)

    @staticmethod
    def read(inputs: Mapping[str, Any]) -> Preparation:
        """Read what a run's `environment.json` has of its data (`inputs`)."""
        told = inputs.get("preparation", {})
        table, levels = told.get("table"), told.get("levels") or {}
        by = told.get("levels_by")
        if by is None and levels:  # data that brings its own levels, or an older run
            first, *others = levels.values()
            by = first if others and all(each == first for each in others) else "site"
        means = (table or {}).get("means") or {}
        kind, size = inputs.get("target") or A_CLASS
        extent = inputs.get("range")
        return Preparation(
            classes=tuple(inputs["classes"]),
            shape=tuple(inputs["input_shape"]),
            dtype=inputs.get("dtype", "float32"),
            target=(kind, tuple(size)),
            range=(extent[0], extent[1]) if extent else None,
            table=TableEncoding.read(table) if table and "columns" in table else None,
            frame=tuple(told.get("frame", ())),
            depth=None if told.get("depth") is None else int(told["depth"]),
            constants=told.get("normalize"),
            aliases=told.get("aliases"),
            group=told.get("group"),
            masks=None if told.get("masks") is None else tuple(told["masks"]),
            levels_by=by or "none",
            sites={
                site: SiteFit(means.get(site), levels.get(site))
                for site in dict.fromkeys([*means, *levels])
            },
        )

    @staticmethod
    def of(federation: Federation) -> Preparation:
        """Return the preparation of a federation, as far as its samples went through it."""
        facts = {
            "classes": federation.classes,
            "input_shape": federation.input_shape,
            "dtype": str(federation.clients[0].train.dtype).removeprefix("torch."),
            "target": federation.target,
            "preparation": federation.preparation,
        }
        return Preparation.read(facts)

    def check_same(self, other: Preparation, where: str) -> None:
        """Refuse data that is encoded in another way than that of a run.

        Raises:
            DataError: Columns, categories, classes or shapes are others than the run's.
        """
        columns = [each.table.columns if each.table else None for each in (self, other)]
        compared: list[tuple[str, Any, Any]] = [
            ("the columns", columns[0], columns[1]),
            ("the classes", self.classes, other.classes),
            ("the values of masks", self.masks, other.masks),
            ("the shape of a sample", self.shape, other.shape),
        ]
        if self.levels_by == "none":  # else pixels become floats later
            compared.append(("the type of samples", self.dtype, other.dtype))
        for what, own, found in compared:
            if own != found:
                raise DataError(
                    f"{where}: {what} changed since the run was trained: {_words(own)} then, "
                    f"{_words(found)} now"
                )

    # --- Encoding: the same at every site -------------------------------------------------------

    def encode(self, x: Any, where: str = "x") -> Tensor:
        """Return raw samples as a tensor (n, ...) of the run's shape, before they are completed.

        Args:
            x: An array, a tensor, numbers in lists, or a DataFrame of numbers.
            where: What messages call the samples.

        Raises:
            DataError: They do not fit what the models were trained on.
        """
        if is_frame(x):
            x = in_order(x, self.frame, where)
        elif isinstance(x, np.ndarray) and x.shape[1:] != self.shape:
            grey = x.ndim == 3 and self.shape == (1, *x.shape[1:])
            x = x[:, None] if grey else channels_moved(x)
        samples = tensor_of(in_float32(x), where).detach().cpu()
        as_pixels = self.dtype == "uint8" and samples.dtype == torch.uint8
        samples = samples if as_pixels else as_samples(samples)
        self._check_shape(samples, where)
        if samples.dtype == torch.uint8:
            return self._pixels(samples, where)
        for text in not_finite(samples):
            raise DataError(f"{where}: {text}")
        if self.levels_by == "none":
            self._check_range(samples, where)
        return samples

    def encode_rows(self, table: Table) -> Tensor:
        """Return the rows of a table as features (n, features); an empty number is NaN."""
        encoding = self.table_encoding(table)
        for column in encoding.columns:
            column.check(table)
        if not self.fills_gaps:
            encoding.check_complete(table)
        return encoding.encode(table)

    def table_encoding(self, table: Table) -> TableEncoding:
        """Return how a table is read, also where the run was trained on arrays of vectors."""
        if self.table is not None:
            return self.table
        names = self.frame
        if not names:
            labels = self.label_columns(table)
            names = tuple(name for name in table.columns if name not in labels)
            if self.shape != (len(names),):
                raise DataError(
                    f"{table.where}: {len(names)} columns of features; the run was trained on "
                    f"samples of shape {self.shape}"
                )
        return TableEncoding(tuple(Column(name, None) for name in names))

    def label_columns(self, table: Table) -> list[str]:
        """Return the columns of targets; none where the table lacks one of them."""
        label = self.table.label if self.table is not None else None
        if label is None and self.numbers is not None and len(self.classes) > 1:
            label = self.classes
        known = [[label] if isinstance(label, str) else [*label]] if label else None
        found = known or [[name] for name in _LABELS]
        return next((names for names in found if table.columns.keys() >= {*names}), [])

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Return the pixels of pictures as samples (n, channels, height, width)."""
        return self._as_trained(self.picture_reader.finished(pixels))

    def encode_masks(self, found: MaskedPictures) -> Tensor:
        """Return the masks of pictures as targets (n, height, width)."""
        return MaskReader(self.picture_reader).places(found, self.masks or ())

    @property
    def picture_reader(self) -> PictureReader:
        """How the pixels of picture files are read."""
        channels, height, width = self.shape
        return PictureReader((width, height), self.depth or DEPTH, None, channels, self.constants)

    def _as_trained(self, x: Tensor) -> Tensor:
        """Return pixels as floats where the run was trained on such, scaled as pixels are."""
        return x if self.dtype == "uint8" else scaled(x)

    @property
    def fits_sites(self) -> bool:
        """True if samples are completed by what their site's training samples decide."""
        return self.fills_gaps or self.levels_by != "none"

    @property
    def fills_gaps(self) -> bool:
        """True if empty cells of tables are filled with a mean."""
        return self.table is not None and self.table.missing == "mean"

    @property
    def numbers(self) -> bool | None:
        """True if numbers are learned, False if several labels are; None for all else."""
        return {"float32": True, "float64": True, "bool": False}.get(self.target[0])

    @property
    def takes_bytes(self) -> bool:
        """True if the run was trained on pixels, or on floats that look like scaled ones."""
        low, high = self.range or (-1.0, 1.0)
        scaled_pixels = -_SCALED <= low < _BELOW_ZERO and high <= _SCALED
        return self.dtype == "uint8" or self.levels_by != "none" or scaled_pixels

    def _pixels(self, samples: Tensor, where: str) -> Tensor:
        if not self.takes_bytes:
            raise DataError(
                f"{where}: uint8, which becomes −1 to 1, but the run was trained on floats of "
                "another range; give floats like these"
            )
        return self._as_trained(samples)

    def _check_shape(self, x: Tensor, where: str) -> None:
        """Refuse samples of another shape than the run's, and none at all."""
        if x.dim() < 1 or tuple(x.shape[1:]) != self.shape:
            raise DataError(
                f"{where}: shape {tuple(x.shape)}, so samples of shape {tuple(x.shape[1:])}; "
                f"the run was trained on {self.shape}"
            )
        if not len(x):
            raise DataError(f"{where}: no samples")

    def _check_range(self, x: Tensor, where: str) -> None:
        """Refuse float pictures whose values are stored in another range than the run's."""
        largest = float(x.abs().max())
        if self.dtype == "uint8" and largest > _SCALED:
            raise DataError(
                f"{where}: floats up to {largest:.4g}, but the run was trained on whole numbers 0 "
                "to 255 scaled to −1 to 1; give uint8, or floats scaled so"
            )
        if x.dim() != 4:
            return
        low, high = map(float, x.aminmax())
        least, most = (-1.0, 1.0) if self.dtype == "uint8" else self.range or (low, high)
        found = f"{where}: floats from {low:.4g} to {high:.4g}, but the run was trained on "
        if self.dtype == "uint8" and low >= 0 and 0 < high <= _SCALED:
            raise DataError(
                f"{found}pixels 0 to 255 that became −1 to 1; give uint8, or floats from −1 to 1 "
                "(2 * x - 1 where 0 is black and 1 is white)"
            )
        said = f"{found}floats from {least:.4g} to {most:.4g}; bring these to that range"
        whole = bool((x % 1 == 0).all())
        if most <= _SCALED and low >= 0 and _BYTE_LIKE < high <= _WHITE and whole:
            raise DataError(said)
        pixels = least >= 0 and _BYTE_LIKE < most <= _WHITE
        if pixels and low >= 0 and high <= _SCALED and not whole:
            raise DataError(said)

    # --- Targets --------------------------------------------------------------------------------

    def targets(
        self, y: Any, n: int, where: str = "y", classes: Sequence[str] | None = None
    ) -> Tensor:
        """Return the targets of n samples as the models learned them.

        Args:
            y: Classes by name or place, several labels, numbers or masks.
            n: The number of samples.
            where: What messages call the targets.
            classes: The names of classes that places in `y` refer to; the run's unless given.

        Raises:
            DataError: They are not what the models learned.
        """
        if self.kind is Targets.CLASS:
            own = classes or self.classes
            found = labels_of(y, n, own, where, self.table is not None and classes is None)
            if classes is not None:
                found = places([own[place] for place in found], self.classes, where)
            return torch.from_numpy(found)
        (dtype, size), given = self.target, np.asarray(y)
        values = given[:, None] if given.shape == (n,) and size == (1,) else given
        if values.shape != (n, *size):
            raise DataError(
                f"{where} of shape {values.shape} for {n} samples; expected {(n, *size)}"
            )
        if self.kind is Targets.MASK:
            return tensor_of(values, where).cpu().to(getattr(torch, dtype))
        cells = [list(map(str, column)) for column in values.T.tolist()]
        columns = dict(zip(self.classes, cells, strict=True))
        return table_targets(Table(where, columns, [*range(n)]), self.classes, self.numbers, ())

    def row_targets(self, table: Table) -> Tensor | None:
        """Return the targets of a table's rows; None where the table does not have them."""
        names = self.label_columns(table)
        if all(len(table.gaps(name, self.classes)) == len(table) for name in names):
            return None
        return table_targets(table, names, self.numbers, self.classes)

    @property
    def kind(self) -> Targets | None:
        """The kind of targets that models learned."""
        return targets_of(blank_targets(self.target, 1))

    # --- Completing: a site's own ---------------------------------------------------------------

    def fit_site(self, x: Tensor, where: str = "x") -> SiteFit:
        """Return what a site's encoded training samples decide."""
        means = means_of(x.numpy()) if self.fills_gaps else None
        if not isinstance(self.levels_by, str):
            count, width = len(self.levels_by[0]), x.shape[1]
            if count != width:
                raise ConfigError(f"normalize has {count} means, a sample {width} features")
            return SiteFit(means, self.levels_by)
        if self.levels_by == "none":
            return SiteFit(means)
        chosen = self.table.numeric if self.levels_by == "numeric" and self.table else None
        whole = x if means is None else self._filled(x, means, where)
        return SiteFit(means, levels_of(whole, chosen))

    def apply(self, x: Tensor, fit: SiteFit, where: str = "x") -> Tensor:
        """Return encoded samples with empty cells filled, and features at their levels."""
        if fit.means is not None:
            x = self._filled(x, fit.means, where)
        return x if fit.levels is None else levelled(x, fit.levels)

    def _filled(self, x: Tensor, means: Sequence[float], where: str) -> Tensor:
        """Put a feature's mean where a number is missing."""
        features = x.numpy().copy()
        rows, gaps = np.nonzero(np.isnan(features))
        features[rows, gaps] = np.array(means)[gaps]
        for gap in gaps[np.isnan(features[rows, gaps])][:1]:
            name = self.table.features[gap] if self.table else str(gap)
            raise DataError(
                f"{where}: column {name!r} has no value in a row to take a mean of; fill it, or "
                "name it in data.drop"
            )
        return torch.from_numpy(features)

    def site_fit(self, site: str) -> SiteFit | None:
        """Return what is known of a site; None of a new one.

        A run of a single site is used at that site, whatever name is given.
        """
        only = next(iter(self.sites.values())) if len(self.sites) == 1 else None
        return self.sites.get(site, only)

    def complete(
        self,
        x: Tensor,
        site: str = "",
        sites: Sequence[str] = (),
        where: str = "x",
        gaps: int | None = None,
    ) -> tuple[Tensor, tuple[str, ...]]:
        """Return encoded samples as the models take them, by the fit of their site.

        Args:
            x: Encoded samples.
            site: Whose they are; a new site's unless it is known.
            sites: Whose each of them is, where their table says so. A known site goes before
                `site`.
            where: What messages call the samples.
            gaps: How many cells were empty; counted unless given.

        Returns:
            The samples, and messages about what was filled in and about a new site's levels.
        """
        whose = [one if one in self.sites else site for one in sites] or [site]
        parts, notes = {}, dict[str, None]()
        for name in dict.fromkeys(whose):
            mine = torch.tensor([one == name for one in whose]) if len({*whose}) > 1 else None
            part = x if mine is None else x[mine]
            count = int(part.isnan().sum()) if gaps is None or mine is not None else gaps
            parts[name], said = self._of_one_site(part, name, where, count)
            notes |= dict.fromkeys(said)
        if len(parts) == 1:
            return next(iter(parts.values())), tuple(notes)
        whole = torch.empty(len(x), *x.shape[1:])
        for name, part in parts.items():
            whole[torch.tensor([one == name for one in whose])] = part
        return whole, tuple(notes)

    def _of_one_site(
        self, x: Tensor, site: str, where: str, gaps: int
    ) -> tuple[Tensor, tuple[str, ...]]:
        known, notes = self.site_fit(site), list[str]()
        new = known is None
        if known is None:
            known = self.fit_site(x, where)
        if gaps and self.fills_gaps:
            said = f"{gaps} empty cells filled with the mean of"
            notes.append(Warned(f"{said} these rows") if new else f"{said} training rows")
        if new and self.levels_by in ("numeric", "site"):
            notes.append("normalised by their own mean and deviation, as those of a new site")
        return self.apply(x, known, where), tuple(notes)


def prepared(federation: Federation, known: Preparation | None = None) -> Federation:
    """Complete every client's samples by what its own training samples decide.

    Args:
        federation: Encoded samples, or completed ones, which stay as they are.
        known: The preparation of a run. Its clients keep what was fitted then, whatever
            their data is now.

    Returns:
        The federation, whose `preparation` has the fit of every client.
    """
    if not federation.clients:
        return federation  # which is an error, and is named where a federation is checked
    mine = Preparation.of(federation)
    if known is not None:
        known.check_same(mine, f"data {federation.name}")
        mine = replace(mine, levels_by=known.levels_by)
        federation = replace(federation, preparation=_levels_by(federation, known.levels_by))
    fills = mine.fills_gaps and not any(one.means for one in mine.sites.values())
    levels = mine.levels_by != "none" and not any(one.levels for one in mine.sites.values())
    if not (fills or levels):
        return federation
    clients, found = list[Client](), dict[str, SiteFit]()
    for client in federation.clients:
        train, where = client.train, f"data {federation.name}, client {client.name}"
        if not isinstance(train, Split):
            raise ConfigError(f"{where}: samples that are read later are normalised by constants")
        where = where if train.origin is None else train.origin.where or where
        own = known.sites.get(client.name) if known is not None else None
        found[client.name] = own = own or mine.fit_site(train.x, where)

        def complete(split: AnySplit, own: SiteFit = own, where: str = where) -> AnySplit:
            assert isinstance(split, Split)
            return replace(split, x=mine.apply(split.x, own, where))

        clients.append(client.change(complete))
    return replace(with_site_fits(federation, found), clients=tuple(clients))


def with_site_fits(federation: Federation, fits: Mapping[str, SiteFit]) -> Federation:
    """Add the fits of clients to a federation's preparation."""
    told = dict(federation.preparation)
    means = {name: one.means for name, one in fits.items() if one.means is not None}
    levels = {name: one.levels for name, one in fits.items() if one.levels is not None}
    if means:
        told["table"] = {**told["table"], "means": {**told["table"].get("means", {}), **means}}
    if levels:
        told["levels"] = {**told.get("levels", {}), **levels}
    return replace(federation, preparation=told)


def _levels_by(federation: Federation, levels_by: LevelsBy) -> dict[str, Any]:
    """Return a federation's preparation with other features brought to levels."""
    told = {key: value for key, value in federation.preparation.items() if key != "levels_by"}
    return told if levels_by == "none" else {**told, "levels_by": levels_by}
