"""What runs already, as a part of a query's plan: what a fragment of another query puts out is not computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sbon.fragment import Computes
from sbon.planning.problem import MAX_STREAMS, Tree, Use
from sbon.planning.signature import Signature
from sbon.sql.dialect import column
from sbon.sql.estimates import predicate_selectivity
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
    conjunction,
    used,
)
from sbon.sql.signatures import Canonical, canonical, canonical_join, scan_of

#: By fragment id, what runs.
Offers = Mapping[str, Computes]


@dataclass(frozen=True, slots=True)
class Usable:
    """A running fragment that has the join of the inputs in ``mask``; ``plan`` reads it."""

    mask: int
    fragment_id: str
    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A running fragment that has what ``node``, a part of a plan, gives; ``plan`` reads it."""

    node: Plan
    fragment_id: str
    plan: Plan


def usable(graph: JoinGraph, above: set[str], offers: Offers) -> list[Usable]:
    """What a query can read of ``offers`` for two or more of the streams that it joins.

    ``above``: attributes that are used above the joins. A fragment whose filters keep more is filtered further.
    """
    count = len(graph.inputs)
    if not offers or count > MAX_STREAMS or any(scan_of(plan) is None for plan in graph.inputs):
        return []
    found = []
    for mask in range(1, 1 << count):
        numbers = [number for number in range(count) if mask >> number & 1]
        if len(numbers) > 1:
            wanted, needed = canonical_join(graph, numbers), _needed(graph, numbers, above)
            for fragment_id in _serving(wanted, offers):
                plan = _read(fragment_id, offers[fragment_id], wanted, needed, _original(graph, numbers))
                found += [] if plan is None else [Usable(mask, fragment_id, plan)]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a plan that is, or may be, a fragment; ``needed`` are those of its attributes that are used above it.

    ``computed``: those that it computes of others.
    """

    plan: Plan
    needed: set[str]
    computed: tuple[tuple[str, exp.Expr], ...]


def parts_of(plan: Plan, needed: set[str]) -> Iterator[Part]:
    """The parts of a plan, each before those that it is made of. Filters and computed columns go with what they stand
    on."""
    whole, wanted, computed, below = plan, needed, list[tuple[str, exp.Expr]](), needed
    while isinstance(plan, (Filter, Compute)):
        if isinstance(plan, Filter):
            below = below | used(plan.condition)
        else:
            below = below | used(*(definition for name, definition in plan.columns if name in below))
            computed = [*plan.columns, *computed]
        plan = plan.input
    yield Part(whole, wanted, tuple(computed))
    match plan:
        case Join():
            both = below | used(*plan.condition)
            yield from parts_of(plan.left, both & set(attributes(plan.left)))
            yield from parts_of(plan.right, both & set(attributes(plan.right)))
        case Union():
            for branch, sources in zip(plan.inputs, plan.expressions, strict=True):
                fed = [source for name, source in zip(plan.columns, sources, strict=True) if name in below]
                yield from parts_of(branch, used(*fed))
        case Aggregate():
            measures = [measure for name, measure in plan.measures if name in below]
            read_below = used(*(key for _, key in plan.keys), *measures) | {plan.window.time}
            yield from parts_of(plan.input, read_below)


def views(plan: Plan, outputs: Sequence[Output], offers: Offers, *, streams: bool = False) -> list[View]:
    """What a query can read of ``offers`` for a part of its plan, the largest parts first.

    Without ``streams``, these by themselves are left out: reading one from its own source costs no more, and it is
    whole.
    """
    needed = used(*(output.expression for output in outputs))
    found = _views(plan, needed, offers) if offers else ()
    return [view for view in found if streams or scan_of(view.node) is None]


def with_views(plan: Plan, chosen: Sequence[View]) -> Plan:
    """``plan`` with what is read in the place of what it gives."""
    for view in chosen:
        if view.node is plan:
            return view.plan
    match plan:
        case Scan() | Reused():
            return plan
        case Filter():
            return Filter(with_views(plan.input, chosen), plan.condition)
        case Compute():
            return Compute(with_views(plan.input, chosen), plan.columns)
        case Join():
            left, right = with_views(plan.left, chosen), with_views(plan.right, chosen)
            return Join(left, right, plan.condition, plan.place)
        case Union():
            branches = tuple(with_views(branch, chosen) for branch in plan.inputs)
            return Union(branches, plan.columns, plan.expressions)
        case Aggregate():
            return Aggregate(with_views(plan.input, chosen), plan.window, plan.keys, plan.measures)


def reads(plan: Plan) -> list[str]:
    """The fragments of others that a plan reads."""
    match plan:
        case Scan():
            return []
        case Filter() | Compute() | Aggregate():
            return reads(plan.input)
        case Join():
            return reads(plan.left) + reads(plan.right)
        case Union():
            return [fragment_id for branch in plan.inputs for fragment_id in reads(branch)]
        case Reused():
            return [plan.fragment_id]


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


def _serving(wanted: Canonical, offers: Offers) -> list[str]:
    """Those of ``offers`` whose rows are the wanted ones, or more."""
    signatures = {fragment_id: Signature(offer.body, frozenset(offer.filters)) for fragment_id, offer in offers.items()}
    return [fragment_id for fragment_id, offered in signatures.items() if offered.serves(wanted.signature)]


def _read(
    fragment_id: str,
    offer: Computes,
    wanted: Canonical,
    needed: set[str],
    instead_of: Plan,
    computed: Sequence[tuple[str, exp.Expr]] = (),
) -> Plan | None:
    """The plan that reads a serving fragment, if the columns that are ``needed`` are there, and the event time.

    ``computed``: attributes that can be computed from others.
    """
    called = {name: wanted.called(column(name)) for name in wanted.definitions}
    columns = tuple((name, offer.columns[text]) for name, text in called.items() if text in offer.columns)
    there = {name for name, _ in columns}
    time = next((name for name, _ in columns if called[name] == offer.event_time), None)
    further = []
    for name, definition in computed:
        if name not in there and used(definition) <= there:
            there.add(name)
            further.append((name, definition))
    left = [wanted.filters[text] for text in sorted(wanted.signature.filters - set(offer.filters))]
    if time is None or not needed | used(*left) <= there:
        return None
    share = math.prod(predicate_selectivity(part) for part in left)
    plan: Plan = Reused(fragment_id, columns, time, instead_of, surplus=1.0 / share if share > 0.0 else 1.0)
    plan = Compute(plan, tuple(further)) if further else plan
    return Filter(plan, conjunction(left)) if left else plan


def _views(plan: Plan, needed: set[str], offers: Offers) -> Iterator[View]:
    for part in parts_of(plan, needed):
        what = canonical(part.plan)
        for fragment_id in _serving(what, offers):
            read = _read(fragment_id, offers[fragment_id], what, part.needed, part.plan, part.computed)
            if read is not None:
                yield View(part.plan, fragment_id, read)


def _needed(graph: JoinGraph, numbers: Iterable[int], above: set[str]) -> set[str]:
    """What others need of a join of these inputs. Conditions that follow from others can be done without."""
    inside = {name for number in numbers for name in attributes(graph.inputs[number])}
    later = [used(part) for part in graph.conditions[: graph.stated] if not used(part) <= inside]
    return inside & above.union(*later)


def _original(graph: JoinGraph, numbers: Sequence[int]) -> Plan:
    """Some join of these inputs: what it says of rates and types is the same in all orders."""
    order: Order = numbers[0]
    for number in numbers[1:]:
        order = order, number
    return graph.plan(order)
