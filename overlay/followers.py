"""Who has asked this node in a search that may be under way yet.

What a search finds is to be true when it ends: a host that moves, or whose load changes, after it has answered says so
to those that asked it. Searches take some seconds, and where hosts come and go new ones move in each of them.
"""

from __future__ import annotations

from typing import Final

from overlay.identity import NodeId

#: Nearly all searches take less, also where hosts die.
FOLLOWED_S: Final = 15.0
#: The latest stay. Each of a dozen strangers may have one search under way, and a few more.
MAX_FOLLOWERS: Final = 16


class Followers:
    """Askers and the ids of their searches."""

    def __init__(self) -> None:
        #: When they asked, the latest last.
        self._asked_at: dict[tuple[NodeId, int], float] = {}

    def add(self, asker: NodeId, search_id: int, now: float) -> None:
        self._asked_at.pop((asker, search_id), None)
        self._asked_at[asker, search_id] = now
        if len(self._asked_at) > MAX_FOLLOWERS:
            del self._asked_at[next(iter(self._asked_at))]

    def forget(self, asker: NodeId) -> None:
        """There is no session with it any more."""
        for search in [search for search in self._asked_at if search[0] == asker]:
            del self._asked_at[search]

    def to_tell(self, now: float) -> list[tuple[NodeId, int]]:
        """Askers and searches, those that are over by now left out."""
        while self._asked_at and now - next(iter(self._asked_at.values())) > FOLLOWED_S:
            del self._asked_at[next(iter(self._asked_at))]
        return list(self._asked_at)
