"""A relay: who pulls a link log keeps its newest segments for other readers near by, so that they cross the sea once.

It has no state of its own. Cursors are those of the readers, at the log itself, where they acknowledge; whoever does
not find here what is next for it, or hears nothing, pulls it there. So only the way of the bytes depends on a relay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

MAX_BYTES = 16 * 1024 * 1024
#: Nothing is kept any more when nobody has asked for so long.
KEPT_S = 30.0


class NotHereError(Exception):
    """What is asked for came before anything was kept, or is kept no longer."""


class Relay:
    """Of one producer that is pulled here. Thread-safe."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._segments: dict[int, bytes] = {}
        self._bytes = 0
        self._next: int | None = None
        self._asked_at: float | None = None
        self._closed = False

    def keep(self, batch_id: int, segment: bytes) -> None:
        """It has come; it is kept if there are readers."""
        with self._changed:
            self._next = batch_id + 1
            if self._asked_at is None or time.monotonic() - self._asked_at > KEPT_S:
                self._segments.clear()
                self._bytes = 0
                return
            self._segments[batch_id] = segment
            self._bytes += len(segment)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._segments.pop(next(iter(self._segments))))
            self._changed.notify_all()

    def segments_from(self, batch_id: int, wait_s: float) -> Iterator[bytes]:
        """Whole segments from ``batch_id`` on, waiting up to ``wait_s`` for each; ends when none came.

        Raises NotHereError.
        """
        while True:
            with self._changed:
                self._asked_at = time.monotonic()
                if not self._has(batch_id):
                    self._changed.wait(wait_s)
                if not self._has(batch_id):
                    return
                data = self._segments[batch_id]
            yield data
            batch_id += 1

    def close(self) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has(self, batch_id: int) -> bool:
        """NotHereError if it will not come here, either."""
        if self._closed or (batch_id not in self._segments and self._next is not None and batch_id < self._next):
            raise NotHereError(f"segment {batch_id} is not kept here")
        return batch_id in self._segments
