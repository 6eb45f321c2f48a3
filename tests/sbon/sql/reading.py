"""Plans that read what another query has, without asking whether that is the cheapest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sbon.fragment import Computes, FragmentSpec, Start
from sbon.planning.problem import Join, RunningStream, Tree, Use
from sbon.planning.signature import Signature
from sbon.sql.catalog import Catalog
from sbon.sql.join_graph import JoinGraph
from sbon.sql.join_query import used_above
from sbon.sql.logical_plan import Plan
from sbon.sql.plan import plan_query, prepare_query
from sbon.sql.query_plan import QueryPlan
from sbon.sql.reuse import joined, usable, views, with_views

RUNS = RunningStream(Signature("it runs"), 0, ())


def offers(select: str, catalog: Catalog, query_id: str = "q1") -> tuple[tuple[FragmentSpec, ...], dict[str, Computes]]:
    """The fragments of a query, and what they offer to others."""
    fragments = plan_query(f"INSERT INTO result {select}", query_id, catalog).fragments
    return fragments, {spec.fragment_id: spec.computes for spec in fragments if spec.computes and not spec.stream}


def plan_reading(
    select: str, catalog: Catalog, offered: Mapping[str, Computes], starts: Mapping[str, Start]
) -> QueryPlan | None:
    """The plan that reads the largest part that it can, and joins the other streams to it; None if it can read none."""
    prepared = prepare_query(f"INSERT INTO result {select}", catalog)
    has_read = False

    def choose(graph: JoinGraph) -> Plan | None:
        nonlocal has_read
        found = usable(graph, used_above(prepared.outputs, prepared.plan, graph), offered)
        if not found:
            return None
        has_read = True
        largest = max(found, key=lambda each: each.mask.bit_count())
        tree: Tree = Use(largest.mask, 0, RUNS)
        for number in range(len(graph.inputs)):
            if not largest.mask >> number & 1:
                tree = Join(tree.mask | 1 << number, 0, tree, Use(1 << number, 0))
        return joined(graph, tree, {largest.mask: largest.plan})

    plan = prepared.cut("q2", choose, starts)
    return plan if has_read else None


def plan_viewing(
    select: str,
    catalog: Catalog,
    offered: Mapping[str, Computes],
    starts: Mapping[str, Start],
    query_id: str = "q2",
) -> QueryPlan | None:
    """The plan that reads the largest part that it can, of whatever kind; None if it can read none."""
    prepared = prepare_query(f"INSERT INTO result {select}", catalog)
    found = views(prepared.plan, prepared.outputs, offered)
    if not found:
        return None
    return replace(prepared, plan=with_views(prepared.plan, found[:1])).cut(query_id, starts=starts)
