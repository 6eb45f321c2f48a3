"""The two figures of the founding paper (SBON ICDE'06 figures 8 and 9) as one SVG file, written without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from daemon.simulation.placement.run import Results

WIDTH, HEIGHT = 460, 340
LEFT, TOP, RIGHT, BOTTOM = 60, 40, 20, 60
COLOURS = ("#0072b2", "#d55e00", "#000000", "#e69f00", "#cc79a7", "#009e73", "#56b4e9")
DASHES = ("", "7 3", "", "2 2", "8 2 2 2", "4 4", "1 3")
#: Penalties in percent where the drawing ends, as in the paper.
USAGE_FROM, USAGE_TO = 0.0, 150.0
DELAY_FROM, DELAY_TO = -50.0, 250.0
POINTS = 200


def write(file: Path, results: Mapping[str, Results]) -> None:
    """Draw the cumulative distributions of both penalties. Raises OSError."""
    usage = {name: result.usage_penalty for name, result in results.items()}
    delay = {name: result.delay_penalty for name, result in results.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT + 20 * len(results) // 2}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _figure(0, "Network usage over the optimum's (%)", usage, USAGE_FROM, USAGE_TO),
        _figure(WIDTH, "Delay over the direct one (%)", delay, DELAY_FROM, DELAY_TO),
        _legend(list(results)),
        "</svg>",
    ]
    file.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _figure(x0: int, title: str, series: Mapping[str, Sequence[float]], first: float, last: float) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    left, bottom = x0 + LEFT, TOP + height

    def x(percent: float) -> float:
        return left + width * (percent - first) / (last - first)

    lines = [f'<rect x="{left}" y="{TOP}" width="{width}" height="{height}" fill="none" stroke="#888"/>']
    for tick in range(int(first), int(last) + 1, 50):
        lines.append(f'<line x1="{x(tick):.1f}" y1="{bottom}" x2="{x(tick):.1f}" y2="{bottom + 5}" stroke="#888"/>')
        lines.append(f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = bottom - height * share
        lines.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="#eee"/>')
        lines.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.1f}</text>')
    lines.append(f'<text x="{left + width / 2}" y="{bottom + 38}" text-anchor="middle">{escape(title)}</text>')
    lines.append(f'<text x="{left - 40}" y="{TOP - 12}">share of queries</text>')
    for number, values in enumerate(series.values()):
        ordered = sorted(100.0 * value for value in values)
        points = " ".join(
            f"{x(min(last, max(first, ordered[k]))):.1f},{bottom - height * (k + 1) / len(ordered):.1f}"
            for k in sorted({round(k * (len(ordered) - 1) / POINTS) for k in range(POINTS + 1)})
        )
        lines.append(f'<polyline points="{points}" fill="none" {_stroke(number)}/>')
    return "\n".join(lines)


def _stroke(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    return f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.8" stroke-dasharray="{dash}"'


def _legend(names: Sequence[str]) -> str:
    lines = []
    for number, name in enumerate(names):
        x, y = LEFT + 200 * (number % 4), HEIGHT - 4 + 20 * (number // 4)
        lines.append(f'<line x1="{x}" y1="{y}" x2="{x + 30}" y2="{y}" {_stroke(number)}/>')
        lines.append(f'<text x="{x + 38}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join(lines)
