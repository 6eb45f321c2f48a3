"""Where to leave word of a name, and where to look for it, when nobody knows everybody.

A name belongs to one of a few *shelves*, and each shelf stands at a place of the latency space that follows from its
number alone. The nodes nearest to that place keep the notices on it: whoever has a stream searches for them and leaves
a notice, whoever needs a stream searches for the same place and finds them (S. Ratnasamy et al., "GHT: a geographic
hash table for data-centric storage", WSNA 2002, over network coordinates instead of positions). A notice is left again
and again, because nodes come and go and places drift, and is forgotten when that ends.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Final

from overlay.identity import NodeId
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate

#: Few enough to look at all of them for a list of everything; each of them is searched for by every owner.
SHELVES: Final = 16
#: Nodes that keep the notices of a shelf.
HOLDERS: Final = 3
#: The places of shelves are within this distance of the origin, in ms: where nodes are.
RADIUS_MS: Final = 60.0
#: How long a notice lasts, and how often it is left anew.
NOTICE_S: Final = 360.0
RENEW_S: Final = 120.0
#: Notices that one node keeps at most, and that one node may leave at another.
MAX_NOTICES: Final = 5000
MAX_TOPICS: Final = 200
#: A longer name is not kept.
MAX_TOPIC: Final = 200


def shelf_of(name: str) -> int:
    """Names are compared without case."""
    return int.from_bytes(hashlib.blake2b(name.lower().encode(), digest_size=2).digest()) % SHELVES


def place_of(shelf: int, dimensions: int) -> Coordinate:
    """The same on all nodes of an overlay: a direction and a distance from the bits of a hash."""
    bits = hashlib.blake2b(f"shelf {shelf}".encode(), digest_size=4 * (dimensions + 1)).digest()
    units = [int.from_bytes(bits[at : at + 4]) / 2**32 for at in range(0, len(bits), 4)]
    direction = [2.0 * unit - 1.0 for unit in units[1:]]
    length = math.hypot(*direction) or 1.0
    return Coordinate(tuple(RADIUS_MS * units[0] * part / length for part in direction), 0.0, 0.0)


class Board:
    """The notices that a node keeps for others. Bounded; what is not left anew is forgotten."""

    def __init__(self) -> None:
        #: By owner: who that is, what it has, and until when that counts.
        self._notices: dict[NodeId, tuple[NodeRecord, frozenset[str], float]] = {}

    def leave(self, owner: NodeRecord, topics: Iterable[str], now_s: float) -> bool:
        """All that ``owner`` has on the shelves that are here; False if there is no room."""
        self._forget(now_s)
        names = frozenset(topic.lower() for topic in topics if len(topic) <= MAX_TOPIC)
        if not names:
            self._notices.pop(owner.node_id, None)
            return True
        others = sum(len(known) for node_id, (_, known, _) in self._notices.items() if node_id != owner.node_id)
        if len(names) > MAX_TOPICS or others + len(names) > MAX_NOTICES:
            return False
        self._notices[owner.node_id] = owner, names, now_s + NOTICE_S
        return True

    def find(self, topics: Iterable[str] | None, now_s: float) -> list[NodeRecord]:
        """Those who have something of that name; None: all who have anything."""
        self._forget(now_s)
        names = None if topics is None else {topic.lower() for topic in topics}
        return [owner for owner, known, _ in self._notices.values() if names is None or known & names]

    def _forget(self, now_s: float) -> None:
        for node_id in [node_id for node_id, (*_, until_s) in self._notices.items() if now_s >= until_s]:
            del self._notices[node_id]
