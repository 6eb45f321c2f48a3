"""A query planned with what others offer: planned, confirmed by the keepers of what it is to read, and subscribed to.

What turns out not to be had is left out, and the query planned anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import trio

from daemon.events import Events
from daemon.peering.query_messages import Reader, Reused, SubmitQuery
from daemon.peering.subscription_messages import Subscribed
from daemon.queries.catalog import Known
from daemon.queries.join_planning import Planned
from daemon.queries.offers import Offers
from daemon.queries.query_planning import Beside, QueryPlanning
from daemon.queries.subscribing import Subscriptions
from sbon.engine_messages import cursor_name
from sbon.errors import QueryError, SbonError
from sbon.fragment import Computes, Start
from sbon.sql.query_plan import QueryPlan

log = logging.getLogger("sbon.deployment")

#: A query is planned so often with what is left of the offers; then without any.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Agreed:
    """A plan, and what others have promised to keep for it."""

    plan: QueryPlan
    keepers: tuple[str, ...]
    reused: tuple[Reused, ...] = ()


class ReadingOthers:
    """Plans queries, and comes to terms with those that they read from."""

    def __init__(self, planning: QueryPlanning, offers: Offers, subscriptions: Subscriptions, events: Events) -> None:
        self._planning = planning
        self._offers = offers
        self._subscriptions = subscriptions
        self._events = events

    async def plan(
        self, query: SubmitQuery, query_id: str, known: Known, keepers_of: Callable[[QueryPlan], tuple[str, ...]]
    ) -> Agreed:
        """Raises QueryError for a query that cannot be planned. A subscription that is not used in the end runs out."""
        from_ms = None if query.from_s is None else round(query.from_s * 1000.0)
        known = _begun(known, max(round(time.time() * 1000.0), from_ms or 0))
        for _ in range(ATTEMPTS):
            planned = await self._planning.plan(query.sql, query_id, known, from_ms)
            known.refuse_ambiguous(planned.plan)
            keepers = keepers_of(planned.plan)
            try:
                return await self.agree(planned, query_id, keepers, known)
            except _NotToBeHad as refusal:
                self._events.publish("reuse-refused", query=query_id, error=str(refusal))
                left = {name: each for name, each in known.derived.items() if name not in refusal.fragment_ids}
                known = replace(known, derived=left)
        planned = await self._planning.plan(query.sql, query_id, replace(known, derived={}), from_ms)
        return Agreed(planned.plan, keepers_of(planned.plan))

    async def plan_again(self, sql: str, query_id: str, known: Known, beside: Beside) -> Planned:
        """Another plan of a query that runs; ``known`` has its sources among what is derived. Raises QueryError."""
        return await self._planning.plan(sql, query_id, _begun(known, round(time.time() * 1000.0)), beside=beside)

    async def withdraw(self, agreed: Agreed) -> None:
        """It is not read after all."""
        for each in agreed.reused:
            cursors = _cursors(agreed.plan, each.fragment_id)
            await self._subscriptions.unsubscribe(each.query_id, each.keepers, cursors)

    async def agree(self, planned: Planned, query_id: str, keepers: tuple[str, ...], known: Known) -> Agreed:
        """Subscribe to all that the plan reads of what runs, and cut it for where that begins. Raises SbonError."""
        reused: dict[str, Reused] = {}
        for fragment_id in planned.reused:
            offered, host = known.derived[fragment_id]
            reader = Reader(fragment_id, offered.query_id, offered.keepers)
            cursors = _cursors(planned.plan, fragment_id)
            if not cursors:
                continue
            try:
                await self._offers.confirm(offered, host)
                granted = await self._subscriptions.subscribe(reader, cursors, query_id, keepers)
            except SbonError as error:
                raise _NotToBeHad([fragment_id], error) from error
            reused[fragment_id] = Reused(
                offered.query_id,
                offered.keepers,
                offered.computes.text,
                granted.output_schema,
                granted.location,
                _begin(granted, offered.computes),
            )
        starts = {fragment_id: each.start for fragment_id, each in reused.items()}
        try:
            plan = await trio.to_thread.run_sync(planned.cut, starts) if reused else planned.plan
        except QueryError as error:
            raise _NotToBeHad(reused, error) from error
        return Agreed(plan, keepers, tuple(reused.values()))


class _NotToBeHad(SbonError):
    """What a plan was to read, by fragment id, and why it cannot."""

    def __init__(self, fragment_ids: Collection[str], error: SbonError) -> None:
        super().__init__(str(error))
        self.fragment_ids = frozenset(fragment_ids)


def _begun(known: Known, by_ms: int) -> Known:
    """Without what will have its first rows only after that event time."""
    begun = {name: each for name, each in known.derived.items() if (each[0].computes.from_ms or 0) <= by_ms}
    return replace(known, derived=begun)


def _begin(granted: Subscribed, computes: Computes) -> Start:
    """Where all cursors can begin; what is read may itself have begun with some event time."""
    start = max(granted.starts.values(), key=lambda start: start.first_batch)
    known = [from_ms for from_ms in (start.from_ms, computes.from_ms) if from_ms is not None]
    return Start(start.first_batch, max(known, default=None))


def _cursors(plan: QueryPlan, fragment_id: str) -> tuple[str, ...]:
    """Those with which the plan's fragments read a fragment of another query."""
    return tuple(
        cursor_name(spec.fragment_id, port.name)
        for spec in plan.fragments
        for port in spec.ports
        if fragment_id in port.producers
    )
