"""Nodes that a node knows of without being linked with them: one-way, from what others say, without heartbeats.

A link takes two, and whoever is near to many is soon full; yet a search has to get to it. So a node remembers some
others beside its neighbours, and names them to whoever asks. These are worth it:

* those that nobody kept who is nearer to us *covers*, that is, is nearer to them than we are (the pruning of
  S. J. Subramanya et al., "DiskANN", NeurIPS 2019, algorithm 2, with alpha = 1). With them there is a way to each node
  along which every step comes nearer, even into a cluster behind long access lines whose hubs have no link left;
* the nearest, and the nearest idle ones: what searches look for in our surroundings.

What is heard is as old as its source: everybody says with a record how long ago its node surely was alive and at that
place, and what is older than ``OLDEST_S`` is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from overlay.config import MAX_POINTERS
from overlay.identity import NodeId
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.cost_space import LOAD_SCALE_MS

#: So many places are for those that nobody covers, and for the nearest, busy or not. The others are for idle ones.
UNCOVERED = 8
NEAREST = 6
#: A node that nothing was heard of for so long is forgotten; one of so long ago may be asked whether it is there.
OLDEST_S = 150.0
DOUBTFUL_S = 40.0
#: An operator's host: what counts is the round trip to it, and twice its one-way load.
LOAD_MS = 2.0 * LOAD_SCALE_MS


class Known(Protocol):
    """A neighbour, or a pointer."""

    record: NodeRecord
    away_ms: float


@dataclass(slots=True)
class Pointer:
    """One node. ``alive_at``: when it surely was alive, and as its record says, by our clock."""

    record: NodeRecord
    packed: bytes
    away_ms: float
    alive_at: float
    covered: bool = True

    @property
    def worth_ms(self) -> float:
        """Less is better: how far away it seems to whoever wants an idle host."""
        return self.away_ms + LOAD_MS * min(1.0, self.record.load)


class Pointers:
    """The table of them; at most MAX_POINTERS. ``neighbours`` is asked for wherever they may cover somebody."""

    def __init__(self) -> None:
        self.table: dict[NodeId, Pointer] = {}

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.table

    def hear(self, node_id: NodeId, alive_at: float) -> None:
        """It was alive then, and what we know of it was right."""
        pointer = self.table.get(node_id)
        if pointer is not None and alive_at > pointer.alive_at:
            pointer.alive_at = alive_at

    def consider(
        self,
        record: NodeRecord,
        packed: bytes,
        alive_at: float,
        here: Coordinate,
        neighbours: Iterable[Known],
    ) -> None:
        """Somebody told us of a node that is no neighbour: remember it if it is worth it."""
        node_id = record.node_id
        known = self.table.get(node_id)
        if known is not None:
            if record.supersedes(known.record):
                known.record, known.packed, known.away_ms = record, packed, here.rtt_ms(record.coordinate)
            if record.version == known.record.version:
                known.alive_at = max(known.alive_at, alive_at)
            return
        pointer = Pointer(record, packed, here.rtt_ms(record.coordinate), alive_at)
        pointer.covered = self._is_covered(pointer, neighbours)
        self.table[node_id] = pointer
        if not pointer.covered:
            self._cover_by(pointer)
        self.shrink(MAX_POINTERS)

    def _is_covered(self, pointer: Pointer, neighbours: Iterable[Known]) -> bool:
        return _covers(neighbours, pointer) or _covers(
            (other for other in self.table.values() if not other.covered and other is not pointer), pointer
        )

    def _cover_by(self, pointer: Pointer) -> None:
        place = pointer.record.coordinate
        for other in self.table.values():
            if not other.covered and other.away_ms > pointer.away_ms:
                other.covered = place.rtt_ms(other.record.coordinate) < other.away_ms

    def shrink(self, most: int) -> None:
        """Forget the least worth until there are at most so many."""
        while len(self.table) > max(0, most):
            self._drop_one()

    def _drop_one(self) -> None:
        """The least worth of those that are not among the nearest and that others cover; if there is none, the
        farthest."""
        by_distance = sorted((known.away_ms, node_id) for node_id, known in self.table.items())
        uncovered = [node_id for _, node_id in by_distance if not self.table[node_id].covered]
        kept = {node_id for _, node_id in by_distance[:NEAREST]} | set(uncovered[:UNCOVERED])
        others = [(known.worth_ms, node_id) for node_id, known in self.table.items() if node_id not in kept]
        del self.table[max(others)[1] if others else by_distance[-1][1]]

    def refresh(self, here: Coordinate, neighbours: Collection[Known], now: float) -> None:
        """To be called now and then: forget what is too old, and see anew who is covered."""
        for node_id in [node_id for node_id, known in self.table.items() if now - known.alive_at > OLDEST_S]:
            del self.table[node_id]
        for pointer in self.table.values():
            pointer.away_ms, pointer.covered = here.rtt_ms(pointer.record.coordinate), True
        for pointer in sorted(self.table.values(), key=lambda known: (known.away_ms, known.record.node_id)):
            pointer.covered = self._is_covered(pointer, neighbours)

    def most_doubtful(self, now: float, but: Callable[[NodeId], bool]) -> Pointer | None:
        """The one, except ``but``, that nothing was heard of for longest, if that is long enough to ask it."""
        others = [(known.alive_at, node_id) for node_id, known in self.table.items() if not but(node_id)]
        oldest = self.table[min(others)[1]] if others else None
        return oldest if oldest is not None and now - oldest.alive_at > DOUBTFUL_S else None

    def remove(self, node_id: NodeId) -> None:
        self.table.pop(node_id, None)

    def validate(self) -> None:
        assert len(self.table) <= MAX_POINTERS
        assert all(node_id == known.record.node_id for node_id, known in self.table.items())


def _covers(known: Iterable[Known], pointer: Pointer) -> bool:
    """Whether any of them is nearer to us than it, and to it than we are."""
    place, away_ms = pointer.record.coordinate, pointer.away_ms
    return any(other.away_ms <= away_ms and other.record.coordinate.rtt_ms(place) < away_ms for other in known)
