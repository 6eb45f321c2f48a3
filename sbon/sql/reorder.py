"""The joins of a plan in another order than the one that is written."""

from __future__ import annotations

from collections.abc import Callable

from sbon.sql.join_graph import JoinGraph, Order, join_graph
from sbon.sql.logical_plan import Aggregate, Compute, Filter, Join, Plan, Reused, Scan, Union

#: Says in which order to join, or what to put in the place of the joins; None: as it is written, or as it can be.
Choose = Callable[[JoinGraph], Order | Plan | None]


def as_written(_graph: JoinGraph) -> None:
    """For those who have no other wish."""


def reorder(plan: Plan, choose: Choose) -> Plan:
    """``plan`` with the joins of each tree of joins in the chosen order. Filters have been pushed down before."""
    match plan:
        case Scan() | Reused():
            return plan
        case Filter():
            return Filter(reorder(plan.input, choose), plan.condition)
        case Compute():
            return Compute(reorder(plan.input, choose), plan.columns)
        case Union():
            return Union(tuple(reorder(branch, choose) for branch in plan.inputs), plan.columns, plan.expressions)
        case Aggregate():
            return Aggregate(reorder(plan.input, choose), plan.window, plan.keys, plan.measures)
        case Join():
            return _joined(_with_inputs(plan, choose), choose)


def _with_inputs(join: Join, choose: Choose) -> Join:
    left, right = (
        _with_inputs(side, choose) if isinstance(side, Join) else reorder(side, choose)
        for side in (join.left, join.right)
    )
    return Join(left, right, join.condition, join.place)


def _joined(join: Join, choose: Choose) -> Plan:
    graph = join_graph(join)
    chosen = choose(graph)
    if chosen is not None and not isinstance(chosen, int | tuple):
        return chosen
    if len(graph.inputs) == 2:
        return join  # there is only one order; the sides keep theirs
    order = chosen or graph.any_order()
    # With what is written nothing has to be added, and errors are told of that.
    return join if order is None or order == graph.written else graph.plan(order)
