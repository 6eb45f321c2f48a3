"""What a node tells others unasked: that somebody is new near them, and whom it has found around itself.

A newcomer asks its own nearest, but is near to others, too, to whom it is one of the nearest; and whoever is alike to a
node has the same nearest, mostly, whom only one of them need look for. What is told is heard by neighbours only, and
believed of those only that can be where they say.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Final

from overlay.bucket import Bucket
from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.messages import Newcomer, Packed, Surroundings
from overlay.naming import MAX_AGE_S, REPLY_FRAME_BYTES, age_byte, fitting, with_ages
from overlay.neighbourhood import EXCHANGE_RECORDS, Neighbourhood
from overlay.packing import unpack
from overlay.records import NodeRecord
from overlay.session_wire import MAX_BODY_BYTES
from overlay.sessions import Sessions

#: Of a newcomer so many neighbours are told by everybody to whom it is news: that it is there at all, or that it is
#: nearer, or further, by this ratio. And of so many newcomers are they told, in the long run and at once.
NEWCOMER_TOLD: Final = 6
NEWCOMER_NEARER: Final = 0.9
NEWCOMERS_PER_S: Final = 1.5
NEWCOMERS_AT_ONCE: Final = 16
#: So many neighbours are told whom a node has found nearest to itself: those most alike to it.
SURROUNDINGS_TOLD: Final = 4


class Telling(Neighbourhood):
    """Who is told, of whom."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        super().__init__(record, config, rng, now, sessions)
        self._newcomers = Bucket(NEWCOMERS_PER_S, NEWCOMERS_AT_ONCE, now)

    # --- newcomers

    def _hear_of_newcomer(
        self, record: NodeRecord, packed: Packed, now: float, age_s: float = 0.0, teller: NodeId = ""
    ) -> None:
        """Somebody is new at its place. It knows its own nearest, but may be near to many more, or a hub for them:
        whoever wants it for that tells neighbours, so that all of those hear of it, and few others. And whoever wanted
        it for that where it was tells them where it is: they may take it for near, too."""
        node_id = record.node_id
        was_away_ms, was_worth = self._away_ms(node_id), self._is_worth_telling(node_id)
        self._consider(record, packed, now, age_s)
        away_ms = self._away_ms(node_id)
        is_news = min(away_ms, was_away_ms) < NEWCOMER_NEARER * max(away_ms, was_away_ms)
        if is_news and (was_worth or self._is_worth_telling(node_id)) and self._newcomers.take(1, now):
            near = [
                other
                for other, link in self._links.table.items()
                if not link.far and not link.suspect and other not in (node_id, teller)
            ]
            for other in self._rng.sample(near, min(NEWCOMER_TOLD, len(near))):
                self._send(other, Newcomer(packed, age_byte(age_s)))

    def _is_worth_telling(self, node_id: NodeId) -> bool:
        return node_id in self._links or self._pointers.is_worth_telling(node_id)

    def _away_ms(self, node_id: NodeId) -> float:
        """Infinite if it is not kept in mind."""
        known = self._links.table.get(node_id) or self._pointers.table.get(node_id)
        return math.inf if known is None else known.away_ms

    def _take_newcomer(self, sender: NodeId, newcomer: Newcomer, now: float) -> None:
        if sender in self._links and not self._is_odd(sender) and 0 <= newcomer.age_s <= MAX_AGE_S:
            record = unpack(newcomer.record, self._config.dimensions)
            self._hear_of_newcomer(record, newcomer.record, now, float(newcomer.age_s), sender)

    # --- what surrounds us

    def _tell_surroundings(self, found: Iterable[tuple[Packed, float]]) -> None:
        """We have looked for our nearest, and found these, alive so many seconds ago: who is alike to us has mostly the
        same, and need not ask them, too."""
        surroundings = Surroundings(*fitting(found, MAX_BODY_BYTES - REPLY_FRAME_BYTES))
        for link in self._links.most_alike(self._own.coordinate, SURROUNDINGS_TOLD, lambda node_id: False):
            self._send(link.record.node_id, surroundings)

    def _take_surroundings(self, sender: NodeId, surroundings: Surroundings, now: float) -> None:
        if sender in self._links and not self._is_odd(sender):
            for packed, age_s in with_ages(surroundings.records[:EXCHANGE_RECORDS], surroundings.ages):
                self._consider_packed(packed, now, age_s)
