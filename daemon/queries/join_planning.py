"""In which order a query joins its streams, and which parts of that run already: decided by where streams, hosts and
the sink are (docs/planning.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from daemon.config import PlacementConfig
from daemon.events import Events
from daemon.peering.peers import Peers
from daemon.placing import Placing
from daemon.queries.catalog import Known
from daemon.queries.regional_planning import RegionalPlanning
from sbon.errors import QueryError, UnavailableError
from sbon.fragment import Start
from sbon.placement.problem import CostView
from sbon.planning.part import Spot, leaves_of, part_of, tree_of
from sbon.sql.query_plan import QueryPlan

if TYPE_CHECKING:  # what plans needs numpy and sqlglot, which are large
    from sbon.planning.problem import JoinQuery, RunningStream, Tree, Use
    from sbon.sql.join_graph import JoinGraph, Order
    from sbon.sql.logical_plan import Plan
    from sbon.sql.plan import Prepared
    from sbon.sql.reuse import Usable

log = logging.getLogger("sbon.planning")

#: In an overlay of more hosts than this coordinators decide, unless the configuration says who.
MANY_HOSTS = 10_000


@dataclass(frozen=True, slots=True)
class _Problem:
    """Joins of several streams, in an order to be chosen, or with ``running`` parts of them.

    ``hosts`` are the node ids that ``query`` and ``running`` count; ``usable`` says what reads each of ``running``.
    """

    graph: JoinGraph
    query: JoinQuery
    hosts: tuple[str, ...]
    running: tuple[Use, ...]
    usable: Mapping[RunningStream, Usable]


@dataclass(frozen=True, slots=True)
class Planned:
    """A query's fragments; ``reused`` are those of other queries that it reads, and ``cut`` says where it begins."""

    plan: QueryPlan
    reused: tuple[str, ...]
    cut: Callable[[Mapping[str, Start]], QueryPlan]


class JoinPlanning:
    """Puts the joins of queries into an order, with parts of them read of others."""

    def __init__(
        self, peers: Peers, placing: Placing, regional: RegionalPlanning, settings: PlacementConfig, events: Events
    ) -> None:
        self._peers = peers
        self._placing = placing
        self._regional = regional
        self._settings = settings
        self._events = events

    async def plan(self, prepared: Prepared, query_id: str, known: Known) -> Planned:
        """The query's fragments. Raises QueryError for a query that cannot be planned."""
        written, problem = await trio.to_thread.run_sync(_look, prepared, query_id, known)
        as_written = Planned(written, prepared.reads, lambda starts: prepared.cut(query_id, starts=starts))
        if problem is None:
            return as_written
        try:
            tree, cost, decided_by = await self._choose(problem)
        except UnavailableError as error:
            log.info("%s: joins stay as they are written: %s", query_id, error)
            return as_written
        if not prepared.own:  # or else it runs already, and may well stay as it is
            joins = _shown(tree, problem)
            self._events.publish(
                "query-planned", query=query_id, joins=joins, cost=round(cost, 1), decided_by=decided_by
            )
        try:
            return await trio.to_thread.run_sync(_cut, prepared, query_id, problem, tree)
        except QueryError as error:
            if not problem.running:
                raise
            log.info("%s reads nothing of others: %s", query_id, error)
            return await self.plan(prepared, query_id, replace(known, derived={}))

    async def _choose(self, problem: _Problem) -> tuple[Tree, float, list[str]]:
        """The best plan for the hosts that can be found, what that is expected to cost, and who has decided on it."""
        planner, many = self._settings.planner, self._regional.hosts > MANY_HOSTS
        if planner == "top-down" or (planner == "auto" and many):
            try:
                return await self._choose_top_down(problem)
            except UnavailableError as error:
                log.info("no coordinators plan it: %s", error)
        from sbon.planning.asking import AskingPlanner

        asking = AskingPlanner(problem.query, problem.running, problem.hosts, self._view())
        asked = await self._placing.answered(asking.go())
        return asked.tree, asked.cost, [self._peers.overlay.record.name]

    async def _choose_top_down(self, problem: _Problem) -> tuple[Tree, float, list[str]]:
        view = self._view()
        records = [self._peers.known(node_id) for node_id in problem.hosts]
        spots = [
            Spot(node_id, view.coordinate_of(node_id), False) if record is None else self._regional.spot(record)
            for node_id, record in zip(problem.hosts, records, strict=True)
        ]
        leaves = leaves_of(problem.query, problem.running)
        planned = await self._regional.plan(part_of(problem.query, leaves, spots))
        return tree_of(planned.tree, leaves), planned.cost, list(planned.decided_by)

    def _view(self) -> CostView:
        return self._peers.cost_view({}, self._settings.load_scale_ms, self._settings.load_scaling)


