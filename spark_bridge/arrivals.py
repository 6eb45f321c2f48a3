"""When a fragment looks for input: as soon as there is some, but not more often than it is asked to."""

from __future__ import annotations

import threading
import time


class Arrivals:
    """Wakes the sources of one fragment when a segment has come to any of its ports. Thread-safe.

    Spark asks all sources of a query for news, one after the other and in an order of its own, and forms a batch from
    their answers. Whoever is asked while there is no news waits here, instead of being asked again and again. News at
    one port wakes that source too which was asked before: so each remembers what it has looked at.
    """

    def __init__(self, pause_s: float) -> None:
        """``pause_s`` is the least time between the starts of two batches."""
        self._pause_s = pause_s
        self._changed = threading.Condition()
        self._count = 0
        self._looked: dict[str, int] = {}
        self._not_before = 0.0
        #: Ports whose sources have not been asked since the last batch began.
        self._unasked: set[str] = set()
        #: One port has something for the next batch: no other one holds that up.
        self._found = False
        self._stopped = False

    def tell(self) -> None:
        """A segment has come."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def batch_begins(self) -> None:
        """The next time that Spark asks, it is to be told at once that there is nothing new: its watermark may have
        moved, and then it has a batch without input to run, which must not wait for input."""
        with self._changed:
            self._unasked = set(self._looked)
            self._found = False
            self._not_before = time.monotonic() + self._pause_s

    def found(self) -> None:
        """The source that was asked last has something new to tell."""
        with self._changed:
            self._found = True

    def wait(self, port: str) -> bool:
        """Return when the source of ``port`` should look at what there is (True), or should not (False)."""
        with self._changed:
            if port in self._unasked:
                self._unasked.discard(port)
                return False
            while not self._stopped and not self._found:
                rest_s = self._not_before - time.monotonic()
                if self._looked.get(port) != self._count and rest_s <= 0.0:
                    break
                self._changed.wait(rest_s if rest_s > 0.0 else None)
            self._looked[port] = self._count
            return not self._stopped

    def stop(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
