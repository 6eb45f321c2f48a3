"""When a fragment looks for input: as soon as there is some, but not more often than it is asked to."""

from __future__ import annotations

import math
import threading
import time
from typing import Final

from spark_bridge.stopped_error import StoppedError

#: After a segment without rows one with rows often follows at once: a window closes in the batch after the one that has
#: moved the watermark. Whoever is there for rows waits so long for it, and saves a batch, in which it would be busy, or
#: planned already, when rows come.
ROWS_FOLLOW_S: Final = 2.0
#: The inputs of a fragment that starts are connected then: the first batch waits so long for what comes from there.
FIRST_WITHIN_S: Final = 0.5
#: Whoever is about to be stopped begins no batch for so long; then nobody seems to want that any more.
HELD_S: Final = 2.0
#: A batch that began so much later than it might have does not put off the next: after a move, say, there is something
#: to catch up with.
_LATE_S: Final = 0.5


class Arrivals:
    """Wakes the sources of one fragment when a segment has come to any of its ports. Thread-safe.

    Spark asks all sources of a query for news, one after the other and in an order of its own, and forms a batch from
    their answers. Whoever is asked while there is no news waits here, instead of being asked again and again. News at
    one port wakes that source too which was asked before: so each remembers what it has looked at.
    """

    def __init__(self, pause_s: float, *, for_rows: bool = False) -> None:
        """``pause_s`` is the least time between the starts of two batches with input, on average: one that is up to
        half a second late does not put off the next. ``for_rows``: nobody is waiting for anything else, so that
        segments without rows have time."""
        self._pause_s = pause_s
        self._for_rows = for_rows
        self._changed = threading.Condition()
        self._count = 0
        self._looked: dict[str, int] = {}
        #: Until then there is no further batch, and nobody need look for news.
        self._rests_until = -math.inf
        #: The first multiple of the pause, by the wall clock, after the last batch began.
        self._next_beat_s = -math.inf
        self._has_time_until = time.monotonic() + FIRST_WITHIN_S
        self._held_until = -math.inf
        #: Ports whose sources have not been asked since the last batch began.
        self._unasked: set[str] = set()
        #: One port has something for the next batch: no other one holds that up.
        self._found = False
        self._stopped = False

    def tell(self, rows: int, ended: bool = False) -> None:
        """A segment has come, with so many rows; ``ended``: the last one."""
        with self._changed:
            if rows or ended or not self._for_rows:
                self._has_time_until = -math.inf
            elif self._looked and all(looked == self._count for looked in self._looked.values()):
                self._has_time_until = time.monotonic() + ROWS_FOLLOW_S
            self._count += 1
            self._changed.notify_all()

    def batch_begins(self) -> None:
        """The next time that Spark asks, it is to be told at once what there is, or that there is nothing new: its
        watermark may have moved, and then it has a batch to run that closes windows, which must not wait for input.
        Input that is due goes with it: a batch may take long, however little it reads."""
        with self._changed:
            now_s = time.monotonic()
            self._unasked = set(self._looked)
            if self._found:
                self._rests_until = max(self._rests_until, now_s - _LATE_S) + self._pause_s
            if self._pause_s:
                self._next_beat_s = now_s + self._pause_s - time.time() % self._pause_s
            self._found = False

    def rest(self) -> None:
        """Return when the next batch may begin, if Spark looks at the source itself and takes what there is as soon as
        a batch has ended: at a multiple of the pause by the wall clock, as with Spark's own trigger."""
        with self._changed:
            while not self._stopped and (rest_s := self._next_beat_s - time.monotonic()) > 0.0:
                self._changed.wait(rest_s)

    def hold(self) -> None:
        """Nobody is answered for a while, unless :meth:`stop` comes: no further batch begins."""
        with self._changed:
            self._held_until = time.monotonic() + HELD_S

    def found(self) -> None:
        """The source that was asked last has something new to tell."""
        with self._changed:
            self._found = True

    def left(self, port: str) -> None:
        """The source of ``port``, which was asked last, has not told all that has come: there is more for it."""
        with self._changed:
            self._looked.pop(port, None)

    def wait(self, port: str) -> bool:
        """Return when the source of ``port`` should look at what there is (True), or should not (False).

        StoppedError if Spark is about to plan the batch that closes windows, and is to be stopped: it would be the
        first one after the next start, and with it the input that has come meanwhile would have to wait.
        """
        with self._changed:
            is_asked_anew = port in self._unasked
            self._unasked.discard(port)
            while not self._stopped and not self._found:
                if (held_s := self._held_until - time.monotonic()) > 0.0:
                    self._changed.wait(held_s)
                    continue
                is_news = self._looked.get(port) != self._count
                rest_s = max(self._rests_until, self._has_time_until) - time.monotonic()
                if is_news and rest_s <= 0.0:
                    break
                if is_asked_anew:
                    return False
                self._changed.wait(rest_s if is_news else None)
            if self._stopped and is_asked_anew:
                raise StoppedError
            self._looked[port] = self._count
            return not self._stopped

    def stop(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
