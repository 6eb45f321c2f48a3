"""One search for all purposes: best first over the links of the overlay, with the objective as an argument.

The searching node asks the best hosts that it knows of for the best that *they* know of, a few at a time, until the
best ``k`` it knows have all been asked or enough hosts were. A host that does not answer in time is stepped over.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from overlay.identity import NodeId
from overlay.records import NodeRecord
from sbon.objectives import Objective

#: Hosts asked in all, and at the same time.
MAX_CONTACTS = 20
PARALLEL = 3
#: Best hosts remembered while a search is under way.
MAX_FOUND = 64
#: Records that one host answers with.
REPLY_RECORDS = 10
MAX_K = 32


@dataclass(slots=True)
class _Found:
    record: NodeRecord
    cost: float
    asked: bool = False


class Search:
    """One search under way. It decides whom to ask; it sends nothing."""

    def __init__(self, objective: Objective, k: int, patience_s: float, max_contacts: int = MAX_CONTACTS) -> None:
        """Raises ValueError for a ``k`` that no search can answer."""
        if not 1 <= k <= MAX_K:
            raise ValueError(f"a search for {k} hosts: 1 to {MAX_K} are possible")
        self.objective = objective
        self.k = k
        self.contacts = 0
        self._patience_s = patience_s
        self._max_contacts = max_contacts
        self._found: dict[NodeId, _Found] = {}
        self._dead: set[NodeId] = set()
        self._waiting: dict[NodeId, float] = {}

    def know(self, record: NodeRecord, *, asked: bool = False) -> None:
        """Take in a host that somebody, or this node itself (``asked``), knows of."""
        node_id = record.node_id
        found = self._found.get(node_id)
        if found is not None:
            if record.supersedes(found.record):
                found.record, found.cost = record, self.objective.cost(record)
            found.asked = found.asked or asked
        elif node_id not in self._dead:
            self._found[node_id] = _Found(record, self.objective.cost(record), asked)
            if len(self._found) > MAX_FOUND:
                worst = max(self._found, key=lambda known: (self._found[known].cost, known))
                if worst not in self._waiting:
                    del self._found[worst]

    def answered(self, node_id: NodeId) -> bool:
        """An answer came; False if none was waited for."""
        return self._waiting.pop(node_id, None) is not None

    def failed(self, node_id: NodeId) -> None:
        """It cannot be reached."""
        if self._waiting.pop(node_id, None) is not None:
            self._found.pop(node_id, None)
            self._dead.add(node_id)

    def expire(self, now: float) -> None:
        for node_id in [node_id for node_id, deadline in self._waiting.items() if deadline <= now]:
            self.failed(node_id)

    def to_ask(self, now: float) -> list[NodeRecord]:
        """The hosts to ask now. They count as contacts from here on."""
        chosen: list[NodeRecord] = []
        while len(self._waiting) < PARALLEL and self.contacts < self._max_contacts:
            best = self._next()
            if best is None:
                break
            best.asked = True
            self.contacts += 1
            self._waiting[best.record.node_id] = now + self._patience_s
            chosen.append(best.record)
        return chosen

    def _next(self) -> _Found | None:
        """The best not asked yet, if it is among the best ``k``: nothing better can be behind the others, we trust."""
        best = heapq.nsmallest(self.k, self._found.items(), key=lambda item: (item[1].cost, item[0]))
        # Where nobody known fits yet, any host may know of one that does.
        fits = [found for _, found in best if math.isfinite(found.cost)] or [found for _, found in best]
        return next((found for found in fits if not found.asked), None)

    @property
    def is_over(self) -> bool:
        """Whether nobody is waited for and nobody is left to be asked."""
        return not self._waiting and (self.contacts >= self._max_contacts or self._next() is None)

    def next_timer(self) -> float:
        return min(self._waiting.values(), default=math.inf)

    def result(self) -> tuple[NodeRecord, ...]:
        """At most ``k`` hosts by ascending cost; ties go by node id, the same everywhere."""
        fit = ((found.cost, node_id) for node_id, found in self._found.items() if math.isfinite(found.cost))
        return tuple(self._found[node_id].record for _, node_id in heapq.nsmallest(self.k, fit))
