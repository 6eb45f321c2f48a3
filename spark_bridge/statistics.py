"""Smoothed rates, measured at the links."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

SMOOTHING_S = 10.0


@dataclass(slots=True)
class RateMeter:
    """Exponentially weighted rate of ``count`` per second with a time constant of SMOOTHING_S. Thread-safe.

    The estimate divides by the weight of the time that was really observed, so it is right from the first seconds on
    instead of creeping up from zero.
    """

    started_at: float
    total: int = 0
    _weighted: float = 0.0
    _updated_at: float = field(default=0.0)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._updated_at = self.started_at

    def add(self, count: int, now: float) -> None:
        """``count`` more at monotonic time ``now`` (s)."""
        with self._lock:
            self._decay(now)
            self._weighted += count
            self.total += count

    def per_s(self, now: float) -> float:
        """The rate at ``now``."""
        with self._lock:
            self._decay(now)
            observed = 1.0 - math.exp(-max(now - self.started_at, 0.5) / SMOOTHING_S)
            return self._weighted / (SMOOTHING_S * observed)

    def _decay(self, now: float) -> None:
        elapsed_s = max(now - self._updated_at, 0.0)
        self._weighted *= math.exp(-elapsed_s / SMOOTHING_S)
        self._updated_at = max(now, self._updated_at)
