"""Whom a node is linked with: those alike to it in the cost space, and some random ones (DESIGN: Finding nodes).

Links are symmetric: both ends agreed to them, and both listen for each other. So they go by what is the same from both
ends, not by who is near: hubs are near to all. The most alike are a ring in the manner of T-Man (M. Jelasity,
A. Montresor, O. Babaoglu, Computer Networks 53, 2009): every node prefers the most alike it hears of. Further away it
keeps those that no more alike neighbour *covers*, that is, is more alike to than we are (the pruning of
S. J. Subramanya et al., "DiskANN", NeurIPS 2019, algorithm 2): so links lead into all directions at all distances, and
a walk to a place does not get stuck. Whom nodes are near to is what pointers are for (:mod:`overlay.pointers`). A few
links are random, as the active view of HyParView (J. Leitao, J. Pereira, L. Rodrigues, DSN 2007), and replaced over
time: they keep the overlay in one piece, and mixed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from overlay.bucket import Bucket
from overlay.config import MAX_CANDIDATES, PLACES_LEFT, OverlayConfig
from overlay.identity import NodeId
from overlay.pointers import Known
from overlay.records import NodeRecord, Status
from sbon.coordinate import Coordinate

#: A node that refused a link, or ended one, is asked again after so long.
REFUSED_S: Final = 120.0
#: A link request that is not answered is given up after so long.
ANSWER_S: Final = 3.0
#: A random link is only given to others as a far one while there are at most so many times ``far_links`` of them.
FAR_ACCEPTED: Final = 2
#: So many more random links than are looked for are no surplus: whoever loses one asks another, who has too many then.
FAR_KEPT: Final = 2
#: A node has to be more alike by this ratio than those that it pushes aside, and one that goes for it has to be covered
#: by another that is more alike to it by this ratio: or links would change all the time.
NEARER: Final = 0.9
COVERED: Final = 0.8
#: Links are asked for so often: with few of them, and at rest; and so many times at once.
ASKS_PER_S_WITH_FEW: Final = 1.0
ASKS_PER_S: Final = 0.05
ASKS_AT_ONCE: Final = 24


@dataclass(slots=True)
class Link(Known):
    """One neighbour. Times are in seconds on the node's clock."""

    far: bool
    since: float
    heard_at: float
    #: When anything was last sent to it; and which of our own incarnations it knows, and since when.
    told_at: float
    told_incarnation: int = -1
    news_at: float = -math.inf
    #: Moving average of the share of our pings that go unanswered.
    loss: float = 0.0
    suspect: bool = False

    @property
    def shown(self) -> NodeRecord:
        """The record with our own opinion of the node."""
        return msgspec.structs.replace(self.record, status=Status.SUSPECT) if self.suspect else self.record


@dataclass(slots=True)
class Candidate:
    """A node that may become a neighbour. ``until``: when it is forgotten, or may be asked (again)."""

    record: NodeRecord
    packed: bytes
    far: bool
    until: float
    asked: bool = False
    refused: bool = False
    #: Which of our own incarnations it was asked with.
    told_incarnation: int = -1


