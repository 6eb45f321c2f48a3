"""What happens on this node, for whoever wants to watch: a bounded history that any number of followers read.

A follower keeps a place in the history, not a queue of its own: one that is too slow misses the oldest events and is
told how many, and costs nothing when it goes away.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import trio

from daemon.control.messages import Event as Event

log = logging.getLogger("sbon.events")

HISTORY = 2000
#: Kind of the event that a follower gets in place of those that it was too slow for; field ``count``.
MISSED = "missed"


class Events:
    """The history of one node."""

    def __init__(self, node: str, clock: Callable[[], float] = time.time, history: int = HISTORY) -> None:
        self._node = node
        self._clock = clock
        self._history: deque[Event] = deque(maxlen=history)
        self._next_sequence = 0
        self._news = trio.Event()

    def publish(self, kind: str, **fields: Any) -> None:
        """Note that something happened. ``fields`` are plain values that JSON can hold; times and sizes with units."""
        event = Event(self._next_sequence, self._clock(), self._node, kind, fields)
        self._next_sequence += 1
        self._history.append(event)
        log.info("%s", kind, extra={"fields": fields})
        self._news.set()
        self._news = trio.Event()

    def history(self) -> list[Event]:
        """The latest events, oldest first."""
        return list(self._history)

    def follow(self, *, from_start: bool = False, forever: bool = True) -> Follower:
        """Events from now on, or from the start of the history: ``async for event in events.follow(): ...``.

        Unless ``forever``, it ends with the latest event.
        """
        oldest = self._history[0].sequence if self._history else self._next_sequence
        start = oldest if from_start else self._next_sequence
        return Follower(self, start, None if forever else self._next_sequence)

    async def _next_from(self, sequence: int) -> Event:
        while sequence >= self._next_sequence:
            await self._news.wait()
        oldest = self._history[0].sequence
        if sequence < oldest:
            return Event(oldest - 1, self._clock(), self._node, MISSED, {"count": oldest - sequence})
        return self._history[sequence - oldest]


class Follower(AsyncIterator[Event]):
    """One reader's place in the history, up to ``end`` (a sequence number) if there is one."""

    def __init__(self, events: Events, sequence: int, end: int | None) -> None:
        self._events = events
        self._sequence = sequence
        self._end = end

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        if self._end is not None and self._sequence >= self._end:
            raise StopAsyncIteration
        event = await self._events._next_from(self._sequence)
        self._sequence = event.sequence + 1
        return event
