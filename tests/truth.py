"""Round-trip matrices that are known to be true: shapes that embed exactly, and real networks."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

DATA = Path(__file__).parent / "data"

#: Round trips between twelve of them, see README.md beside it.
CLOUD_REGIONS = DATA / "rtt_gcp12.csv"

Matrix = list[list[float]]


def from_points(points: Sequence[tuple[float, ...]], access_ms: Sequence[float] | None = None) -> Matrix:
    """Distances between points in ms, plus the access links of both ends."""
    access = access_ms or [0.0] * len(points)
    return [
        [0.0 if i == j else math.dist(a, b) + access[i] + access[j] for j, b in enumerate(points)]
        for i, a in enumerate(points)
    ]


def line(nodes: int, spacing_ms: float = 10.0) -> Matrix:
    return from_points([(i * spacing_ms,) for i in range(nodes)])


def grid(side: int, spacing_ms: float = 25.0) -> Matrix:
    return from_points([(x * spacing_ms, y * spacing_ms) for x in range(side) for y in range(side)])


def circle(nodes: int, circumference_ms: float = 300.0) -> Matrix:
    """Distances along a ring: the shape of the Earth's cables, which no Euclidean space holds exactly."""
    step = circumference_ms / nodes
    return [[min(abs(i - j), nodes - abs(i - j)) * step for j in range(nodes)] for i in range(nodes)]


def cloud_regions(count: int = 12) -> Matrix:
    """Real round trips between cloud regions (tests/data/README.md), the mean of both directions."""
    rows = [[float(x) for x in row[1:]] for row in _cloud_table()[1:]]
    return [[0.0 if i == j else (rows[i][j] + rows[j][i]) / 2 for j in range(count)] for i in range(count)]


def cloud_region_names() -> list[str]:
    """In the order of :func:`cloud_regions`."""
    return _cloud_table()[0][1:]


def _cloud_table() -> list[list[str]]:
    with CLOUD_REGIONS.open(newline="") as file:
        return list(csv.reader(file))
