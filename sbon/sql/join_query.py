"""A tree of joins as the planners see it (:mod:`sbon.planning.problem`): streams with hosts, rates, signatures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sbon.planning.problem import MAX_STREAMS, JoinQuery, Tree, Use
from sbon.sql.event_times import event_times
from sbon.sql.join_graph import JoinGraph, Order
from sbon.sql.logical_plan import (
    Aggregate,
    Compute,
    Filter,
    Join,
    Output,
    Plan,
    Reused,
    Scan,
    Union,
    attributes,
    bare,
    used,
)
from sbon.sql.plan_rates import joined_rate, rate_of
from sbon.sql.signatures import canonical_join, scan_of


def join_query(
    name: str,
    graph: JoinGraph,
    host_of: Callable[[str], int],
    above: set[str],
    sink: int,
    result_rate: float | None,
) -> JoinQuery | None:
    """The planning problem, or None where there is nothing to be planned: an input is not a stream, or there are too
    many.

    ``above``: attributes that are used above the joins; ``host_of``: the host of a stream, by its name;
    ``result_rate``: of what reaches the sink, None if that is the result of the joins itself.
    """
    streams = [scan_of(plan) for plan in graph.inputs]
    if any(stream is None for stream in streams) or not 2 <= len(streams) <= MAX_STREAMS:
        return None
    count = len(streams)
    inputs = [rate_of(plan) for plan in graph.inputs]
    rates, signatures = [], []
    for mask in range(1 << count):
        numbers = [number for number in range(count) if mask >> number & 1]
        signatures.append(canonical_join(graph, numbers).signature)
        if not numbers:
            rates.append(0.0)
        elif len(numbers) == 1 or graph.can_join(frozenset(numbers)):
            rates.append(joined_rate([inputs[number] for number in numbers], _needed(graph, numbers, above)))
        else:
            rates.append(math.inf)
    if not math.isfinite(rates[-1]):
        return None
    hosts = tuple(host_of(stream.stream.name) for stream in streams if stream is not None)
    at_sink = rates[-1] if result_rate is None else result_rate
    return JoinQuery(name, hosts, tuple(rates), tuple(signatures), sink, at_sink, signatures[-1])


def order_of(tree: Tree) -> Order:
    """The order in which a plan joins; of two parts the one with the earlier input is on the left."""
    if isinstance(tree, Use):
        return tree.mask.bit_length() - 1
    left, right = sorted((tree.left, tree.right), key=lambda part: part.mask & -part.mask)
    return order_of(left), order_of(right)


def used_above(outputs: Sequence[Output], plan: Plan, graph: JoinGraph) -> set[str]:
    """Attributes of the graph's inputs that ``outputs``, and the rest of ``plan`` above the joins, use.

    And an event time, if the joins are all there is and none is put out: see :mod:`sbon.sql.cut`.
    """
    own = {name for each in graph.inputs for name in attributes(each)}
    needed = own & (used(*(output.expression for output in outputs)) | _used_in(plan))
    order = graph.any_order() if is_join(plan) else None
    if order is not None:
        times = event_times(graph.plan(order)).lags_us.keys()
        if not times & {bare(output.expression) for output in outputs}:
            needed.add(min(times))
    return needed


def is_join(plan: Plan) -> bool:
    """Whether joins, and columns that are computed of them, are all that the plan is."""
    while isinstance(plan, Compute):
        plan = plan.input
    return isinstance(plan, Join)


def _used_in(plan: Plan) -> set[str]:
    """What a plan uses above its joins."""
    match plan:
        case Filter():
            return used(plan.condition) | _used_in(plan.input)
        case Compute():
            return used(*(definition for _, definition in plan.columns)) | _used_in(plan.input)
        case Union():
            names = used(*(source for sources in plan.expressions for source in sources))
            return names.union(*(_used_in(branch) for branch in plan.inputs))
        case Aggregate():
            expressions = (expression for _, expression in (*plan.keys, *plan.measures))
            return {plan.window.time} | used(*expressions) | _used_in(plan.input)
        case Join() | Scan() | Reused():
            return set()


def _needed(graph: JoinGraph, numbers: Sequence[int], above: set[str]) -> set[str]:
    """Columns that a join of these inputs has to put out: for what is above, and for conditions not yet applied."""
    inside = {name for number in numbers for name in attributes(graph.inputs[number])}
    later = [used(part) for part in graph.conditions if not used(part) <= inside]
    return inside & above.union(*later)
