"""Leases on fragments: how an owner knows that nobody else runs its fragment now, sans-I/O.

(C. Gray, D. Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for Distributed File Cache Consistency", 1989.)
An owner asks every keeper to renew. A keeper that renews takes no part in a takeover of the fragment for ``lease_s`` of
its own clock from then on; a keeper that was restarted has forgotten what it granted, and takes no part in any for as
long. The owner counts from the moment at which it asked, and less: clocks may differ in rate by :data:`MAX_DRIFT`. It
holds the fragment while a majority of its grants last. A takeover needs a majority as well, so they never overlap.

When the keepers change (one at a time, :mod:`sbon.ownership.register`), at least one of those who grant the owner its
lease knows, and says so with its next grant; the owner then counts among the new ones. A keeper that has come takes
part in no takeover for ``lease_s`` either: until then what was granted among the old ones has ended.

Times are seconds of any monotonic clock of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: By how much the rates of two hosts' clocks may differ. Quartz is a thousand times better.
MAX_DRIFT = 0.02


class LeaseTable:
    """What one keeper has granted since it started, by fragment and generation.

    A keeper may have accepted a takeover that was never agreed on, and hear of the old generation again: so what was
    granted under one generation says nothing about another.
    """

    def __init__(self, lease_s: float, now_s: float) -> None:
        self._lease_s = lease_s
        self._silent_until_s = now_s + lease_s
        self._until_s: dict[tuple[str, int], float] = {}
        self._heard_s: dict[tuple[str, int], float] = {}
        self._joined_until_s: dict[str, float] = {}

    def be_silent(self, fragment_ids: Iterable[str], now_s: float) -> None:
        """Begin to look after these fragments, of which others may have granted leases."""
        self._joined_until_s = {key: until_s for key, until_s in self._joined_until_s.items() if now_s < until_s}
        self._joined_until_s |= dict.fromkeys(fragment_ids, now_s + self._lease_s)

    def grant(self, fragment_id: str, generation: int, now_s: float) -> None:
        """The owner under ``generation``, which it is as far as this keeper knows, may go on."""
        self._until_s[fragment_id, generation] = now_s + self._lease_s
        self._heard_s[fragment_id, generation] = now_s

    def permits(self, takeovers: Mapping[str, int], now_s: float) -> bool:
        """Whether fragments may have been taken over under these generations: no lower one is still leased here."""
        if takeovers and now_s < self._silent_until_s:
            return False  # what was granted before the start is not known
        if any(now_s < self._joined_until_s.get(fragment_id, now_s) for fragment_id in takeovers):
            return False
        return not any(
            now_s < until_s and generation < takeovers.get(fragment_id, 0)
            for (fragment_id, generation), until_s in self._until_s.items()
        )

    def overdue(self, owners: Mapping[str, int], now_s: float) -> list[str]:
        """The fragments whose owners have been silent for as long as a lease lasts.

        ``owners`` are all that this keeper knows, fragment id -> generation. Who is new among them has as long to be
        heard of first.
        """
        self._until_s = {key: until_s for key, until_s in self._until_s.items() if now_s < until_s}
        self._heard_s = {owner: self._heard_s.get(owner, now_s) for owner in owners.items()}
        return [
            owner[0]
            for owner, heard_s in self._heard_s.items()
            if now_s >= max(heard_s + self._lease_s, self._silent_until_s)
        ]


class Lease:
    """What an owner holds of one fragment under one generation."""

    def __init__(self, keepers: Iterable[str], lease_s: float) -> None:
        self._granted_s = dict.fromkeys(keepers, float("-inf"))
        self._lasts_s = lease_s * (1.0 - MAX_DRIFT)

    def change_keepers(self, keepers: Iterable[str]) -> None:
        """Count among these from now on; what those who stay have granted holds."""
        self._granted_s = {keeper: self._granted_s.get(keeper, float("-inf")) for keeper in keepers}

    def granted(self, keeper: str, asked_at_s: float) -> None:
        """``keeper`` has granted what it was asked for at ``asked_at_s``."""
        if keeper in self._granted_s:
            self._granted_s[keeper] = max(self._granted_s[keeper], asked_at_s)

    @property
    def until_s(self) -> float:
        """Until when a majority's grants last."""
        quorum = len(self._granted_s) // 2 + 1
        return sorted(self._granted_s.values(), reverse=True)[quorum - 1] + self._lasts_s

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s