class Links:
    """The table of neighbours and of those that may become some. It decides; it sends nothing."""

    def __init__(self, config: OverlayConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self.table: dict[NodeId, Link] = {}
        self.candidates: dict[NodeId, Candidate] = {}
        self._asks_with_few = Bucket(ASKS_PER_S_WITH_FEW, ASKS_AT_ONCE, 0.0)
        self._asks = Bucket(ASKS_PER_S, ASKS_AT_ONCE, 0.0)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def far_count(self) -> int:
        return sum(link.far for link in self.table.values())

    # --- candidates

    def propose(self, record: NodeRecord, packed: bytes, here: Coordinate, now: float) -> bool:
        """Consider a node we heard of as a near neighbour. True if it is one to ask now."""
        node_id = record.node_id
        if node_id in self.table or node_id in self.candidates or not self._is_wanted_near(record, here):
            return False
        if len(self.table) >= self._config.max_links - PLACES_LEFT and self._surplus() is None:
            return False
        return self._may_ask(now) and self._add(Candidate(record, packed, False, now + ANSWER_S, asked=True))

    def propose_far(self, record: NodeRecord, packed: bytes, now: float) -> bool:
        """The same for a random one as a far neighbour."""
        node_id = record.node_id
        if node_id in self.table or node_id in self.candidates:
            return False
        asked = sum(candidate.asked and candidate.far for candidate in self.candidates.values())
        if self.far_count + asked >= self._config.far_links:
            return False
        return self._may_ask(now) and self._add(Candidate(record, packed, True, now + ANSWER_S, asked=True))

    def _may_ask(self, now: float) -> bool:
        """Whoever is near to many is asked by many, and refuses: without a bound that would be most of its traffic."""
        return (self._asks_with_few if self.are_few else self._asks).take(1, now)

    def _add(self, candidate: Candidate) -> bool:
        if len(self.candidates) >= MAX_CANDIDATES:
            refused = [node_id for node_id, known in self.candidates.items() if known.refused]
            if not refused:
                return False
            del self.candidates[refused[0]]
        self.candidates[candidate.record.node_id] = candidate
        return True

    def refused(self, record: NodeRecord, packed: bytes, now: float) -> None:
        """It does not want to be our neighbour (any more): leave it alone for a while."""
        self.candidates.pop(record.node_id, None)
        self._add(Candidate(record, packed, False, now + REFUSED_S, refused=True))

    def _is_wanted_near(self, record: NodeRecord, here: Coordinate) -> bool:
        """Whether it is among the most alike, or nobody more alike covers it."""
        if self.are_few:
            return True
        place = record.coordinate
        unlike_ms = here.unlike_ms(place)
        more_alike = [
            link.record.coordinate
            for link in self.table.values()
            if not link.far and link.unlike_ms * NEARER <= unlike_ms
        ]
        asked = sum(candidate.asked and not candidate.far for candidate in self.candidates.values())
        if len(more_alike) + asked < self._config.near_links:
            return True
        return all(coordinate.unlike_ms(place) > unlike_ms for coordinate in more_alike)

    # --- links

    def accepts(self, record: NodeRecord, far: bool, here: Coordinate) -> tuple[bool, NodeId | None]:
        """Whether to accept a request, and which neighbour has to go for it."""
        config = self._config
        if record.node_id in self.table:
            return True, None
        if far and self.far_count >= FAR_ACCEPTED * config.far_links and not self.are_few:
            return False, None
        if len(self.table) < config.max_links - (0 if far else PLACES_LEFT):
            return True, None
        if far or not self._is_wanted_near(record, here):
            return False, None
        surplus = self._surplus()
        return surplus is not None or len(self.table) < config.max_links, surplus

    def add(self, record: NodeRecord, packed: bytes, far: bool, here: Coordinate, now: float) -> Link:
        """From now on it is a neighbour. If it is one already, nothing changes but its record."""
        self.candidates.pop(record.node_id, None)
        link = self.table.get(record.node_id)
        if link is None:
            link = self.table[record.node_id] = Link(record, packed, far, now, now, told_at=now)
            link.seen_from(here)
        elif record.supersedes(link.record):
            self.update(link, record, packed, here)
        return link

    def update(self, link: Link, record: NodeRecord, packed: bytes, here: Coordinate) -> None:
        """A newer record of a neighbour."""
        link.record, link.packed = record, packed
        link.seen_from(here)

    def moved(self, here: Coordinate) -> None:
        """We are at another place now."""
        for link in self.table.values():
            link.seen_from(here)

    def remove(self, node_id: NodeId) -> Link | None:
        return self.table.pop(node_id, None)

    def to_drop(self, now: float) -> NodeId | None:
        """A neighbour to part with, now and then, so that there is room for better and for fresh ones."""
        config = self._config
        if len(self.table) > config.max_links - PLACES_LEFT:
            return self._surplus()
        far = [(link.since, node_id) for node_id, link in self.table.items() if link.far]
        if len(far) >= config.far_links and len(self.table) > config.few_links:
            since, oldest = min(far)
            if now - since > config.far_link_lifetime_s:
                return oldest
        return None

    def _surplus(self) -> NodeId | None:
        """The least alike neighbour that is neither among the most alike nor leads anywhere that a more alike one does
        not."""
        near = sorted((link.unlike_ms, node_id) for node_id, link in self.table.items() if not link.far)
        kept: list[Coordinate] = []
        surplus = None
        for unlike_ms, node_id in near:
            place = self.table[node_id].record.coordinate
            if len(kept) < self._config.near_links or all(
                other.unlike_ms(place) > COVERED * unlike_ms for other in kept
            ):
                kept.append(place)
            else:
                surplus = node_id
        if surplus is not None:
            return surplus
        far = [(link.since, node_id) for node_id, link in self.table.items() if link.far]
        return min(far)[1] if len(far) > self._config.far_links + FAR_KEPT else None

    # --- for others

    def random_far(self) -> Link | None:
        """A random neighbour, a far one if there is any: one step of a random walk."""
        links = [link for link in self.table.values() if link.far] or list(self.table.values())
        return self._rng.choice(links) if links else None

    @property
    def are_few(self) -> bool:
        """Whether more neighbours are wanted, near or not: at first, and always in a small overlay."""
        return len(self.table) < self._config.few_links

    def most_alike(self, place: Coordinate, count: int, but: Callable[[NodeId], bool]) -> list[Link]:
        """At most ``count`` neighbours that are not suspected nor left out, most alike to ``place`` first."""
        alive = [
            (place.unlike_ms(link.record.coordinate), node_id)
            for node_id, link in self.table.items()
            if not link.suspect and not but(node_id)
        ]
        return [self.table[node_id] for _, node_id in sorted(alive)[:count]]

    def expire(self, now: float) -> None:
        """Forget candidates that did not answer, and those that were left alone for long enough."""
        for node_id in [node_id for node_id, candidate in self.candidates.items() if candidate.until <= now]:
            del self.candidates[node_id]

    def validate(self) -> None:
        """Assert what must always hold between the tables."""
        assert len(self.table) <= self._config.max_links
        assert len(self.candidates) <= MAX_CANDIDATES
        assert not self.table.keys() & self.candidates.keys()
        assert all(node_id == link.record.node_id for node_id, link in self.table.items())
