"""The keepers of one register among themselves: when one is lost, another one takes its place, sans-I/O.

What is decided here is only what to propose, by what one keeper has heard of the others; that it is safe whoever
proposes it is the business of :mod:`sbon.ownership.register`. First the lost one goes, then a new one comes: in between
the others all have to agree, as they had to since it was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


class Company:
    """When one keeper has heard of the others last. Times are seconds of any monotonic clock of its host."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard_s: dict[str, float] = {}

    def heard(self, keeper: str, now_s: float) -> None:
        self._heard_s[keeper] = now_s

    def lost(self, keepers: Iterable[str], now_s: float) -> set[str]:
        """Those of all the ``keepers`` that it has to do with of whom nothing was heard for too long."""
        self._heard_s = {keeper: self._heard_s.get(keeper, now_s) for keeper in keepers}
        return {keeper for keeper, heard_s in self._heard_s.items() if now_s - heard_s > self._patience_s}


def next_keepers(
    keepers: tuple[str, ...], lost: Collection[str], candidates: Sequence[str], wanted: int
) -> tuple[str, ...] | None:
    """The set to propose in place of ``keepers``, None if it may stay. ``candidates``: the best first.

    A single keeper stays alone: it has promised nobody anything that others would have to know of.
    """
    if len(keepers) < 2:
        return None
    new = next((node for node in candidates if node not in keepers and node not in lost), None)
    if new is None:
        return None
    if len(keepers) < wanted:
        return (*keepers, new)
    gone = next((keeper for keeper in keepers if keeper in lost), None)
    return None if gone is None else tuple(keeper for keeper in keepers if keeper != gone)
