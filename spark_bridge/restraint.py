"""While an engine does nothing but rehearse, it leaves half of the host's processors to others.

A rehearsal compiles and starts what is about to come, as fast as it can, on whatever processors there are; what runs on
this host in other engines, or is what others observe, would rest for as long. Priorities are no way: who has lowered
its own may not raise it again. Processors may be given up and taken back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spark_bridge.process_tree import threads_of_tree


class Restraint:
    """Of this process and its descendants (Java is one). Where the system knows no such thing nothing happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rehearsals = 0
        self._all = processors_of(os.getpid())

    @contextmanager
    def rehearsing(self, is_alone: Callable[[], bool]) -> Iterator[None]:
        """Inside the block half of the processors are left to others, unless :meth:`lift` is called. ``is_alone()``:
        whether nothing else goes on in this engine; or the block changes nothing."""
        with self._lock:
            is_restrained = is_alone()
            if is_restrained:
                self._rehearsals += 1
                if self._rehearsals == 1:
                    keep_to(half_of(self._all))
        try:
            yield
        finally:
            if is_restrained:
                with self._lock:
                    if self._rehearsals == 1:
                        keep_to(self._all)
                    self._rehearsals = max(0, self._rehearsals - 1)

    def lift(self) -> None:
        """From now on there is more than rehearsals, and ``is_alone()`` says so already."""
        with self._lock:
            if self._rehearsals > 0:
                keep_to(self._all)
                self._rehearsals = 0


def processors_of(thread_id: int) -> frozenset[int]:
    """Those that a thread may run on; none if that cannot be told."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return frozenset(os.sched_getaffinity(thread_id))


def half_of(processors: frozenset[int]) -> frozenset[int]:
    return frozenset(sorted(processors)[: max(1, len(processors) // 2)])


def keep_to(processors: frozenset[int]) -> None:
    """Every thread of this process and its descendants runs on these only. One that is started meanwhile has those of
    the thread that started it: so it is looked again until there is none that is not told."""
    told: set[int] = set()
    while processors and (left := threads_of_tree(os.getpid()) - told):
        for thread_id in left:
            with suppress(OSError):  # it has just ended
                os.sched_setaffinity(thread_id, processors)
        told |= left
