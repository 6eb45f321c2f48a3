"""Nodes that a node knows of without being linked with them: one-way, from what others say, without heartbeats.

Links lead to those who are alike, which both ends are to each other. What searches look for is mostly somebody else:
whoever has a short access line is near to many, who are not near to it, and it could not be linked with all of them. So
a node remembers some others beside its neighbours, and names them to whoever asks. These are worth it:

* the nearest: whoever is alike to us has the same, so that a search that has come to us, or near us, has found them;
* the *hubs* around: whoever would be near even if its access line counted twice, and idle. An operator has streams into
  several directions: its host's access line counts for each of them, the way along them only in part. Hubs of one
  site tell no more than one of them, so those come first that no better one *covers*, that is, is clearly more alike to
  them than we are (the pruning of S. J. Subramanya et al., "DiskANN", NeurIPS 2019, algorithm 2, with its alpha).

What is heard is as old as its source: everybody says with a record how long ago its node surely was alive and at that
place, and what is too old is forgotten: :func:`keep_s`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from overlay.config import MAX_POINTERS
from overlay.identity import NodeId
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.cost_space import LOAD_SCALE_MS

#: So many places are for the nearest, busy or not. The others are for hubs. (Searches look for ten. With ten kept the
#: tenth, which is mostly near to many and told of by few, was known to three in four where nodes are replaced; now to
#: nineteen in twenty.)
NEAREST: Final = 14
#: One covers another if it is so many times more alike to it than we are. With 1, the second best hubs of a region are
#: covered by the best of the next one, and known to few; with 2, those of regions around leave no room for others.
COVERS: Final = 1.25
#: A node that nothing was heard of for so long is forgotten, or not even remembered: if little changes, and at least.
#: (At rest only exchanges bring news of pointers, about four in a minute: 44 % of the nearest that were not known had
#: been, and were forgotten after a minute. While a fifth of 2,000 nodes was replaced every minute, three in four of
#: those of a minute ago were dead, and had the places of others.)
OLDEST_AT_REST_S: Final = 180.0
OLDEST_S: Final = 60.0
#: For one of so long ago who is most alike to it is asked.
DOUBTFUL_S: Final = 30.0
#: An operator's host: what counts is the round trip to it, and twice its one-way load.
LOAD_MS: Final = 2.0 * LOAD_SCALE_MS


@dataclass(slots=True)
class Known:
    """A neighbour, or a pointer: its record, also as it travels, and how its place looks from here.

    ``away_ms`` is the predicted round trip, ``unlike_ms`` how unlike ours its place is, ``hub_ms`` how far away it is
    as a hub: all set by :meth:`seen_from`, and kept because they are asked for all the time.
    """

    record: NodeRecord
    packed: bytes
    away_ms: float = field(init=False)
    unlike_ms: float = field(init=False)
    hub_ms: float = field(init=False)

    def seen_from(self, here: Coordinate) -> None:
        place = self.record.coordinate
        self.away_ms, self.unlike_ms = here.rtt_ms(place), here.unlike_ms(place)
        self.hub_ms = hub_ms(self.record, self.away_ms)


@dataclass(slots=True)
class Pointer(Known):
    """One node. ``alive_at``: when it surely was alive, and as its record says, by our clock."""

    alive_at: float
    covered: bool = True


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
                known.record, known.packed = record, packed
                known.seen_from(here)
            if record.version == known.record.version:
                known.alive_at = max(known.alive_at, alive_at)
            return
        pointer = Pointer(record, packed, alive_at)
        pointer.seen_from(here)
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
        for other in self.table.values():
            if not other.covered and other is not pointer:
                other.covered = _covers((pointer,), other)

    def shrink(self, most: int) -> None:
        """Forget the least worth until there are at most so many."""
        while len(self.table) > max(0, most):
            self._drop_one()

    def _drop_one(self) -> None:
        """The least of a hub of those that are not among the nearest, one that others cover if there is one; the
        farthest if there are no others."""
        left = list(self.table.values())
        while left:
            worst = left[0]
            for known in left:
                if _is_less_of_a_hub(known, worst):
                    worst = known
            if not self._is_near(worst):
                del self.table[worst.record.node_id]
                return
            left = [known for known in left if known is not worst]
        del self.table[max((known.away_ms, node_id) for node_id, known in self.table.items())[1]]

    def _is_near(self, pointer: Pointer) -> bool:
        """Whether it is one of the nearest. (Counted, not sorted: this is asked for everybody who is heard of.)"""
        away_ms, node_id, nearer = pointer.away_ms, pointer.record.node_id, 0
        for other_id, other in self.table.items():
            if other.away_ms < away_ms or (other.away_ms == away_ms and other_id < node_id):
                nearer += 1
        return nearer < NEAREST

    def refresh(self, here: Coordinate, neighbours: Collection[Known], now: float, oldest_s: float) -> None:
        """To be called now and then: forget what is older than ``oldest_s``, and see anew who is covered."""
        for node_id in [node_id for node_id, known in self.table.items() if now - known.alive_at > oldest_s]:
            del self.table[node_id]
        for pointer in self.table.values():
            pointer.seen_from(here)
            pointer.covered = True
        for pointer in sorted(self.table.values(), key=lambda known: (known.hub_ms, known.record.node_id)):
            pointer.covered = self._is_covered(pointer, neighbours)

    def most_doubtful(self, now: float) -> Pointer | None:
        """The one that nothing was heard of for longest, if that is long enough to ask for it."""
        oldest = min(self.table.values(), key=lambda known: (known.alive_at, known.record.node_id), default=None)
        return oldest if oldest is not None and now - oldest.alive_at > DOUBTFUL_S else None

    def nearest(self) -> list[NodeId]:
        """Those of them that have the places for the nearest."""
        return sorted(self.table, key=lambda node_id: (self.table[node_id].away_ms, node_id))[:NEAREST]

    def nearest_to_ask(self, but: Callable[[NodeId], bool]) -> Pointer | None:
        """Of the nearest, except ``but``, the one that nothing was heard of for longest."""
        others = [(self.table[node_id].alive_at, node_id) for node_id in self.nearest() if not but(node_id)]
        return self.table[min(others)[1]] if others else None

    def is_worth_telling(self, node_id: NodeId) -> bool:
        """Whether it is one of the nearest, or a hub that nobody covers, and not just remembered while there is room:
        then those alike to us may want it, too."""
        known = self.table.get(node_id)
        return known is not None and (not known.covered or self._is_near(known))

    def remove(self, node_id: NodeId) -> None:
        self.table.pop(node_id, None)

    def validate(self) -> None:
        assert len(self.table) <= MAX_POINTERS
        assert all(node_id == known.record.node_id for node_id, known in self.table.items())


def keep_s(changes: int) -> float:
    """For how long one that nothing is heard of is believed to live, and to be where it was: after so many ``changes``
    lately, nodes around us that died, or moves of our own place (others' move with it)."""
    return max(OLDEST_S, OLDEST_AT_REST_S / (1 + changes))


def hub_ms(record: NodeRecord, away_ms: float) -> float:
    """How far away a node seems to whoever wants an idle host between several others."""
    return away_ms + record.coordinate.height_ms + LOAD_MS * min(1.0, record.load)


def worth_knowing(
    known: Sequence[tuple[NodeRecord, bytes, float]],
    there: Coordinate,
    count: int,
    heard_of: Sequence[NodeRecord] = (),
    *,
    welcome: bool = False,
) -> list[tuple[NodeRecord, bytes, float]]:
    """Whom to name to a node at ``there`` that has ``heard_of`` some others: of ``known`` (records, packed, and their
    ages) at most ``count``, by turns the most alike (a third of them at most), those among its nearest, and the best
    hubs that nobody else covers. It would forget the others at once; if everybody is ``welcome``, these come last."""
    seen = [Known(record, packed) for record, packed, _ in known] + [Known(record, b"") for record in heard_of]
    for one in seen:
        one.seen_from(there)
    new, everyone = range(len(known)), range(len(seen))
    alike = sorted(new, key=lambda index: seen[index].unlike_ms)
    near = sorted(everyone, key=lambda index: seen[index].away_ms)[:NEAREST]
    hubs: list[Known] = []
    new_hubs: list[int] = []
    for index in sorted(everyone, key=lambda index: seen[index].hub_ms):
        if not _covers(hubs, seen[index]):
            hubs.append(seen[index])
            if index in new:
                new_hubs.append(index)
                if len(new_hubs) == count:
                    break
    wishes = [alike[: -(-count // 3)], [index for index in near if index in new], new_hubs]
    in_turns = dict.fromkeys(index for turn in itertools.zip_longest(*wishes) for index in turn if index is not None)
    if welcome:
        in_turns |= dict.fromkeys(alike)
    return [known[index] for index in itertools.islice(in_turns, count)]


def _is_less_of_a_hub(one: Pointer, other: Pointer) -> bool:
    if one.covered != other.covered:
        return one.covered
    if one.hub_ms != other.hub_ms:
        return one.hub_ms > other.hub_ms
    return one.record.node_id > other.record.node_id


def _covers(known: Iterable[Known], pointer: Known) -> bool:
    """Whether any of them is a better hub than it, and clearly more alike to it than we are."""
    place, least_ms, near_ms = pointer.record.coordinate, pointer.hub_ms, pointer.unlike_ms / COVERS
    return any(other.hub_ms <= least_ms and other.record.coordinate.unlike_ms(place) < near_ms for other in known)
