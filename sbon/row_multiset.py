"""When two results are identical: row for row as multisets, floating point within a relative tolerance.

DESIGN (Queries, fragments, ports): the order of rows carries no meaning, and a sum of floats depends in its last bits
on the order of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

RELATIVE_TOLERANCE = 1e-9


def same_rows(
    left: Iterable[Sequence[object]],
    right: Iterable[Sequence[object]],
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> bool:
    """True if both hold the same rows equally often, floats compared within ``relative_tolerance``."""
    return difference(left, right, relative_tolerance) is None


def difference(
    left: Iterable[Sequence[object]],
    right: Iterable[Sequence[object]],
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> str | None:
    """None if :func:`same_rows`, otherwise one line about the first difference."""
    ours, theirs = sorted(left, key=_sort_key), sorted(right, key=_sort_key)
    if len(ours) != len(theirs):
        return f"{len(ours)} rows against {len(theirs)}"
    for mine, other in zip(ours, theirs, strict=True):
        if not _same_value(tuple(mine), tuple(other), relative_tolerance):
            return f"{tuple(mine)!r} against {tuple(other)!r}"
    return None


def _sort_key(row: Sequence[object]) -> tuple[str, str]:
    # Exact columns first, so that noise in the last bits of a float cannot pair rows differently on the two sides.
    exact = [repr(value) for value in row if not isinstance(value, float)]
    rounded = [f"{value:.6e}" for value in row if isinstance(value, float)]
    return repr(exact), repr(rounded)


def _same_value(mine: object, other: object, tolerance: float) -> bool:
    if isinstance(mine, float) and isinstance(other, float):
        return math.isclose(mine, other, rel_tol=tolerance) or (math.isnan(mine) and math.isnan(other))
    if isinstance(mine, list | tuple) and isinstance(other, list | tuple):
        return len(mine) == len(other) and all(_same_value(a, b, tolerance) for a, b in zip(mine, other, strict=True))
    return mine == other
