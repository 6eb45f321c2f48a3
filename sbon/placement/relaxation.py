"""Relaxation: where operators would be if hosts were everywhere (SBON ICDE'06 section 3.1.2 and figure 7).

Operators are massless bodies, links are springs: the extension is the latency, the spring constant the data rate. The
pinned ends stay, everything else moves until forces are small; that minimises the sum of rate x latency^2. The true
objective, the sum of rate x latency, has its minimum elsewhere, at weighted geometric medians; it counts when hosts are
chosen, and so do heights and load: here only the vectors of coordinates do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sbon.network_usage import Link

Point = tuple[float, ...]

#: Damping of a step, delta in figure 7; "0.1 works well" (section 3.1.3).
DELTA = 0.1
#: F_t in figure 7. The paper uses 1 in the units of its rates; ours is divided by the operator's total rate and
#: thereby in ms, and finer, since the whole plan is relaxed in one process here and rounds cost nothing.
FORCE_THRESHOLD_MS = 0.01
MAX_ROUNDS = 20_000

#: Neighbours of an operator, each with the rate of the link between, whichever way it flows.
_Springs = dict[str, list[tuple[str, float]]]


def virtual_place(
    links: Iterable[Link],
    fixed: Mapping[str, Point],
    *,
    start: Mapping[str, Point] | None = None,
) -> dict[str, Point]:
    """The point of every operator in ``links`` that is not in ``fixed`` (operator -> point in ms).

    A new operator starts at the centre of the fixed points, unless ``start`` says where it was. (Figure 7 draws the
    start at random near the origin; the rest position is the same, and this one repeats.) The sign of the force is the
    attracting one, which the text describes; figure 7 as printed would push operators away.
    Raises ValueError if nothing is fixed: the springs would have no rest position.
    """
    springs, points = _prepare(links, fixed, start)
    for _ in range(MAX_ROUNDS):
        largest_ms = 0.0
        for operator, neighbours in springs.items():
            force = _mean_force(points[operator], neighbours, points)
            points[operator] = tuple(x + DELTA * f for x, f in zip(points[operator], force, strict=True))
            largest_ms = max(largest_ms, math.hypot(*force))
        if largest_ms < FORCE_THRESHOLD_MS:
            break
    return {operator: points[operator] for operator in springs}


def _prepare(
    links: Iterable[Link], fixed: Mapping[str, Point], start: Mapping[str, Point] | None
) -> tuple[_Springs, dict[str, Point]]:
    if not fixed:
        raise ValueError("relaxation needs at least one pinned operator")
    centre = tuple(sum(xs) / len(fixed) for xs in zip(*fixed.values(), strict=True))
    springs: _Springs = {}
    for link in links:
        for operator, neighbour in ((link.source, link.target), (link.target, link.source)):
            if operator not in fixed:
                springs.setdefault(operator, []).append((neighbour, link.rate_bytes_per_s))
    points = dict(fixed)
    for operator in springs:
        points[operator] = start[operator] if start and operator in start else centre
    return springs, points


def _mean_force(here: Point, neighbours: list[tuple[str, float]], points: Mapping[str, Point]) -> Point:
    """Lines 2 to 6 of figure 7, divided by the springs' total strength: the way to the point of rest, in ms."""
    force = [0.0] * len(here)
    total = 0.0
    for neighbour, rate in neighbours:
        total += rate
        for axis, (x, y) in enumerate(zip(here, points[neighbour], strict=True)):
            force[axis] += (y - x) * rate
    return tuple(f / total for f in force) if total > 0.0 else tuple(force)
