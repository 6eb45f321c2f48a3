"""When a fragment lets rows out, so that it can be stopped at the best moment: just after it did.

Whoever waits for its results sees a move as the time between two of them. Windows close once a second, say, and a
fragment that stops in the middle has been silent for half of that already.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

#: The usual time between two outputs is the median of so many.
_REMEMBERED = 8
_LEAST = 2
#: Who lets out rows less often is not waited for, and of the others nobody for longer than so many usual times.
_OFTEN_S = 6.0  # a batch over a gigabyte of windows takes three
_PATIENCE = 4.0


class OutputRhythm:
    """Of one fragment. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiters = 0
        #: A batch that ended since somebody waits has rows.
        self._awaited_come = False
        self._times_s: deque[float] = deque(maxlen=_REMEMBERED + 1)
        self._changed = threading.Condition()

    def rows_come(self) -> bool:
        """A batch has rows, which are let out as soon as its state is safe. Whether somebody waits for such, to stop
        the fragment then: no other batch is to begin, which would have to end first."""
        with self._changed:
            self._awaited_come = self._waiters > 0
            return self._awaited_come

    def rows_left(self) -> None:
        """Rows were let out just now."""
        with self._changed:
            self._times_s.append(self._clock())
            self._changed.notify_all()

    def wait_for_rows(self) -> bool:
        """Return when rows of a batch that ends from now on are let out, if that is soon; at once or in vain otherwise.
        Whether they were."""
        with self._changed:
            give_up_s = self._clock() + self.due_within_s()
            self._waiters += 1
            self._awaited_come = False
            try:
                while (wait_s := give_up_s - self._clock()) > 0.0 and self._changed.wait(wait_s):
                    if self._awaited_come:
                        return True
                return False
            finally:
                self._waiters -= 1

    def due_within_s(self) -> float:
        """For how long it is worth waiting for the next rows; not at all if that is not positive."""
        times_s = list(self._times_s)
        if len(times_s) <= _LEAST:
            return 0.0
        usual_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(times_s))
        if usual_s > _OFTEN_S:
            return 0.0
        return times_s[-1] + _PATIENCE * usual_s - self._clock()
