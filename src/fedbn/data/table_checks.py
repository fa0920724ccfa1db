"""Columns of tables that are probably not what they look like, such as dates and ids.

Every check looks at the tables of all sites. What only a person can decide is an error that names
the options; what a model can still be trained on is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from fedbn.core.consistency import different_words
from fedbn.core.findings import Warned, spelled_alike
from fedbn.data.table_files import Table, is_missing
from fedbn.errors import DataError
from fedbn.text import listed

_MOSTLY = 0.9  # the share of dates that makes a column one of dates
_LONG_ID = 10**6  # ids that are not counted up have at least seven digits
_FEWEST_IDS = 20  # fewer rows may be all different by chance
_UNIQUE = 0.95
_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    r"|\d{1,2}[ -][A-Za-z]{3,9}\.?[ -]\d{2,4})"
    r"([ T]+\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*([AaPp][Mm]|Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
    r"|-?\d+ days?( \d{1,2}:\d{2}:\d{2}(\.\d+)?)?"
)
_WHOLE = re.compile(r"[+-]?\d+")
_ID_NAME = re.compile(  # of a name whose parts are divided by underscores
    r"(^|[^a-z])((id|ids|nr|no|mrn|pid|uuid|key|index|number|record|case|patient|subject|row)"
    r"|(patient|subject|person|study|case|record|sample)(id|nr|no|number))([^a-z]|$)"
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")  # the place of the underscore that PatientID lacks
_MOST_CATEGORIES = 20  # of more, sites may have different ones by chance


def check_dates(name: str, cells: Sequence[str], tables: Sequence[Table]) -> None:
    """Refuse a column of texts that are dates or times.

    Raises:
        DataError: Nearly all cells are dates.
    """
    if sum(_DATE.fullmatch(cell) is not None for cell in cells) < _MOSTLY * len(cells):
        return
    first = next(cell for cell in cells if _DATE.fullmatch(cell))
    raise DataError(
        f"{tables[0].where}: column {name!r} has dates or times ({first!r}, {len({*cells})} "
        "different ones), which are neither numbers nor categories. Replace it by a number, such "
        "as days since a fixed date, or name it in data.drop; data.categorical takes each value "
        "as a category"
    )


def column_warnings(
    tables: Mapping[str, Table], names: Sequence[str], categorical: Sequence[str]
) -> Iterator[Warned]:
    """Report columns that were probably meant in another way than they are read.

    Args:
        tables: The table of each site.
        names: The columns that become features.
        categorical: The columns that the user declared as categories; these are not questioned.

    Yields:
        Warnings on categories that are written in two ways, and on columns that number the rows.

    Raises:
        DataError: One site has numbers where another has words.
    """
    for name in names:
        cells = {
            site: [cell.strip() for cell in table.columns[name] if not is_missing(cell)]
            for site, table in tables.items()
        }
        if name in categorical:
            continue
        if text := different_words({site: sorted({*own}) for site, own in cells.items()}):
            raise DataError(
                f"{_where(tables)}: column {name!r} has values of two kinds: {text}. Write them "
                "alike at every site; data.categorical takes each value as a category"
            )
        alike = [*_written_twice(name, cells, tables)]
        yield from alike or _in_no_common(name, cells, tables)
        if all(_WHOLE.fullmatch(cell) for own in cells.values() for cell in own):
            yield from _numbering(name, [list(map(int, own)) for own in cells.values()], tables)


def _written_twice(
    name: str, cells: Mapping[str, Sequence[str]], tables: Mapping[str, Table]
) -> Iterator[Warned]:
    """Report categories that differ in case only."""
    values = sorted({cell for own in cells.values() for cell in own})
    if all(map(_WHOLE.fullmatch, values)):
        return
    for first, second in spelled_alike(values):
        if _is_number(first) and _is_number(second):
            continue
        at = [
            listed([s for s, own in cells.items() if value in own], 2) for value in (first, second)
        ]
        yield Warned(
            f"{_where(tables)}: column {name!r}: {first!r} (site {at[0]}) and {second!r} (site "
            f"{at[1]}) are read as two categories; write them alike, or name the column in "
            "data.categorical if they differ in meaning"
        )


def _in_no_common(
    name: str, cells: Mapping[str, Sequence[str]], tables: Mapping[str, Table]
) -> Iterator[Warned]:
    """Report sites of which no category occurs at any other site."""
    values = {site: {*own} for site, own in cells.items() if own}
    every = {value for own in values.values() for value in own}
    if len(values) < 2 or len(every) > _MOST_CATEGORIES or all(map(_is_number, every)):
        return
    for site, own in values.items():
        others = {value for other, found in values.items() if other != site for value in found}
        if own.isdisjoint(others):
            yield Warned(
                f"{_where(tables)}: column {name!r}: no other site has the categories of site "
                f"{site} ({listed(sorted(own), 3)} there, {listed(sorted(others), 3)} elsewhere). "
                "If they mean the same, write them alike; if the column only tells sites apart, "
                "name it in data.drop; if it is right, name it in data.categorical"
            )
            return


def _numbering(
    name: str, numbers: Sequence[Sequence[int]], tables: Mapping[str, Table]
) -> Iterator[Warned]:
    """Report whole numbers that tell rows apart rather than measure something."""
    if any(len(own) < _FEWEST_IDS or len({*own}) < _UNIQUE * len(own) for own in numbers):
        return
    counted = all(_is_monotonic(own) for own in numbers)
    named = _ID_NAME.search(_HUMP.sub("_", name).casefold()) is not None
    long = all(min(map(abs, own)) >= _LONG_ID for own in numbers)
    if counted or named or long:
        yield Warned(
            f"{_where(tables)}: column {name!r} is a feature, but its whole numbers differ in "
            "nearly every row, as those of an id do; name it in data.drop (or in data.id), or in "
            "data.group if it says whose a row is"
        )


def _is_monotonic(numbers: Sequence[int]) -> bool:
    steps = [after - before for before, after in pairwise(numbers)]
    return all(step > 0 for step in steps) or all(step < 0 for step in steps)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _where(tables: Mapping[str, Table]) -> str:
    """Name the file, or the files, that all sites are in."""
    places = dict.fromkeys(table.where for table in tables.values())
    return next(iter(places)) if len(places) == 1 else "data"
