"""What a host has promised to queries that are about to run here, sans-I/O (DESIGN: Placement).

    reserve ----> commit ----> admit        drop, or the end of its time, from each of them
    (the plan      (the plan    (a fragment
     may change)    stands)      is here)

A reservation belongs to a query and is replaced by the query's next one, so asking twice is asking once. It ends by
itself: soon while the plan may still change, later once it stands, for engines take their time to start. What runs here
is counted by whoever runs it, and handed in as ``running``: fragment id -> what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sbon.placement.capacity import Demand, Resources, total

RESERVED_S = 30.0
COMMITTED_S = 600.0
#: Queries that may hold reservations at one time.
MAX_QUERIES = 1000


@dataclass(frozen=True, slots=True)
class _Reservation:
    taken: Mapping[str, Demand]
    until_s: float


class Reservations:
    """The book of one host."""

    def __init__(self, resources: Resources) -> None:
        """``resources``: all that this host has for operators."""
        self._resources = resources
        self._by_query: dict[str, _Reservation] = {}

    def room(self, running: Mapping[str, Demand], now_s: float, but: str = "") -> Resources:
        """What is left, below zero where too much was promised; what the query ``but`` holds counts as left."""
        self._forget_old(now_s)
        held = {
            fragment_id: taken
            for query_id, reservation in self._by_query.items()
            if query_id != but
            for fragment_id, taken in reservation.taken.items()
        }
        return self._resources.without((held | dict(running)).values())

    def reserve(
        self, query_id: str, taken: Mapping[str, Demand], running: Mapping[str, Demand], now_s: float
    ) -> tuple[str, ...]:
        """Hold this for the fragments of a query that do not run here yet, in place of what it held. What there is too
        little of: then nothing has changed. Raises SbonError, and changes nothing, for what cannot be taken."""
        for demand in taken.values():
            demand.check()
        new = {fragment_id: demand for fragment_id, demand in taken.items() if fragment_id not in running}
        room = self.room(running, now_s, but=query_id)
        if lacking := room.lacks(total(new.values())):
            return lacking
        if query_id not in self._by_query and len(self._by_query) >= MAX_QUERIES:
            return ("reservations",)
        self._by_query[query_id] = _Reservation(new, now_s + RESERVED_S)
        return ()

    def commit(self, query_id: str, now_s: float) -> None:
        """The query's fragments are on their way."""
        self._forget_old(now_s)
        known = self._by_query.get(query_id)
        if known is not None:
            self._by_query[query_id] = _Reservation(known.taken, now_s + COMMITTED_S)

    def admit(
        self, query_id: str, fragment_id: str, demand: Demand, running: Mapping[str, Demand], now_s: float
    ) -> tuple[str, ...]:
        """A fragment is here: what was held for it is its own from now on.

        If nothing was, it is let in if it fits. What there is too little of: then it is to be refused. Raises
        SbonError, and changes nothing, for what cannot be taken.
        """
        demand.check()
        self._forget_old(now_s)
        known = self._by_query.get(query_id)
        if known is None or fragment_id not in known.taken:
            others = {one: taken for one, taken in running.items() if one != fragment_id}
            return self.room(others, now_s).lacks(demand)
        left = {one: taken for one, taken in known.taken.items() if one != fragment_id}
        self._by_query[query_id] = _Reservation(left, known.until_s)
        if not left:
            del self._by_query[query_id]
        return ()

    def drop(self, query_id: str) -> None:
        """What the query held and has not used is free again."""
        self._by_query.pop(query_id, None)

    def _forget_old(self, now_s: float) -> None:
        for query_id in [query_id for query_id, one in self._by_query.items() if one.until_s <= now_s]:
            del self._by_query[query_id]
