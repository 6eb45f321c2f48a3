"""Joins in any order: a tree of inner joins as a set of inputs and a set of conditions, and back as any other tree.

What is written as ``a JOIN b ... JOIN c ...`` is only one of the orders in which it can be computed. From what is
written follows more, and it is added, so that other orders have keys and bounded state, too: ``a.k = b.k`` and
``a.k = c.k`` give ``b.k = c.k`` where all are of one declared type, and bounds of event times add up
(:func:`sbon.sql.time_bounds.closure`). What follows from other conditions changes no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from sqlglot import exp

from sbon.errors import QueryError
from sbon.planning.problem import MAX_STREAMS
from sbon.sql.dialect import column
from sbon.sql.event_times import event_times
from sbon.sql.logical_plan import Join, Plan, attributes, bare, declared_types, used
from sbon.sql.time_bounds import at_least, closure, conjunct_bounds

#: A tree of joins: the number of an input, or two trees.
Order = int | tuple["Order", "Order"]


@dataclass(frozen=True)
class JoinGraph:
    """``inputs`` in the order in which they are written; ``places``: where they stand in the text.

    Of the ``conditions`` those that are ``stated`` come first, then those that follow from them.
    """

    inputs: tuple[Plan, ...]
    places: tuple[str, ...]
    conditions: tuple[exp.Expr, ...]
    written: Order
    stated: int
    #: What was found for sets of inputs: of these there are 2^n, of orders n!.
    _found: dict[frozenset[int], Order | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def plan(self, order: Order) -> Plan:
        """The joins in that order, each condition where all that it needs is there for the first time.

        Whether it can be run is known once it is looked at: :func:`sbon.sql.event_times.event_times` refuses joins
        without a key or without bounds.
        """
        return self._joined(order)[0]

    def can_join(self, numbers: frozenset[int]) -> bool:
        """Whether these inputs can be joined, in some order, without the others. Raises QueryError for too many."""
        return self._some_order(numbers) is not None

    def any_order(self) -> Order | None:
        """What is written, if it can be run, or else some order that can; None if there is none.

        Raises QueryError if there are too many inputs to look for one.
        """
        if _runs(self.plan(self.written)):
            return self.written
        return self._some_order(frozenset(range(len(self.inputs))))

    def _some_order(self, numbers: frozenset[int]) -> Order | None:
        if len(numbers) > MAX_STREAMS:
            raise QueryError(
                f"{len(numbers)} streams are joined in an order that cannot be run, and another one is looked for only "
                f"for up to {MAX_STREAMS}: write each behind those that it shares a key and bounds with"
            )
        if numbers not in self._found:
            self._found[numbers] = self._search_order(numbers)
        return self._found[numbers]

    def _search_order(self, numbers: frozenset[int]) -> Order | None:
        """One input after the other, as they fit."""
        if len(numbers) == 1:
            return next(iter(numbers))
        for last in sorted(numbers, reverse=True):
            before = self._some_order(numbers - {last})
            if before is not None and _runs(self.plan((before, last))):
                return before, last
        return None

    def _joined(self, order: Order) -> tuple[Plan, frozenset[int], set[str]]:
        if isinstance(order, int):
            plan = self.inputs[order]
            return plan, frozenset({order}), set(attributes(plan))
        (left, one, left_names), (right, other, right_names) = (self._joined(part) for part in order)
        names = left_names | right_names
        new = [
            part
            for part in self.conditions
            if used(part) <= names and not used(part) <= left_names and not used(part) <= right_names
        ]
        return Join(left, right, tuple(new), self.places[min(other)]), one | other, names


def join_graph(join: Join) -> JoinGraph:
    """The graph of a join and of all joins directly below it, whose filters have been pushed down."""
    inputs: list[Plan] = []
    places: list[str] = []
    conditions: list[exp.Expr] = []

    def flatten(plan: Plan, place: str) -> Order:
        if not isinstance(plan, Join):
            inputs.append(plan)
            places.append(place)
            return len(inputs) - 1
        left, right = flatten(plan.left, place), flatten(plan.right, plan.place)
        conditions.extend(plan.condition)
        return left, right

    written = flatten(join, join.place)
    stated = len(conditions)
    conditions += _equalities(inputs, conditions)
    conditions += _bounds(inputs, conditions)
    return JoinGraph(tuple(inputs), tuple(places), tuple(conditions), written, stated)


def _equalities(inputs: list[Plan], conditions: list[exp.Expr]) -> list[exp.Expr]:
    """Equalities between columns of two inputs that follow from those that are written."""
    owner = {name: number for number, plan in enumerate(inputs) for name in attributes(plan)}
    types: dict[str, str] = {}
    for plan in inputs:
        types |= declared_types(plan)
    groups: list[set[str]] = []
    stated: set[frozenset[str]] = set()
    for part in conditions:
        one, other = (bare(part.this), bare(part.expression)) if isinstance(part, exp.EQ) else (None, None)
        if one is None or other is None or types.get(one) is None or types.get(one) != types.get(other):
            continue
        stated.add(frozenset({one, other}))
        merged = {one, other}
        for group in [group for group in groups if group & merged]:
            merged |= group
            groups.remove(group)
        groups.append(merged)
    return [
        exp.EQ(this=column(one), expression=column(other))
        for group in groups
        for one, other in combinations(sorted(group), 2)
        if owner[one] != owner[other] and frozenset({one, other}) not in stated
    ]


def _bounds(inputs: list[Plan], conditions: list[exp.Expr]) -> list[exp.Expr]:
    """Bounds between event times of two inputs that follow from others, and are not written."""
    owner: dict[str, int] = {}
    known: list[Mapping[tuple[str, str], int]] = []
    for number, plan in enumerate(inputs):
        times = event_times(plan)
        owner |= dict.fromkeys(times.lags_us, number)
        known.append(times.bounds)
    stated = [conjunct_bounds(part) for part in conditions]
    relevant = [{pair: v for pair, v in system.items() if owner.keys() >= set(pair)} for system in stated]
    written = {pair for system in relevant for pair in system}
    return [
        at_least(greater, smaller, least_us)
        for (greater, smaller), least_us in sorted(closure(*known, *relevant).items())
        if owner.keys() >= {greater, smaller} and owner[greater] != owner[smaller] and (greater, smaller) not in written
    ]


def _runs(plan: Plan) -> bool:
    try:
        event_times(plan)
    except QueryError:
        return False
    return True