def _look(prepared: Prepared, query_id: str, known: Known) -> tuple[QueryPlan, _Problem | None]:
    """The query as it is written, and what there is to be decided. In a thread: it takes a while."""
    from sbon.planning.problem import RunningStream, Use
    from sbon.planning.signature import Signature
    from sbon.sql.join_query import is_join, join_query, used_above
    from sbon.sql.plan_rates import rate_of
    from sbon.sql.reuse import usable

    graphs: list[JoinGraph] = []
    written = prepared.cut(query_id, graphs.append)
    if len(graphs) != 1:
        return written, None
    graph, above = graphs[0], used_above(prepared.outputs, prepared.plan, graphs[0])
    found = usable(graph, above, {fragment_id: each.computes for fragment_id, (each, _) in known.derived.items()})
    if len(graph.inputs) < 3 and not found:
        return written, None
    at = [known.derived[each.fragment_id][1] for each in found]
    hosts = tuple(dict.fromkeys((*prepared.owners.values(), prepared.sink_owner, *at)))
    index = {node_id: number for number, node_id in enumerate(hosts)}
    query = join_query(
        query_id,
        graph,
        host_of=lambda stream: index[prepared.owners[stream]],
        above=above,
        sink=index[prepared.sink_owner],
        result_rate=None if is_join(prepared.plan) else rate_of(prepared.plan).bytes_per_s,
    )
    if query is None:
        return written, None
    rates = zip(query.signatures, query.rates, strict=True)
    query = replace(query, rates=tuple(known.rates.get(signature, estimated) for signature, estimated in rates))
    running = {
        RunningStream(Signature(each.fragment_id), index[host], ()): each for each, host in zip(found, at, strict=True)
    }
    uses = tuple(Use(each.mask, stream.host, stream) for stream, each in running.items())
    return written, _Problem(graph, query, hosts, uses, running)


def _cut(prepared: Prepared, query_id: str, problem: _Problem, tree: Tree) -> Planned:
    """The fragments of a plan; without what runs already if what it would need of that cannot be had."""
    from sbon.planning.problem import uses
    from sbon.sql.join_query import order_of
    from sbon.sql.reuse import joined

    reused = {use.mask: problem.usable[use.running] for use in uses(tree) if use.running is not None}

    def choose(graph: JoinGraph) -> Order | Plan | None:
        if len(graph.inputs) != len(problem.graph.inputs):
            return None
        if not reused:
            return order_of(tree)
        return joined(graph, tree, {mask: each.plan for mask, each in reused.items()})

    def cut(starts: Mapping[str, Start]) -> QueryPlan:
        return prepared.cut(query_id, choose, starts)

    return Planned(cut({}), (*prepared.reads, *(each.fragment_id for each in reused.values())), cut)


def _shown(tree: Tree, problem: _Problem) -> str:
    """``((flights JOIN weather) JOIN bags)``; what runs already by its fragment's id."""
    from sbon.planning.problem import Use
    from sbon.sql.signatures import scan_of

    if not isinstance(tree, Use):
        return f"({_shown(tree.left, problem)} JOIN {_shown(tree.right, problem)})"
    if tree.running is not None:
        return problem.usable[tree.running].fragment_id
    found = scan_of(problem.graph.inputs[tree.mask.bit_length() - 1])
    return "" if found is None else found.stream.name
