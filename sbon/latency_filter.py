"""A moving percentile over the round trips of one link: its steady base line, deaf to load and congestion.

Source: SBON ICDE'06 section 3.1.1 (and its reference 18): the 20th percentile of the last 10 samples keeps a latency
space stable and still follows changed routes.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

PERCENTILE: Final = 0.2
WINDOW: Final = 10


class PercentileFilter:
    """The ``percentile`` (nearest rank) of the last ``window`` samples of one link, in ms."""

    def __init__(self, percentile: float = PERCENTILE, window: int = WINDOW) -> None:
        """Raises ValueError unless 0 < percentile <= 1 and window >= 1."""
        if not 0.0 < percentile <= 1.0 or window < 1:
            raise ValueError(f"a percentile of {percentile} over {window} samples")
        self._percentile = percentile
        self._recent: deque[float] = deque(maxlen=window)
        #: Samples seen in all, not only those still in the window.
        self.samples = 0
        #: The filtered latency in ms, None before the first sample.
        self.value: float | None = None

    def add(self, ms: float) -> None:
        """Take one sample. Raises ValueError if it is not finite: NaN would stay and spread."""
        if not math.isfinite(ms):
            raise ValueError(f"a sample of {ms} ms")
        self._recent.append(ms)
        self.samples += 1
        rank = math.ceil(self._percentile * len(self._recent))
        self.value = sorted(self._recent)[rank - 1]

    @property
    def largest(self) -> float | None:
        """The slowest of the recent samples in ms: what a time-out must allow for."""
        return max(self._recent, default=None)

    def clear(self) -> None:
        """Forget the window (the node at the other end is another one now); the count goes on."""
        self._recent.clear()
        self.value = None
