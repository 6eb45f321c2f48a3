"""What the demo shows while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daemon.demo.usage import TrueNetwork

MAX_EVENTS = 10


@dataclass(frozen=True, slots=True)
class FragmentRow:
    """One fragment as shown: where it is and what flows into it."""

    fragment_id: str
    kind: str
    site: str
    state: str
    input_bytes_per_s: float
    input_rows_per_s: float
    output_rows: int


@dataclass(slots=True)
class Scene:
    """Everything that is shown; the conductor of the demo keeps it up to date. Usages are bytes in transit."""

    network: TrueNetwork
    phase: str = "starting"
    progress: float = 0.0
    fragments: tuple[FragmentRow, ...] = ()
    usage_now: float | None = None
    usage_at_consumer: float | None = None
    usage_if_stayed: float | None = None
    events: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started


class View(Protocol):
    """A context manager; ``say`` is called for what happens, ``refresh`` a few times a second."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def say(self, line: str) -> None: ...
    def refresh(self) -> None: ...


class PlainView:
    """Lines on stderr: what happens, and every ten seconds how it stands."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._last_summary_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def say(self, line: str) -> None:
        print(f"[{self._scene.elapsed_s:6.1f} s] {line}", file=sys.stderr, flush=True)

    def refresh(self) -> None:
        scene = self._scene
        if scene.usage_now is None or scene.elapsed_s - self._last_summary_s < 10:
            return
        self._last_summary_s = scene.elapsed_s
        where = ", ".join(f"{row.kind} at {row.site}" for row in scene.fragments if row.kind not in ("source", "sink"))
        rows = sum(row.input_rows_per_s for row in scene.fragments if row.kind == "join")
        self.say(
            f"{scene.progress:4.0%} of the month; {where}; {rows:.0f} rows/s into the join;"
            f" network usage {usage_text(scene.usage_now)}, at the consumer {usage_text(scene.usage_at_consumer)}"
        )


class TerminalView:
    """The live picture."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._live = Live(console=Console(), refresh_per_second=4, get_renderable=lambda: draw(scene))

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        self._scene.events.append(f"{self._scene.elapsed_s:6.1f} s  {line}")

    def refresh(self) -> None:
        pass  # Live draws by itself


def draw(scene: Scene) -> Group:
    """The picture of ``scene``: overlay, placement, network usage, events."""
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=3)
    head.add_column(ratio=2)
    head.add_column(justify="right")
    bar = ProgressBar(total=1.0, completed=scene.progress)
    head.add_row(Text(scene.phase, style="bold"), bar, f"{scene.elapsed_s:.0f} s")
    middle = Table.grid(expand=True, padding=(0, 1))
    middle.add_column(ratio=1)
    middle.add_column(ratio=1)
    middle.add_row(
        Panel(_overlay(scene), title="overlay: round trips in ms"),
        Panel(_usage(scene), title="network usage: bytes in transit"),
    )
    events = Text("\n".join(scene.events) or "...", no_wrap=True, overflow="ellipsis")
    return Group(
        head, middle, Panel(_placement(scene), title="placement and rates"), Panel(events, title="what happens")
    )


def usage_text(usage: float | None) -> str:
    return "-" if usage is None else f"{usage:,.0f} B"


def _overlay(scene: Scene) -> Table:
    sites = scene.network.scenario.sites
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for site in sites:
        table.add_column(site.name[:5], justify="right")
    for site in sites:
        cells = []
        for other in sites:
            slow = frozenset((site.name, other.name)) in scene.network.slow
            value = f"{scene.network.rtt_ms(site.name, other.name):.0f}" if site is not other else "·"
            cells.append(Text(value, style="bold red" if slow else ""))
        table.add_row(site.name, *cells)
    return table


def _usage(scene: Scene) -> Table:
    largest = max((scene.usage_now or 0.0, scene.usage_at_consumer or 0.0, scene.usage_if_stayed or 0.0, 1.0))
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(ratio=1)
    for label, usage, style in (
        ("now", scene.usage_now, "green"),
        ("all at the consumer", scene.usage_at_consumer, "yellow"),
        ("had it stayed", scene.usage_if_stayed, "red"),
    ):
        bar = ProgressBar(total=largest, completed=usage or 0.0, complete_style=style, finished_style=style)
        table.add_row(label, usage_text(usage), bar)
    return table


def _placement(scene: Scene) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    for heading in ("fragment", "kind", "at", "state"):
        table.add_column(heading)
    for heading in ("rows/s in", "kB/s in", "rows out"):
        table.add_column(heading, justify="right")
    for row in scene.fragments:
        pinned = row.kind in ("source", "sink")
        table.add_row(
            row.fragment_id,
            row.kind,
            Text(row.site, style="" if pinned else "bold green"),
            row.state,
            f"{row.input_rows_per_s:,.0f}",
            f"{row.input_bytes_per_s / 1000:,.1f}",
            f"{row.output_rows:,}",
        )
    return table
