"""Figures after Seshadri et al. (TPDS'09) as SVG files, written without a library: 2, 12 and 13 are costs by the number
of queries, 15 the search space by the size of the network. Both on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from daemon.simulation.placement.plot import COLOURS, DASHES
from daemon.simulation.planning.figures import SearchSpace

WIDTH, HEIGHT = 640, 400
LEFT, TOP, RIGHT, BOTTOM = 80, 30, 190, 50

#: One line: (x, y) in the units of the axes.
Line = Sequence[tuple[float, float]]


def write_costs(file: Path, costs: Mapping[str, Sequence[float]]) -> None:
    """Bytes in transit after each query, by planner. Raises OSError."""
    lines = {
        name: [(float(count), cost) for count, cost in enumerate(after, start=1) if cost > 0.0]
        for name, after in costs.items()
    }
    _write(file, lines, "queries", "bytes in transit")


def write_search_spaces(file: Path, networks: Sequence[SearchSpace]) -> None:
    """Plans per query by hosts. Raises OSError."""
    names = ("bottom_up", "npc", "top_down", "bound", "exhaustive")
    lines = {name.replace("_", "-"): [(float(row.hosts), getattr(row, name)) for row in networks] for name in names}
    _write(file, lines, "hosts", "plans to choose from, per query")


def _write(file: Path, lines: Mapping[str, Line], x_title: str, y_title: str) -> None:
    points = [point for line in lines.values() for point in line] or [(1.0, 1.0)]
    x_most = max(x for x, _ in points)
    low, high = math.floor(math.log10(min(y for _, y in points))), math.ceil(math.log10(max(y for _, y in points)))
    high = max(high, low + 1)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    bottom = TOP + height

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + width * x / x_most, bottom - height * (math.log10(y) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{LEFT}" y="{TOP}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
        f'<text x="{LEFT + width / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text x="{LEFT - 60}" y="{TOP - 10}">{escape(y_title)}</text>',
    ]
    for power in range(low, high + 1):
        y = at(0.0, 10.0**power)[1]
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + width}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    for tick in range(5):
        x = LEFT + width * tick / 4
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{x_most * tick / 4:g}</text>')
    for number, (name, line) in enumerate(lines.items()):
        stroke = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-dasharray="{DASHES[number % len(DASHES)]}"'
        drawn = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke-width="1.8" {stroke}/>')
        x, y = WIDTH - RIGHT + 15, TOP + 10 + 20 * number
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 30}" y2="{y}" stroke-width="1.8" {stroke}/>')
        parts.append(f'<text x="{x + 36}" y="{y + 4}">{escape(name)}</text>')
    file.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
