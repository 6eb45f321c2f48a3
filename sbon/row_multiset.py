"""When two results are identical: row for row as multisets, floating point within a relative tolerance.

DESIGN (Queries, fragments, ports): the order of rows carries no meaning, and a sum of floats depends in its last bits
on the order of its terms. So rows are put together by what has to be equal in them, then by floats that are near each
other, and those that are alike in all of that are compared in their order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

RELATIVE_TOLERANCE = 1e-9
#: Of the tolerance: so little decides nothing about the order in which rows are compared.
NOISE = 1e-3


class _Row(NamedTuple):
    """``floats`` are those of all ``values``, in lists, too."""

    floats: tuple[float, ...]
    values: tuple[object, ...]


#: Rows of the two sides.
_Sides = tuple[list[_Row], list[_Row]]


def difference(
    left: Iterable[Sequence[object]],
    right: Iterable[Sequence[object]],
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> str | None:
    """None if both hold the same rows equally often, floats compared within ``relative_tolerance``; otherwise one line
    about a row of each that the other does not have."""
    groups: defaultdict[Hashable, _Sides] = defaultdict(_no_rows)
    counts = [0, 0]
    for side, rows in enumerate((left, right)):
        for row in rows:
            floats: list[float] = []
            groups[_exact(row, floats)][side].append(_Row(tuple(floats), tuple(row)))
            counts[side] += 1
    if counts[0] != counts[1]:
        return f"{counts[0]} rows against {counts[1]}"
    alone = _no_rows()
    for group in groups.values():
        for alike in _alike(group, relative_tolerance):
            for all_alone, some in zip(alone, _without_partner(alike, relative_tolerance), strict=True):
                all_alone += some
    if not alone[0]:
        return None
    return " against ".join(min(repr(row.values) for row in rows) for rows in alone)


def _no_rows() -> _Sides:
    return [], []


def _exact(value: object, floats: list[float]) -> Hashable:
    """What has to be equal of a value; its floats are added to ``floats``."""
    if isinstance(value, float):
        if math.isnan(value):
            return math.nan  # always this one, which is itself, though it is not equal to itself
        floats.append(value)
        return float
    if isinstance(value, list | tuple):
        return tuple([_exact(each, floats) for each in value])
    if isinstance(value, dict):
        return tuple([(key, _exact(value[key], floats)) for key in sorted(value, key=repr)])
    return value if isinstance(value, Hashable) else repr(value)


def _alike(group: _Sides, tolerance: float) -> Collection[_Sides]:
    """The rows of a group whose floats are near each other: no other ones can be the same."""
    place = _places(group, tolerance)
    found: defaultdict[tuple[int, ...], _Sides] = defaultdict(_no_rows)
    for side, rows in enumerate(group):
        for row in rows:
            found[place(row)][side].append(row)
    return found.values()


def _without_partner(alike: _Sides, tolerance: float) -> _Sides:
    """The first row of each side that has no partner on the other one, where there is such."""
    ours, theirs = alike
    if len(ours) > 1 or len(theirs) > 1:
        place = _places(alike, tolerance * NOISE)
        ours, theirs = sorted(ours, key=place), sorted(theirs, key=place)
    paired = min(len(ours), len(theirs))
    for mine, other in zip(ours[:paired], theirs[:paired], strict=True):
        if not all(math.isclose(x, y, rel_tol=tolerance) for x, y in zip(mine.floats, other.floats, strict=True)):
            return [mine], [other]
    return ours[paired : paired + 1], theirs[paired : paired + 1]


def _places(sides: _Sides, tolerance: float) -> Callable[[_Row], tuple[int, ...]]:
    """What tells where a row is: the numbers of the clusters of its floats, each among those of its column."""
    columns = zip(*(row.floats for rows in sides for row in rows), strict=True)
    clusters = [_clusters(column, tolerance) for column in columns]
    return lambda row: tuple([number[x] for number, x in zip(clusters, row.floats, strict=True)])


def _clusters(column: Iterable[float], tolerance: float) -> dict[float, int]:
    """Value -> number of its cluster. A new one begins where a value is not the same as the next smaller one."""
    clusters: dict[float, int] = {}
    number, before = 0, math.nan
    for value in sorted(set(column)):
        number += not math.isclose(before, value, rel_tol=tolerance)
        clusters[value] = number
        before = value
    return clusters
