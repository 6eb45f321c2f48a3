"""A token bucket: so many of something in the long run, and so many at once."""

from __future__ import annotations


class Bucket:
    """Tokens, of bytes or of anything: ``rate_per_s`` of them, saved up to ``capacity``; full at first."""

    __slots__ = ("_at", "_capacity", "_rate_per_s", "_saved")

    def __init__(self, rate_per_s: float, capacity: float, now: float) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = self._saved = capacity
        self._at = now

    def take(self, count: float, now: float) -> bool:
        """Whether there are ``count`` tokens now; if so, they are spent."""
        saved = self._saved + max(0.0, now - self._at) * self._rate_per_s
        self._at = max(self._at, now)
        self._saved = min(self._capacity, saved)
        if count > self._saved:
            return False
        self._saved -= count
        return True
