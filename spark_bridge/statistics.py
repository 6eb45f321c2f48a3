"""Smoothed rates, measured at the links, and what is measured of a fragment as a whole."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

SMOOTHING_S = 10.0
#: What an external stream brings is wanted by queries to come, which will read it for long: bursts do not count.
STREAM_SMOOTHING_S = 600.0


@dataclass(slots=True)
class RateMeter:
    """Exponentially weighted rate of ``count`` per second with a time constant of ``smoothing_s``. Thread-safe.

    The estimate divides by the weight of the time that was really observed, so it is right from the first seconds on
    instead of creeping up from zero.
    """

    started_at: float
    smoothing_s: float = SMOOTHING_S
    total: float = 0
    _weighted: float = 0.0
    _updated_at: float = field(default=0.0)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._updated_at = self.started_at

    def add(self, count: float, now: float) -> None:
        """``count`` more (rows, bytes, seconds of work) at monotonic time ``now`` (s)."""
        with self._lock:
            self._decay(now)
            self._weighted += count
            self.total += count

    def per_s(self, now: float) -> float:
        """The rate at ``now``."""
        with self._lock:
            self._decay(now)
            observed = 1.0 - math.exp(-max(now - self.started_at, 0.5) / self.smoothing_s)
            return self._weighted / (self.smoothing_s * observed)

    def settled_per_s(self, now: float) -> float | None:
        """The rate, once it was watched for long enough to mean something, and there was anything."""
        return self.per_s(now) if now - self.started_at >= SMOOTHING_S and self.total else None

    def _decay(self, now: float) -> None:
        elapsed_s = max(now - self._updated_at, 0.0)
        self._weighted *= math.exp(-elapsed_s / self.smoothing_s)
        self._updated_at = max(now, self._updated_at)


class FragmentMeters:
    """Of one fragment since its query was started at monotonic time ``now`` (s)."""

    def __init__(self, now: float) -> None:
        self.bytes_out = RateMeter(now)
        self.rows_out = RateMeter(now)
        #: What a source reads, before it filters.
        self.stream_rows = RateMeter(now, STREAM_SMOOTHING_S)
        #: Rows that a source has dropped because they came too late.
        self.late_rows = 0
        #: Seconds that were spent in batches, and, as its share of them all, of processors
        #: (spark_bridge.processor_time).
        self.busy_s = 0.0
        self.processor_s = RateMeter(now)
