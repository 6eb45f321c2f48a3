"""What runs already, as a part of a query's plan: the output of a join of another query in the place of a join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sbon.fragment import Computes
from sbon.planning.problem import MAX_STREAMS, Tree, Use
from sbon.planning.signature import Signature
from sbon.sql.join_graph import JoinGraph, Order
from sbon.sql.logical_plan import Filter, Plan, Reused, attributes, conjunction, used
from sbon.sql.signatures import canonical, stream_of


@dataclass(frozen=True, slots=True)
class Usable:
    """A running fragment that has the join of the inputs in ``mask``; ``plan`` reads it."""

    mask: int
    fragment_id: str
    plan: Plan


def usable(graph: JoinGraph, above: set[str], offers: Mapping[str, Computes]) -> list[Usable]:
    """What a query can read of ``offers``, which are by fragment id, for two or more of its streams.

    ``above``: attributes that are used above the joins. A fragment whose filters keep more is filtered further.
    """
    count = len(graph.inputs)
    if not offers or count > MAX_STREAMS or any(stream_of(plan) is None for plan in graph.inputs):
        return []
    found = []
    for mask in range(1, 1 << count):
        numbers = [number for number in range(count) if mask >> number & 1]
        if len(numbers) < 2:
            continue
        wanted = canonical(graph, numbers)
        needed = _needed(graph, numbers, above)
        original = None
        for fragment_id, offer in offers.items():
            offered = Signature(offer.body, frozenset(offer.filters))
            if not offered.serves(wanted.signature):
                continue
            left = [wanted.filters[text] for text in sorted(wanted.signature.filters - offered.filters)]
            columns = tuple(
                (name, offer.columns[called]) for name, called in wanted.names.items() if called in offer.columns
            )
            if not needed | used(*left) <= {name for name, _ in columns}:
                continue
            original = original or _original(graph, numbers)
            time = next(name for name, called in wanted.names.items() if called == offer.event_time)
            plan: Plan = Reused(fragment_id, columns, time, original)
            found.append(Usable(mask, fragment_id, Filter(plan, conjunction(left)) if left else plan))
    return found


def joined(graph: JoinGraph, tree: Tree, reused: Mapping[int, Plan]) -> Plan:
    """The joins of a plan, in its order; ``reused``, by mask, are its leaves that are not streams."""
    inputs: list[Plan] = []
    places: list[str] = []

    def order(part: Tree) -> Order:
        if not isinstance(part, Use):
            left, right = sorted((part.left, part.right), key=lambda each: each.mask & -each.mask)
            return order(left), order(right)
        first = (part.mask & -part.mask).bit_length() - 1
        inputs.append(graph.inputs[first] if part.running is None else reused[part.mask])
        places.append(graph.places[first])
        return len(inputs) - 1

    written = order(tree)
    return JoinGraph(tuple(inputs), tuple(places), graph.conditions, written, graph.stated).plan(written)


def _needed(graph: JoinGraph, numbers: Iterable[int], above: set[str]) -> set[str]:
    """What others need of a join of these inputs. Conditions that follow from others can be done without."""
    inside = {name for number in numbers for name in attributes(graph.inputs[number])}
    later = [used(part) for part in graph.conditions[: graph.stated] if not used(part) <= inside]
    return inside & above.union(*later)


def _original(graph: JoinGraph, numbers: list[int]) -> Plan:
    """Some join of these inputs: what it says of rates and types is the same in all orders."""
    order: Order = numbers[0]
    for number in numbers[1:]:
        order = order, number
    return graph.plan(order)
