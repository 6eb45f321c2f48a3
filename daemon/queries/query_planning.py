"""What a query computes itself, and what it reads of others: whatever is cheapest (docs/planning.md).

The order of joins, and which parts of joins are read, is :mod:`daemon.queries.join_planning`; here is decided about all
other parts of a query that run already: aggregates, unions, joins of these.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from daemon.config import PlacementConfig
from daemon.events import Events
from daemon.peering.peers import Peers
from daemon.queries.catalog import Known
from daemon.queries.join_planning import JoinPlanning, Planned
from sbon.errors import QueryError
from sbon.fragment import Computes
from sbon.objectives import Host
from sbon.placement.problem import CostView
from sbon.sql.query_plan import QueryPlan

if TYPE_CHECKING:  # what plans needs numpy and sqlglot, which are large
    from sbon.planning.pricing import Prices
    from sbon.sql.plan import Prepared
    from sbon.sql.reuse import View

log = logging.getLogger("sbon.planning")

#: Hosts, the nearest to the sink, that plans are compared on.
HOSTS = 32
#: Of the fragments that give the same part of a query, so many nearest to the sink are considered.
NEAREST = 4
#: Reading is chosen if it costs no more than so much of what computing would.
AS_CHEAP = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Beside:
    """What a new plan of a query that runs goes by: the ``sources`` that run, by fragment id, and the ``name`` that its
    fragments' ids begin with."""

    sources: Mapping[str, Computes]
    name: str


@dataclass(frozen=True, slots=True)
class _Situation:
    """Who there is: ``takers`` are hosts that take operators."""

    known: Known
    takers: tuple[str, ...]
    view: CostView


class QueryPlanning:
    """Plans queries."""

    def __init__(self, peers: Peers, joins: JoinPlanning, settings: PlacementConfig, events: Events) -> None:
        self._peers = peers
        self._joins = joins
        self._settings = settings
        self._events = events

    async def plan(
        self, sql: str, query_id: str, known: Known, from_ms: int | None = None, beside: Beside | None = None
    ) -> Planned:
        """The query's fragments, of event times from ``from_ms`` on. Raises QueryError if it cannot be planned."""
        prepared = await trio.to_thread.run_sync(_prepare, sql, known, from_ms)
        if beside is not None:
            prepared = prepared.beside(beside.sources, beside.name)
        own = await self._joins.plan(prepared, query_id, known)
        if not known.derived:
            return own
        settings = self._settings
        view = self._peers.cost_view({}, settings.load_scale_ms, settings.load_scaling)
        there: list[Host] = [self._peers.overlay.record, *self._peers.overlay.members()]
        takers = [host.node_id for host in there if host.accepts_operators]
        takers.sort(key=lambda node_id: view.rtt_ms(node_id, prepared.sink_owner))
        situation = _Situation(known, tuple(takers[:HOSTS]), view)
        found = await trio.to_thread.run_sync(_with_views, prepared, query_id, situation)
        if found is None:
            return own
        reading, prices = found
        other = await self._joins.plan(reading, query_id, known)
        if _price(other.plan, known, prices) > AS_CHEAP * _price(own.plan, known, prices):
            return own
        if beside is None:
            self._events.publish("query-reads", query=query_id, fragments=list(other.reused))
        return other


def _prepare(sql: str, known: Known, from_ms: int | None) -> Prepared:
    """In a thread: importing sqlglot and parsing take a while."""
    from sbon.sql.plan import prepare_query

    return prepare_query(sql, known.catalog, from_ms)


def _with_views(prepared: Prepared, query_id: str, situation: _Situation) -> tuple[Prepared, Prices] | None:
    """The query with those parts read of others that make it cheapest; None if there are none to be read.

    One after the other is tried, the largest parts first, and kept if the whole gets no dearer by it.
    """
    from sbon.planning.pricing import Prices
    from sbon.sql.reuse import reads, views, with_views

    known = situation.known
    offers = {fragment_id: each.computes for fragment_id, (each, _) in known.derived.items()}
    usable = _nearest(views(prepared.plan, prepared.outputs, offers), prepared.sink_owner, situation)
    if not usable:
        return None
    at = [host for _, host in known.derived.values()]
    sinks = [each.sink_owner for each in prepared.statements]
    prices = Prices((*prepared.owners.values(), *sinks, *at), situation.takers, situation.view)
    chosen: list[View] = []
    best = _price(prepared.cut(query_id), known, prices)
    for view in usable:
        tried = [*chosen, view]
        reading = replace(prepared, plan=with_views(prepared.plan, tried))
        if len(reads(reading.plan)) < len(tried):  # it is inside what is read already
            continue
        try:
            price = _price(reading.cut(query_id), known, prices)
        except QueryError as error:
            log.info("%s does not read %s: %s", query_id, view.fragment_id, error)
            continue
        if price <= AS_CHEAP * best:
            best, chosen = price, tried
    return (replace(prepared, plan=with_views(prepared.plan, chosen)), prices) if chosen else None


def _nearest(found: list[View], sink: str, situation: _Situation) -> list[View]:
    """In the same order, of those for one part the nearest first, and not too many of them."""
    kept: list[View] = []
    for node in dict.fromkeys(each.node for each in found):
        same = [each for each in found if each.node is node]
        same.sort(key=lambda each: situation.view.rtt_ms(situation.known.derived[each.fragment_id][1], sink))
        kept += same[:NEAREST]
    return kept


def _price(plan: QueryPlan, known: Known, prices: Prices) -> float:
    running = {fragment_id: host for fragment_id, (_, host) in known.derived.items()}
    return prices.of(plan.links, {**running, **plan.owners})
