"""What each fragment costs of the host's processors.

Fragments share one Java machine and one Python process, and much of a small batch is neither a task of Spark's nor
anything that Spark counts. So what the engine's processes have used, all of them, is divided among its fragments by the
time that each has spent in batches: the parts add up to the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from spark_bridge.process_tree import tree_of
from spark_bridge.statistics import FragmentMeters

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessorTime:
    """Of the processes of this engine, divided again and again."""

    def __init__(self, spent_s: float) -> None:
        """``spent_s``: what was used before there was any fragment; it is nobody's."""
        self._spent_s = spent_s
        self._busy_s: dict[FragmentMeters, float] = {}

    def is_due(self, fragments: Iterable[FragmentMeters]) -> bool:
        """Whether anybody has done anything since the last division."""
        return any(each.busy_s > self._busy_s.get(each, 0.0) for each in fragments)

    def divide(self, fragments: Iterable[FragmentMeters], spent_s: float, now: float) -> None:
        """``spent_s`` is used by now, monotonic time ``now``: what was used since the last time is shared out."""
        busy_s = {each: each.busy_s for each in fragments}
        shares = {each: total_s - self._busy_s.get(each, 0.0) for each, total_s in busy_s.items()}
        whole = sum(shares.values())
        used_s = max(0.0, spent_s - self._spent_s)
        if whole > 0.0:
            for each, share in shares.items():
                each.processor_s.add(used_s * share / whole, now)
        self._busy_s, self._spent_s = busy_s, spent_s


def spent_by_tree_s(pid: int) -> float:
    """Processor seconds of the process ``pid`` and its descendants, those that have ended and been waited for too."""
    ticks = sum(sum(map(int, said[11:15])) for said in tree_of(pid).values())
    return ticks / _TICKS_PER_S
