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
    """The percentile (nearest rank) of the last samples of one link, in ms."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
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
        rank = math.ceil(PERCENTILE * len(self._recent))
        self.value = sorted(self._recent)[rank - 1]
