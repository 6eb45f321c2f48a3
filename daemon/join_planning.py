"""In which order a query joins its streams: decided by where streams, hosts and the sink are (docs/planning.md)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from daemon.config import PlacementConfig
from daemon.events import Events
from daemon.peers import Peers
from daemon.placing import Placing
from sbon.errors import UnavailableError
from sbon.sql.catalog import Catalog
from sbon.sql.query_plan import QueryPlan

if TYPE_CHECKING:  # what plans needs numpy and sqlglot, which are large
    from sbon.planning.problem import JoinQuery
    from sbon.sql.join_graph import JoinGraph, Order
    from sbon.sql.plan import Prepared

log = logging.getLogger("sbon.planning")


@dataclass(frozen=True, slots=True)
class _Problem:
    """A join of three streams or more. ``hosts`` are the node ids that ``query`` counts."""

    graph: JoinGraph
    query: JoinQuery
    hosts: tuple[str, ...]


class JoinPlanning:
    """Plans queries, the order of their joins included."""

    def __init__(self, peers: Peers, placing: Placing, settings: PlacementConfig, events: Events) -> None:
        self._peers = peers
        self._placing = placing
        self._settings = settings
        self._events = events

    async def plan(self, sql: str, query_id: str, catalog: Catalog) -> QueryPlan:
        """The query's fragments. Raises QueryError for a query that cannot be planned."""
        prepared, written, problem = await trio.to_thread.run_sync(_prepare, sql, query_id, catalog)
        if problem is None:
            return written
        try:
            order, cost = await self._choose(problem)
        except UnavailableError as error:
            log.info("%s: joins stay as they are written: %s", query_id, error)
            return written
        names = _names(problem.graph)
        self._events.publish("query-planned", query=query_id, joins=_shown(order, names), cost=round(cost, 1))
        return await trio.to_thread.run_sync(prepared.cut, query_id, lambda graph: _same(graph, problem.graph, order))

    async def _choose(self, problem: _Problem) -> tuple[Order, float]:
        """The order of the best plan for the hosts that can be found, and what that is expected to cost."""
        from sbon.planning.asking import AskingPlanner
        from sbon.sql.join_query import order_of

        view = self._peers.cost_view({}, self._settings.load_scale_ms, self._settings.load_scaling)
        asked = await self._placing.answered(AskingPlanner(problem.query, (), problem.hosts, view).go())
        return order_of(asked.tree), asked.cost


def _prepare(sql: str, query_id: str, catalog: Catalog) -> tuple[Prepared, QueryPlan, _Problem | None]:
    """In a thread: importing sqlglot and parsing take a while."""
    from sbon.sql.join_query import join_query, used_above
    from sbon.sql.logical_plan import Join
    from sbon.sql.plan import prepare_query
    from sbon.sql.plan_rates import rate_of

    prepared = prepare_query(sql, catalog)
    graphs: list[JoinGraph] = []
    written = prepared.cut(query_id, graphs.append)
    if len(graphs) != 1 or len(graphs[0].inputs) < 3:
        return prepared, written, None
    hosts = tuple(dict.fromkeys((*prepared.owners.values(), prepared.sink_owner)))
    index = {node_id: number for number, node_id in enumerate(hosts)}
    query = join_query(
        query_id,
        graphs[0],
        host_of=lambda stream: index[prepared.owners[stream]],
        above=used_above(prepared.outputs, prepared.plan, graphs[0]),
        sink=index[prepared.sink_owner],
        result_rate=None if isinstance(prepared.plan, Join) else rate_of(prepared.plan).bytes_per_s,
    )
    return prepared, written, None if query is None else _Problem(graphs[0], query, hosts)


def _same(graph: JoinGraph, planned: JoinGraph, order: Order) -> Order | None:
    return order if len(graph.inputs) == len(planned.inputs) else None


def _names(graph: JoinGraph) -> list[str]:
    from sbon.sql.signatures import stream_of

    found = [stream_of(plan) for plan in graph.inputs]
    return ["" if stream is None else stream[0].stream.name for stream in found]


def _shown(order: Order, names: list[str]) -> str:
    """``((flights JOIN weather) JOIN bags)``"""
    if isinstance(order, int):
        return names[order]
    return f"({_shown(order[0], names)} JOIN {_shown(order[1], names)})"
