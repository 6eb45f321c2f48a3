"""How far a long run is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

#: Where nobody watches, a line this often.
LINE_EVERY_S = 15.0


class Progress(Protocol):
    def show(self, done: float, total: float, what: str) -> None:
        """``done`` of ``total`` (in any unit), and one short word on the state of affairs."""


class Lines:
    """At most one line each :data:`LINE_EVERY_S`, none for a run shorter than that."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + LINE_EVERY_S

    def show(self, done: float, total: float, what: str) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + LINE_EVERY_S
            print(f"{100.0 * done / total:3.0f} %  {what}", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """The one that suits where stderr goes."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0, what="")

        class Bar:
            def show(self, done: float, total: float, what: str) -> None:
                bar.update(task, completed=done / total, what=what)

        yield Bar()
