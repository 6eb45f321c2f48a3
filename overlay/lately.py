"""How often something happened lately. Others have met the same: what a node sees around itself tells how much of what
it has heard is still so."""

from __future__ import annotations

from collections import deque
from typing import Final

#: *Lately* is so long, and at most so many are counted.
LATELY_S: Final = 60.0
MAX_COUNTED: Final = 10


class Lately:
    """When something happened, the last few times."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=MAX_COUNTED)

    def happened(self, now: float) -> None:
        self._at.append(now)

    def times(self, now: float) -> int:
        return sum(is_lately(at, now) for at in self._at)


def is_lately(at: float, now: float) -> bool:
    return now - at <= LATELY_S
